"""Runs of the log, and conditions on offset, epoch and time as such runs.

None of the three ever falls along the log. So a range of any of them selects one run of batches: a
reader skips the batches before it and stops behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from raftlog.batch import BatchHeader
from raftlog.segments.manifest import Segment

_MAX = 2**63 - 1
_1970 = datetime(1970, 1, 1, tzinfo=UTC)

Range = tuple[int, int]
"""Lowest and highest value, both inclusive; empty if the highest is below the lowest."""
_ANY: Range = (-_MAX, _MAX)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of the log, existing or wanted."""

    offset: Range = _ANY
    epoch: Range = _ANY
    timestamp_ms: Range = _ANY

    def before(self, other: Span) -> bool:
        """Return whether this run ends before the other begins."""
        return any(
            mine[1] < its[0] for mine, its in zip(self._ranges(), other._ranges(), strict=True)
        )

    def meets(self, other: Span) -> bool:
        """Return whether the runs may have a record in common."""
        return not self.before(other) and not other.before(self)

    def within(self, **ranges: Range) -> Span:
        """Return the part of the span in these ranges."""
        cut = {
            name: (max(low, getattr(self, name)[0]), min(high, getattr(self, name)[1]))
            for name, (low, high) in ranges.items()
        }
        return replace(self, **cut)

    def _ranges(self) -> tuple[Range, Range, Range]:
        return self.offset, self.epoch, self.timestamp_ms


def of_segment(segment: Segment) -> Span:
    """Return the span of a file."""
    return Span(
        (segment.base_offset, segment.last_offset),
        (segment.first_epoch, segment.last_epoch),
        (segment.min_timestamp_ms, segment.max_timestamp_ms),
    )


def of_batches(first: BatchHeader, last: BatchHeader) -> Span:
    """Return the span of some batches, from the first to the last of them."""
    return Span(
        (first.base_offset, last.last_offset),
        (first.epoch, last.epoch),
        (first.timestamp_ms, last.timestamp_ms),
    )


def cut_by(wanted: Span, condition: Filter) -> Span | None:
    """Return the part of a run that a pushed-down condition selects, exactly; None if its kind is
    not supported.
    """
    attribute, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    if attribute == ("timestamp",) and isinstance(value, datetime):
        # Milliseconds in the log, microseconds in Spark.
        found = _range(condition, (value - _1970) // timedelta(microseconds=1), 1000)
        name = "timestamp_ms"
    elif attribute in (("offset",), ("epoch",), ("timestamp_ms",)) and type(value) is int:
        found, name = _range(condition, value, 1), attribute[0]
    else:
        return None
    return None if found is None else wanted.within(**{name: found})


def _range(condition: Filter, value: int, unit: int) -> Range | None:
    """Return the whole numbers n for which n * unit fulfils the condition on ``value``."""
    floor, ceiling = value // unit, -(-value // unit)
    kinds: dict[type[Any], Range] = {
        EqualTo: (ceiling, floor),
        GreaterThan: (floor + 1, _MAX),
        GreaterThanOrEqual: (ceiling, _MAX),
        LessThan: (-_MAX, ceiling - 1),
        LessThanOrEqual: (-_MAX, floor),
    }
    return kinds.get(type(condition))
