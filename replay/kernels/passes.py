"""A pass over the records, as data: an engine runs it in Spark's tasks, or in worker processes.

The parts of a pass process the records; the job merges their findings, which are small. So each job
is written once for all engines.
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
"""Which part gets which slice does not matter, nor in which order they come."""
IN_ORDER = ("",)
"""One part gets all slices, in order."""
BY_PARTITION = ("topic_id", "partition_id")
BY_CONFIG = ("resource_name", "config_name")
BY_CLIENT = ("client_id",)


class Part(Protocol[Found_co]):
    """Part of a pass that receives its share of the records, slice by slice."""

    def take(self, table: pa.Table) -> None:
        """The next slice."""
        ...

    def end(self) -> Found_co:
        """Return the findings."""
        ...


@dataclass(frozen=True)
class Pass(Generic[Found]):
    """A pass over ``columns`` of the records of some ``types`` (None: all).

    ``by``: records that have the same in these columns come to one part, in order; or ANYWHERE, or
    IN_ORDER. ``begin`` makes a part; it can be pickled.
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
        """Return the findings of each part, in any order."""
        ...

    def table(self, columns: Sequence[str], types: Collection[RecordType]) -> pa.Table:
        """Return all records of some types in order, of which the log has few enough."""
        ...


class Accumulator(ABC):
    """A part of a pass that is its own finding, and to which those of other parts are added."""

    @abstractmethod
    def take(self, table: pa.Table) -> None:
        """Look at the next slice."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the findings of another part, which comes after this one."""

    def end(self) -> Self:
        """Return the part itself."""
        return self


Gathered = TypeVar("Gathered", bound=Accumulator)


def gathered(log: Rows, work: Pass[Gathered]) -> Gathered:
    """Return what all parts of a pass have accumulated."""
    found: Any = work.begin()
    for part in log.run(work):
        found.merge(part)
    return cast("Gathered", found)


def facts_of(log: Rows) -> Facts:
    """Return the facts of the rare records of a log."""
    return Facts(log.table(RARE_COLUMNS, RARE), log.end_offset)
