"""The history of an entity, or of all entities of a kind: each change with its time, principal, and
field values before and after.
"""

from __future__ import annotations

import msgspec
from rich.console import Console

from raftlog.metadata.words import FieldChange, author, field_changes, raw, why_nobody, words
from raftlog.text import counted
from replay.engine.fold import ChangeRange, history
from replay.engine.pool import Pool
from replay.export import Export, StartingCheckpoint, history_start, starting_checkpoint
from replay.request import JobRequest
from replay.selection import select
from replay.text import FIXED, Field, format_time, listing, more, print_listings


class Change(msgspec.Struct, frozen=True):
    """One change to one entity.

    ``before``, ``after``: JSON; null if it did not exist. ``fields``: the changed fields.
    ``principal``: who requested the change, as the request states; "" if the controller itself, or
    if unknown.
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
    """The first changes by offset, of ``total``.

    ``origin``: the kind of cluster that wrote the log; "" for raftlog. ``checkpoint``: where the
    fold started; null for the beginning of the log.
    """

    kind: str
    key: str
    changes: list[Change]
    total: int
    origin: str = ""
    checkpoint: StartingCheckpoint | None = None


def run(export: Export, request: JobRequest, pool: Pool) -> HistoryResult:
    """Fold the groups that contain the key, and keep the changes. Raises ReplayError for a
    malformed key.
    """
    kind, key = request.key or ("", "")
    since = history_start(request)
    wanted = ChangeRange(-1 if since is None else since, request.since_ms)
    found = history(export, pool, select(kind, key), request.limit, wanted)
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
    return HistoryResult(kind, key, shown, found.total, checkpoint=starting_checkpoint(export))


def render(result: HistoryResult, console: Console) -> None:
    """Print the result as text."""
    by = Field("by", lambda one: author(one.principal, one.client_id))
    table = listing(
        "",
        result.changes,
        Field("offset", "offset"),
        Field("time", "timestamp_ms", format_time, FIXED),
        *(() if result.origin else (by,)),
        Field("key", lambda one: f"{one.kind} {one.key}".rstrip()),
        Field("change", lambda one: words(one.before, one.after, one.fields, one.kind)),
    )
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    print_listings([table], console)
    never = "" if result.total else ": never present in the range that was searched"
    console.print(
        f"{counted(result.total, 'change')} to"
        f" {f'{result.kind} {result.key}'.rstrip()}{never}{more(len(result.changes), result.total)}"
    )
    if result.origin and result.changes:
        console.print(why_nobody(result.origin))
