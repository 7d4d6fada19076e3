"""What the records of a range say that the manifest says, too, or that a reader must know: which
feature levels they set, whose log they are of, and which columns of Parquet files keep it silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class Said(msgspec.Struct, frozen=True):
    """``levels``: the last level that was set of a feature, 0: removed. ``own``: the first offset
    of what only raftlog's log can hold; ``imported``: of what only another system's can; -1: none.
    ``silent``: the first offset of which a file says nothing in a column that it lacks, by file and
    column.
    """

    levels: dict[str, int] = {}
    own: int = -1
    imported: int = -1
    silent: dict[str, dict[str, int]] = {}

    def with_silent(self, other: Said) -> Said:
        """With the columns that other files of the range lack, too."""
        return msgspec.structs.replace(self, silent=self.silent | other.silent)


class Listening:
    """Collects that, slice by slice."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._own = self._imported = -1
        self._silent: dict[str, dict[str, int]] = {}

    def take(self, rows: pa.Table, levels: Mapping[str, int]) -> None:
        """The next rows, as the raw batches give them, and the levels that they set."""
        self._levels.update(levels)
        if self._own < 0:
            self._own = _first(rows, _is_own(rows))
        if self._imported < 0:
            self._imported = _first(rows, pc.is_valid(rows["imported_name"]))

    def lacks(self, file: str, column: str, offset: int) -> None:
        """A file lacks a column of which the log says something at an offset."""
        self._silent.setdefault(file, {}).setdefault(column, offset)

    def said(self) -> Said:
        """What the rows taken so far say."""
        return Said(self._levels, self._own, self._imported, self._silent)


def _is_own(rows: pa.Table) -> Any:
    """Who asked, exactly-once clients and progress: no other system's log has any of them."""
    named = pc.or_(pc.not_equal(rows["principal"], ""), pc.greater(rows["client_id"], 0))
    return pc.or_(named, pc.is_valid(rows["high_watermark"]))


def _first(rows: pa.Table, chosen: Any) -> int:
    at = pc.index(chosen, value=True).as_py()
    return -1 if at < 0 else int(rows["offset"][at].as_py())
