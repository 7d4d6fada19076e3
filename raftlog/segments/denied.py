"""Whether the statistics of a row group deny what its rows say. Spark and other engines skip what
these put elsewhere than a condition asks for; so would they by an index of pages or a Bloom filter,
and raftlog writes neither.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


class Denied:
    """The statistics of the plain columns of one row group, held against its rows."""

    def __init__(self, metadata: pq.FileMetaData, group: int) -> None:
        self._group, self._rows = group, 0
        chunks = [metadata.row_group(group).column(each) for each in range(metadata.num_columns)]
        self._index = next((one.path_in_schema for one in chunks if _has_index(one)), "")
        self._known = {
            one.path_in_schema: one.statistics for one in chunks if one.statistics is not None
        }
        self._nulls = dict.fromkeys(self._known, 0)

    def by(self, rows: pa.RecordBatch) -> str:
        """A column whose values lie outside of what is said of them; empty: none."""
        self._rows += rows.num_rows
        for name in rows.schema.names:
            known, column = self._known.get(name), rows.column(name)
            if known is None or pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if known.has_min_max and column.null_count < len(column) and _outside(known, column):
                return str(name)
        return ""

    def at_end(self) -> str:
        """What is wrong with the group behind its last row, in words; empty: nothing."""
        if self._index:
            return (
                f"column {self._index} of its row group {self._group} has an index of pages or a"
                " Bloom filter, which raftlog does not write"
            )
        for name, nulls in self._nulls.items():
            known = self._known[name]
            if "." not in name and known.has_null_count and known.null_count != nulls:
                return (
                    f"the statistics of its row group {self._group} count {known.null_count} nulls"
                    f" of {name}, and there are {nulls}"
                )
        return ""


def _has_index(chunk: Any) -> bool:
    return bool(
        chunk.has_column_index or chunk.has_offset_index or chunk.bloom_filter_offset is not None
    )


def _outside(known: Any, column: pa.Array) -> bool:
    bounds = pc.min_max(column)
    try:
        # As they stand in the file: a string that is none raises, and so does a time that no
        # calendar has.
        return bool(bounds["min"].as_py() < known.min or known.max < bounds["max"].as_py())
    except (ValueError, OverflowError):
        return True
