"""A pass over the records as data, which an engine runs in Spark tasks or worker processes.

The parts of a pass process the records, and the job merges their small results. So each job is
written once for all engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts

Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)

ANYWHERE: tuple[str, ...] = ()
"""Slices may go to any part, in any order."""
IN_ORDER = ("",)
"""A single part gets all slices, in order."""
BY_PARTITION = ("topic_id", "partition_id")
BY_CONFIG = ("resource_name", "config_name")
BY_CLIENT = ("client_id",)


class Part(Protocol[Found_co]):
    """A part of a pass, which processes its share of the records slice by slice."""

    def take(self, table: pa.Table) -> None:
        """Process the next slice."""
        ...

    def end(self) -> Found_co:
        """Return the result."""
        ...


@dataclass(frozen=True)
class Pass(Generic[Found]):
    """A pass over ``columns`` of the records of some ``types`` (None for all).

    ``by``: records with equal values in these columns go to the same part, in order; or ANYWHERE,
    or IN_ORDER. ``begin`` creates a part, and must be picklable.
    """

    begin: Callable[[], Part[Found]]
    columns: Sequence[str]
    types: Collection[RecordType] | None = None
    by: tuple[str, ...] = ANYWHERE


class Rows(Protocol):
    """The records in question, as an engine reads them."""

    @property
    def end_offset(self) -> int:
        """End offset of the export, exclusive."""
        ...

    def run(self, work: Pass[Found]) -> list[Found]:
        """Return the results of all parts, in any order."""
        ...

    def table(self, columns: Sequence[str], types: Collection[RecordType]) -> pa.Table:
        """Return all records of some types, in order; they must be few."""
        ...


class Accumulator(ABC):
    """A part of a pass that is its own result, and can be merged with other parts."""

    @abstractmethod
    def take(self, table: pa.Table) -> None:
        """Process the next slice."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the result of another part, which follows this one."""

    def end(self) -> Self:
        """Return the part itself."""
        return self


Gathered = TypeVar("Gathered", bound=Accumulator)


def run_merged(log: Rows, work: Pass[Gathered]) -> Gathered:
    """Return the merged result of all parts of a pass."""
    found: Any = work.begin()
    for part in log.run(work):
        found.merge(part)
    return cast("Gathered", found)


def facts_of(log: Rows) -> Facts:
    """Return the facts of a log."""
    return Facts(log.table(RARE_COLUMNS, RARE), log.end_offset)
