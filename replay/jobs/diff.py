"""Differences between two points: the entities that were created, deleted or changed, and their
changed fields.

Only the groups that a record between the points changes are folded, from their beginning; what else
there is cannot differ.
"""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.table import Column as TableColumn
from rich.table import Table

from raftlog.metadata.words import FieldChange, author, field_changes, raw, why_nobody, words
from raftlog.text import counted
from replay.asked import ask
from replay.beginning import Began, began, begin_offset
from replay.errors import ReplayError
from replay.jobs.state import Point
from replay.local import fold as local
from replay.local.pool import Pool
from replay.opened import Export, require_whole_history
from replay.request import JobRequest, format_time

SAMPLES = ("applied", "progress")
"""Kinds that change all the time: left out of a diff of everything, and counted."""


class Difference(msgspec.Struct, frozen=True):
    """One entity that is not as it was.

    ``change``: created, changed or deleted; ``before`` and ``after``: JSON, null: not there.

    ``changes``: how many records changed it meanwhile; the last of them is at ``last_offset``, of
    ``last_principal``.
    """

    kind: str
    key: str
    change: str
    fields: list[FieldChange]
    before: msgspec.Raw
    after: msgspec.Raw
    changes: int
    last_offset: int
    last_timestamp_ms: int
    last_principal: str


class DiffResult(msgspec.Struct, frozen=True):
    """The first differences by kind and key; ``counts`` of all: kind -> change -> how many.

    ``begin`` null: the empty log.

    ``left_out``: entities of the kinds in SAMPLES that differ, unless they were asked for.

    ``origin``: what kind of cluster's log it is, empty for raftlog's own.
    ``checkpoint``: what the fold began with; null: at the beginning.
    """

    begin: Point | None
    end: Point
    differences: list[Difference]
    counts: dict[str, dict[str, int]]
    left_out: dict[str, int]
    origin: str = ""
    checkpoint: Began | None = None

    @property
    def total(self) -> int:
        """Number of entities that differ, without those left out."""
        return sum(sum(changes.values()) for changes in self.counts.values())


def run_local(export: Export, request: JobRequest, pool: Pool) -> DiffResult:
    """Fold what was touched, once.

    Raises ReplayError for points that the log does not have, or in the wrong order.
    """
    require_whole_history(export)
    end = Point(*local.end_of(export))
    require_order(request, end)
    begin = None
    until = begin_offset(export, request)
    if until is not None:
        at = local.ends_at(export, until_offset=until)
        begin = None if at is None else Point(*at)
    asked = None if request.key is None else ask(*request.key)
    nets = local.differing(export, pool, asked, begin.offset if begin is not None else -1)
    counts: dict[str, dict[str, int]] = {}
    left_out: dict[str, int] = {}
    shown: list[Difference] = []
    for net in nets:
        if asked is None and net.kind in SAMPLES:
            left_out[net.kind] = left_out.get(net.kind, 0) + 1
            continue
        of_kind = counts.setdefault(net.kind, {})
        of_kind[net.change] = of_kind.get(net.change, 0) + 1
        if len(shown) < request.limit:
            shown.append(_difference(net))
    return DiffResult(begin, end, shown, counts, left_out, checkpoint=began(export))


def _difference(net: local.Net) -> Difference:
    return Difference(
        kind=net.kind,
        key=net.key,
        change=net.change,
        fields=field_changes(net.before, net.after),
        before=raw(net.before),
        after=raw(net.after),
        changes=net.changes,
        last_offset=net.last.offset,
        last_timestamp_ms=net.last.timestamp_ms,
        last_principal=net.last.principal,
    )


def require_order(request: JobRequest, end: Point) -> None:
    """Raises ReplayError for a beginning that is none, or behind the end."""
    if request.from_offset is not None:
        if request.from_offset < 0:
            raise ReplayError(f"there is no offset {request.from_offset}: a log begins at offset 0")
        if request.from_offset > end.offset:
            raise ReplayError(
                f"offset {request.from_offset} lies behind the end of the diff, offset {end.offset}"
            )
    elif request.from_time_ms is not None and (
        request.from_time_ms > end.timestamp_ms and request.at_time_ms is not None
    ):
        raise ReplayError(
            f"{format_time(request.from_time_ms)} lies behind the end of the diff,"
            f" {format_time(end.timestamp_ms)}"
        )


def render(result: DiffResult, console: Console) -> None:
    """Print the result for people."""
    begin, end = result.begin, result.end
    first = (
        f"offset {begin.offset}, {format_time(begin.timestamp_ms)}"
        if begin is not None
        else "the empty log"
    )
    console.print(f"From {first}, to offset {end.offset}, {format_time(end.timestamp_ms)}")
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    if result.differences:
        table = Table(
            TableColumn("entity", overflow="fold"),
            TableColumn("difference", overflow="fold"),
            "last changed",
            *(() if result.origin else ("by",)),
        )
        for one in result.differences:
            table.add_row(
                f"{one.kind} {one.key}".rstrip(),
                words(one.before, one.after, one.fields, one.kind),
                f"{format_time(one.last_timestamp_ms)} at {one.last_offset}",
                *(() if result.origin else (author(one.last_principal),)),
            )
        console.print(table)
    counts = "; ".join(
        f"{kind}: {', '.join(f'{count} {change}' for change, count in changes.items())}"
        for kind, changes in result.counts.items()
    )
    more = (
        f" ({len(result.differences)} shown: raise --limit for more)"
        if len(result.differences) < result.total
        else ""
    )
    differ = counted(result.total, "entity differs", "entities differ")
    console.print(f"{differ}{': ' if counts else ''}{counts}{more}")
    if result.origin and result.differences:
        console.print(why_nobody(result.origin))
    if result.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in result.left_out.items())
        console.print(f"Left out, as they always move: {kinds} (name the kind to see them)")


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("diff"))
