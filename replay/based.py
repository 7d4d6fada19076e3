"""The state at a checkpoint as rows, with which a fold in Spark goes on.

One row a group, in the place of all records of the group below. Rows of records and these are
brought together by group, as always, so a task has what it needs, and a group that no record
touches any more counts, too. The driver reads the checkpoint.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from raftlog.metadata.kinds import by_group
from raftlog.segments.columns import SCHEMA
from replay.asked import Asked, groups_of
from replay.beginning import base_of, topic_there
from replay.kernels.folding import STATE
from replay.opened import Export

_FIXED = {"epoch": 0, "version": 0, "principal": "", "client_id": 0, "sequence": 0,
          "all_below_done": 0, "type_name": "", "type": STATE}  # fmt: skip


def base_rows(spark: SparkSession, export: Export, asked: Asked | None = None) -> DataFrame | None:
    """Return the state that the export begins with, of the groups asked for; None: it begins with
    none.
    """
    begin = export.begin
    if begin is None:
        return None
    there = None if asked is None else topic_there(export, asked.topic_name)
    groups = groups_of(asked, () if there is None else (there,))
    imported = bool(export.manifest.origin)
    found = list(by_group(base_of(export), groups.has, imported=imported))
    count = len(found)
    columns = {
        "group_kind": [one.group.kind for one in found],
        "group_id": [one.group.id for one in found],
        "body": [one.body for one in found],
        "offset": [begin.offset] * count,
        "timestamp_ms": [begin.timestamp_ms] * count,
        **{name: [value] * count for name, value in _FIXED.items()},
    }
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return spark.createDataFrame(pa.table(columns, schema=schema))
