"""The state at an offset or time: all entities with the state hash that the nodes had at that
point, all entities of a kind, or one entity.
"""

from __future__ import annotations

import msgspec
from rich.console import Console

from raftlog.metadata.entities import format_hash
from raftlog.metadata.imported import PARTITION_DETAIL
from raftlog.metadata.words import acl_in_words, brief
from raftlog.segments.manifest import KAFKA
from raftlog.text import counted
from replay.engine.fold import fold
from replay.engine.pool import Pool
from replay.engine.reading import end_of
from replay.export import Export, StartingCheckpoint, starting_checkpoint
from replay.request import JobRequest
from replay.selection import select
from replay.text import Field, format_time, listing, more, print_listings


class Point(msgspec.Struct, frozen=True):
    """The end of the records in question: the last record's offset, epoch and time, and the number
    of records.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    records: int


class EntityRow(msgspec.Struct, frozen=True):
    """One entity; ``value`` is JSON."""

    kind: str
    key: str
    value: msgspec.Raw


class StateResult(msgspec.Struct, frozen=True):
    """The state at a point. ``rows``: the first entities by kind and key. ``entities``: kind ->
    number.

    ``asked``: the requested kind and key, or null for everything; if given, ``state_hash`` is "",
    as it covers everything. ``checkpoint``: where the fold started; null for the beginning of the
    log.
    """

    point: Point
    state_hash: str
    entities: dict[str, int]
    rows: list[EntityRow]
    asked: tuple[str, str] | None = None
    checkpoint: StartingCheckpoint | None = None


def run(export: Export, request: JobRequest, pool: Pool) -> StateResult:
    """Fold once and return the first entities. Raises ReplayError for a malformed key."""
    selection = None if request.key is None else select(*request.key)
    point = Point(*end_of(export))
    folded = fold(export, pool, selection=selection, limit=request.limit)
    rows = [EntityRow(kind, key, msgspec.Raw(value.encode())) for kind, key, value in folded.first]
    kind, key = request.key or ("", "")
    if export.manifest.origin == KAFKA and kind == "partition":
        details = fold(export, pool, selection=select(PARTITION_DETAIL, key), limit=request.limit)
        rows = _with_details(rows, {key: value for _, key, value in details.first})
    state_hash = format_hash(folded.state_hash) if selection is None else ""
    return StateResult(
        point, state_hash, folded.counts, rows, request.key, starting_checkpoint(export)
    )


def _with_details(rows: list[EntityRow], details: dict[str, str]) -> list[EntityRow]:
    """Add to Kafka's partitions the fields that Kafka's own tools show."""
    found = []
    for row in rows:
        detail = msgspec.json.decode(details.get(row.key, "{}"))
        more = {
            "elr": detail.get("eligible_leader_replicas", []),
            "last_known_elr": detail.get("last_known_elr", []),
            "directories": detail.get("directories", []),
        }
        value = msgspec.json.encode(msgspec.json.decode(row.value) | more)
        found.append(EntityRow(row.kind, row.key, msgspec.Raw(value)))
    return found


def _in_words(row: EntityRow) -> str:
    """Return one line per field, or a sentence for an ACL entry."""
    value = msgspec.json.decode(row.value)
    if row.kind == "acl":
        return acl_in_words(value)
    fields = value.items() if isinstance(value, dict) else ()
    return "\n".join(f"{name}: {brief(field)}" for name, field in fields) or brief(value)


def render(result: StateResult, console: Console) -> None:
    """Print the result as text."""
    point = result.point
    console.print(
        f"State at offset {point.offset}, epoch {point.epoch}, {format_time(point.timestamp_ms)}"
    )
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    if result.asked is not None:
        _render_some(result, result.asked, console)
        return
    console.print(f"State hash {result.state_hash}")
    value = Field("value", "value", lambda raw: bytes(raw).decode())
    table = listing("", result.rows, Field("kind", "kind"), Field("key", "key"), value)
    console.print(table.table())
    console.print(_counted(result))


def _render_some(result: StateResult, asked: tuple[str, str], console: Console) -> None:
    name = " ".join(asked).strip()
    if not result.rows:
        console.print(f"{name} did not exist at that point")
        return
    entity = Field("entity", lambda row: f"{row.kind} {row.key}".rstrip())
    print_listings([listing("", result.rows, entity, Field("value", _in_words))], console)
    console.print(_counted(result))


def _counted(result: StateResult) -> str:
    total = sum(result.entities.values())
    counts = ", ".join(f"{count} {kind}" for kind, count in result.entities.items())
    rest = more(len(result.rows), total)
    return f"{counted(total, 'entity', 'entities')}: {counts}{rest}"
