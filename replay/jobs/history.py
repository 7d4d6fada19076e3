"""The history of one entity, or of all of a kind: each change with its time, its principal, and the
value of each field before and after.
"""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.table import Column, Table

from raftlog.metadata.words import FieldChange, author, field_changes, raw, why_nobody, words
from raftlog.text import counted
from replay.engine.fold import ChangeRange, history
from replay.engine.pool import Pool
from replay.export import Began, Export, began, require_whole_history, since_of
from replay.request import JobRequest, format_time
from replay.selection import select


class Change(msgspec.Struct, frozen=True):
    """One change of one entity.

    ``before`` and ``after`` are JSON; null: it was not there. ``fields``: what of it changed.

    ``principal``: who asked for it, as that said; empty: the controller by itself, or nobody said.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    client_id: int
    sequence: int
    type_name: str
    kind: str
    key: str
    before: msgspec.Raw
    after: msgspec.Raw
    fields: list[FieldChange]


class HistoryResult(msgspec.Struct, frozen=True):
    """The first changes in order of offsets, and how many there are.

    ``origin``: what kind of cluster's log it is, empty for raftlog's own.
    ``checkpoint``: what the fold began with; null: at the beginning.
    """

    kind: str
    key: str
    changes: list[Change]
    total: int
    origin: str = ""
    checkpoint: Began | None = None


def run(export: Export, request: JobRequest, pool: Pool) -> HistoryResult:
    """Fold the groups that the key is in, and keep what changed.

    Raises ReplayError for a key of no known form.
    """
    require_whole_history(export)
    kind, key = request.key or ("", "")
    since = since_of(request)
    wanted = ChangeRange(-1 if since is None else since, request.since_ms)
    found = history(
        export, pool, select(kind, key), request.limit, wanted, tasks=request.partitions
    )
    shown = [
        Change(
            **one
            | {
                "before": raw(one["before"]),
                "after": raw(one["after"]),
                "fields": field_changes(one["before"], one["after"]),
            }
        )
        for one in found.first
    ]
    return HistoryResult(kind, key, shown, found.total, checkpoint=began(export))


def render(result: HistoryResult, console: Console) -> None:
    """Print the result for people."""
    table = Table(
        "offset",
        Column("time", no_wrap=True),
        *(() if result.origin else ("by",)),
        Column("key", overflow="fold"),
        Column("change", overflow="fold"),
    )
    for change in result.changes:
        table.add_row(
            str(change.offset),
            format_time(change.timestamp_ms),
            *(() if result.origin else (author(change.principal, change.client_id),)),
            f"{change.kind} {change.key}".rstrip(),
            words(change.before, change.after, change.fields, change.kind),
        )
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    if result.changes:
        console.print(table)
    more = (
        f" ({len(result.changes)} shown: raise --limit for more)"
        if len(result.changes) < result.total
        else ""
    )
    never = "" if result.total else ": the log never had it, as far as asked"
    console.print(
        f"{counted(result.total, 'change')} of"
        f" {f'{result.kind} {result.key}'.rstrip()}{never}{more}"
    )
    if result.origin and result.changes:
        console.print(why_nobody(result.origin))


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("history"))
