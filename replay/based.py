"""The state at a checkpoint as rows, with which a fold in Spark goes on.

One row a group, in the place of all records of the group below. Rows of records and these are
brought together by group, as always, so a task has what it needs, and a group that no record
touches any more counts, too. The driver reads the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from raftlog.metadata.group_state import by_group
from raftlog.metadata.image import Image
from raftlog.metadata.records import GroupKey
from raftlog.segments.columns import SCHEMA
from replay.asked import TOPIC, Asked
from replay.beginning import base_of
from replay.kernels.folding import STATE
from replay.opened import Export

_FIXED = {"epoch": 0, "version": 0, "principal": "", "client_id": 0, "sequence": 0,
          "all_below_done": 0, "type_name": "", "type": STATE}  # fmt: skip


def base_rows(spark: SparkSession, export: Export, asked: Asked | None = None) -> DataFrame | None:
    """The state that the export begins with, of the groups asked for; None: it begins with none."""
    begin = export.begin
    if begin is None:
        return None
    image = base_of(export)
    has = _everything if asked is None else _groups(asked, image)
    found = [
        one for one in by_group(image, imported=bool(export.manifest.origin)) if has(one.group)
    ]
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


def topic_there(export: Export, name: str) -> str | None:
    """The id of the topic that has this name where the export begins."""
    found = base_of(export).topic_ids.get(name)
    return None if found is None else found.hex()


def _everything(_: GroupKey) -> bool:
    return True


def _groups(asked: Asked, image: Image) -> Callable[[GroupKey], bool]:
    kind, id_ = asked.group
    if not asked.topic_name:
        return lambda group: group.kind == kind and id_ in {None, group.id}
    topic_id = image.topic_ids.get(asked.topic_name)
    wanted = {(TOPIC, topic_id.hex())} if topic_id is not None else set()
    if asked.topic_types:
        wanted.add((kind, id_ or ""))
    return lambda group: (group.kind, group.id) in wanted
