"""Differences between two points: entities created, deleted or changed, and their changed
fields.
"""

from __future__ import annotations

import msgspec
from rich.console import Console

from raftlog.metadata.words import FieldChange, author, field_changes, raw, why_nobody, words
from raftlog.text import counted
from replay.engine.fold import differing
from replay.engine.pool import Pool
from replay.engine.reading import end_of, ends_at
from replay.export import (
    Export,
    StartingCheckpoint,
    begin_offset,
    require_order,
    starting_checkpoint,
)
from replay.jobs.state import Point
from replay.request import JobRequest
from replay.selection import select
from replay.text import Field, format_time, listing, more, print_listings


class Difference(msgspec.Struct, frozen=True):
    """An entity that differs between the two points.

    ``change``: created, changed or deleted. ``before``, ``after``: JSON; null if it did not exist.
    ``changes``: number of records that changed it in between; ``last_…``: the last of these.
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
    """Result of the job.

    ``differences``: the first ones, by kind and key. ``counts``: kind -> change -> number, of all.
    ``begin``: null for the empty log. ``origin``: the kind of cluster that wrote the log; "" for
    raftlog. ``checkpoint``: where the fold started; null for the beginning of the log.
    """

    begin: Point | None
    end: Point
    differences: list[Difference]
    counts: dict[str, dict[str, int]]
    origin: str = ""
    checkpoint: StartingCheckpoint | None = None

    @property
    def total(self) -> int:
        """Number of entities that differ."""
        return sum(sum(changes.values()) for changes in self.counts.values())


def run(export: Export, request: JobRequest, pool: Pool) -> DiffResult:
    """Fold up to the second point and collect the changes after the first.

    Raises ReplayError if the log does not have the points, or they are in the wrong order.
    """
    end = Point(*end_of(export))
    require_order(request, end.offset, end.timestamp_ms)
    begin = None
    until = begin_offset(export, request)
    if until is not None:
        at = ends_at(export, until_offset=until)
        begin = None if at is None else Point(*at)
    selection = None if request.key is None else select(*request.key)
    since = -1 if begin is None else begin.offset
    counts: dict[str, dict[str, int]] = {}
    shown: list[Difference] = []
    for net in differing(export, pool, selection, since):
        kind, before, after = net["kind"], net["before"], net["after"]
        change = "created" if before is None else "deleted" if after is None else "changed"
        of_kind = counts.setdefault(kind, {})
        of_kind[change] = of_kind.get(change, 0) + 1
        if len(shown) < request.limit:
            values = {"before": raw(before), "after": raw(after)}
            fields = field_changes(before, after)
            shown.append(Difference(**net | values, change=change, fields=fields))
    return DiffResult(begin, end, shown, counts, checkpoint=starting_checkpoint(export))


def render(result: DiffResult, console: Console) -> None:
    """Print the result as text."""
    begin, end = result.begin, result.end
    first = (
        f"offset {begin.offset}, {format_time(begin.timestamp_ms)}"
        if begin is not None
        else "the empty log"
    )
    console.print(f"From {first}, to offset {end.offset}, {format_time(end.timestamp_ms)}")
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    table = listing(
        "",
        result.differences,
        Field("entity", lambda one: f"{one.kind} {one.key}".rstrip()),
        Field("difference", lambda one: words(one.before, one.after, one.fields, one.kind)),
        Field(
            "last changed",
            lambda one: f"{format_time(one.last_timestamp_ms)} at {one.last_offset}",
        ),
        *(() if result.origin else (Field("by", "last_principal", author),)),
    )
    print_listings([table], console)
    counts = "; ".join(
        f"{kind}: {', '.join(f'{count} {change}' for change, count in changes.items())}"
        for kind, changes in result.counts.items()
    )
    differ = counted(result.total, "entity differs", "entities differ")
    rest = more(len(result.differences), result.total)
    console.print(f"{differ}{': ' if counts else ''}{counts}{rest}")
    if result.origin and result.differences:
        console.print(why_nobody(result.origin))
