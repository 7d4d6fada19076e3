"""What the row groups of a Parquet file say anything of: a column that is null all through need not
be read.

Most columns are of one type of record; to decode that a column says nothing takes half as long as
to decode what it says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_OF_IMPORTED = ("eligible_leader_replicas", "last_known_elr", "directories")
"""Lists that only another system's log has: raftlog's own says nothing of them."""
_ALWAYS = "type"
"""Read where nothing else is, as rows are to be counted."""


class Told:
    """Which columns the row groups of one file tell of, as its statistics say.

    These count an empty list as they do null, so lists are always told of, but where the log can't
    have any.
    """

    def __init__(self, metadata: pq.FileMetaData, *, imported: bool) -> None:
        """``imported``: from another system's log."""
        self._metadata, self._imported = metadata, imported
        self._leaves: dict[str, list[int]] = defaultdict(list)
        schema = metadata.schema
        for index in range(metadata.num_columns):
            self._leaves[schema.column(index).path.split(".")[0]].append(index)
        self._lists = {name for name in self._leaves if self._is_list(name)}

    def _is_list(self, name: str) -> bool:
        return any(
            self._metadata.schema.column(leaf).max_repetition_level for leaf in self._leaves[name]
        )

    def runs(
        self, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[list[int], list[str]]]:
        """Row groups that follow one another, and which of some columns to read of them."""
        silent = {name for name in columns if name in self._lists and self._never(name)}
        run: list[int] = []
        names: list[str] = []
        for group in groups:
            told = [name for name in columns if name not in silent and self._tells(group, name)]
            if run and told == names:
                run.append(group)
                continue
            if run:
                yield run, names or [_ALWAYS]
            run, names = [group], told
        if run:
            yield run, names or [_ALWAYS]

    def contradicted(self, group: int, rows: pa.RecordBatch) -> str:
        """A column of which rows of a group say something although the statistics deny it, or their
        offsets if these lie elsewhere; empty: there is none.
        """
        for name in rows.schema.names:
            column = rows.column(name)
            if pa.types.is_list(column.type):
                lengths = pc.fill_null(pc.list_value_length(column), 0)
                says = len(column) and pc.max(lengths).as_py()
            else:
                says = column.null_count < len(column)
            if says and all(self._null(group, leaf) for leaf in self._leaves[name]):
                return str(name)
        return "" if self._inside(group, rows) else "offset"

    def _inside(self, group: int, rows: pa.RecordBatch) -> bool:
        if "offset" not in self._leaves or not rows.num_rows:
            return True
        known = self._metadata.row_group(group).column(self._leaves["offset"][0]).statistics
        if known is None or not known.has_min_max:
            return True
        least, most = pc.min_max(rows.column("offset")).values()
        return bool(known.min <= least.as_py() and most.as_py() <= known.max)

    def _never(self, name: str) -> bool:
        """Whether no row group of the file has a member of a list that the log can't have."""
        if self._imported or name not in _OF_IMPORTED:
            return False
        groups = range(self._metadata.num_row_groups)
        return all(self._null(group, leaf) for group in groups for leaf in self._leaves[name])

    def _tells(self, group: int, name: str) -> bool:
        if name not in self._leaves:
            return False
        return name in self._lists or not all(
            self._null(group, leaf) for leaf in self._leaves[name]
        )

    def _null(self, group: int, leaf: int) -> bool:
        chunk = self._metadata.row_group(group).column(leaf)
        known = chunk.statistics
        if known is None or not known.has_null_count:
            return False
        return bool(known.null_count == chunk.num_values)
