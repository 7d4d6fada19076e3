"""The fold without Spark: each worker folds a bucket of the groups, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.changes import ChangeRecorder
from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.entity_words import to_json
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import content_hash
from replay.asked import TOPIC, Asked
from replay.beginning import base_of
from replay.entities import count_entities, entities
from replay.errors import ReplayError
from replay.kernels.arrays import ints
from replay.kernels.folding import AUTHOR_COLUMNS, COLUMNS, Groups, Unaccounted, rows, touched
from replay.local.pool import Pool
from replay.local.reading import slices
from replay.opened import Export

_ALWAYS_MS = -(1 << 62)
"""Before all times."""
_POINT_COLUMNS = ("offset", "epoch", "timestamp_ms", "batch_last_offset")


class End(NamedTuple):
    """How far records reach: the last one's offset, epoch and time, and how many there are."""

    offset: int
    epoch: int
    timestamp_ms: int
    records: int


def ends_at(
    export: Export, *, until_offset: int | None = None, until_ms: int | None = None
) -> End | None:
    """Where the records end, of whole batches up to an offset or a time; None: there are none."""
    offset, epoch, timestamp_ms, count = -1, 0, 0, 0
    if (begin := export.begin) is not None:
        offset, epoch, timestamp_ms = begin.offset, begin.epoch, begin.timestamp_ms
        count = begin.offset + 1 - export.manifest.history_begin
    for table in slices(export, _POINT_COLUMNS):
        part = table
        if until_offset is not None:
            part = part.filter(pc.less_equal(part["batch_last_offset"], until_offset))
        if until_ms is not None:
            part = part.filter(pc.less_equal(part["timestamp_ms"], until_ms))
        if part.num_rows:
            offset = max(offset, int(ints(part["offset"]).max()))
            epoch = max(epoch, int(ints(part["epoch"]).max()))
            timestamp_ms = max(timestamp_ms, int(ints(part["timestamp_ms"]).max()))
            count += part.num_rows
    return End(offset, epoch, timestamp_ms, count) if count else None


def end_of(export: Export) -> End:
    """Where the records in question end. Raises ReplayError if there are none."""
    end = ends_at(export)
    if end is None:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return end


class Folded(NamedTuple):
    """A state hash (of a part: its share), how many entities there are of each kind, and the first
    of them: kind, key and JSON.
    """

    state_hash: int
    counts: dict[str, int]
    first: list[tuple[str, str, str]]


class _FoldTask(NamedTuple):
    export: Export
    groups: Groups
    asked: Asked | None
    limit: int


def fold(export: Export, pool: Pool, *, asked: Asked | None = None, limit: int = 0) -> Folded:
    """Fold all groups, or those of the entities asked for."""
    groups = groups_of(export, asked)
    # A state to go on from is whole: it has no buckets.
    buckets = pool.size if export.begin is None else 1
    tasks = [
        _FoldTask(export, groups._replace(bucket=bucket, buckets=buckets), asked, limit)
        for bucket in range(buckets)
    ]
    state_hash, counts, first = 0, dict[str, int](), list[tuple[str, str, str]]()
    for part in pool.map(_fold, tasks):
        state_hash += part.state_hash
        first += part.first
        for kind, count in part.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Folded(state_hash & HASH_MASK, dict(sorted(counts.items())), sorted(first)[:limit])


def _fold(task: _FoldTask) -> Folded:
    draft = Unaccounted(base_of(task.export))
    for table in slices(task.export, COLUMNS):
        for row in rows(table, task.groups):
            row.fold(draft)
    image = draft.snapshot()
    if task.asked is None:
        counts, found = count_entities(image), entities(image)
    else:
        asked = task.asked
        chosen = [each for each in entities(image) if asked.has(each[0], each[1])]
        if task.export.begin is not None:
            imported = bool(task.export.manifest.origin)
            chosen = [each for each in chosen if asked.is_in_groups(*each[:2], imported=imported)]
        counts = {}
        for kind, _, _ in chosen:
            counts[kind] = counts.get(kind, 0) + 1
        found = iter(chosen)
    first = nsmallest(task.limit, found, key=lambda each: each[:2]) if task.limit else []
    return Folded(
        content_hash(image), counts, [(kind, key, to_json(value)) for kind, key, value in first]
    )


def groups_of(export: Export, asked: Asked | None) -> Groups:
    """The groups that the entities asked for are in; all of them for None."""
    if asked is None:
        return Groups()
    kind, id_ = asked.group
    if not asked.topic_name:
        wanted = None if id_ is None else frozenset({(kind, id_)})
        return Groups(frozenset({kind}), wanted)
    topics = frozenset((TOPIC, each) for each in _topic_ids(export, asked.topic_name))
    if not asked.topic_types:
        return Groups(frozenset({TOPIC}), topics)
    own = frozenset({(kind, id_ or "")})
    return Groups(
        frozenset({kind, TOPIC}), topics | own, types={TOPIC: frozenset(asked.topic_types)}
    )


def _topic_ids(export: Export, name: str) -> set[str]:
    """A name may have belonged to several topics, one after the other."""
    there = base_of(export).topic_ids.get(name)
    found = set() if there is None else {there.hex()}
    for table in slices(export, ("topic_id", "topic_name"), types=(RecordType.TOPIC,)):
        names = table["topic_name"].cast(pa.string())
        found.update(table.filter(pc.equal(names, name))["topic_id"].to_pylist())
    return found


class Changed(NamedTuple):
    """One change of one entity; ``before`` and ``after`` are JSON, None: it was not there."""

    offset: int
    kind: str
    key: str
    epoch: int
    timestamp_ms: int
    principal: str
    client_id: int
    sequence: int
    type_name: str
    before: str | None
    after: str | None


def changes(
    export: Export, groups: Groups, asked: Asked | None, since: int, since_ms: int = _ALWAYS_MS
) -> Iterator[Changed]:
    """What the records behind an offset, and from a time on, changed, of the entities asked for, in
    order.
    """
    draft = ChangeRecorder(base_of(export))
    for table in slices(export, COLUMNS + AUTHOR_COLUMNS):
        for row in rows(table, groups, authors=True):
            row.fold(draft)
            offset, epoch = row.record[0], row.record[1]
            timestamp_ms, sequence = row.record[5], row.record[6]
            if offset > since and timestamp_ms >= since_ms:
                client_id, principal, type_name = row.author
                for kind, key, old, new in draft.changes:
                    if asked is None or asked.has(kind, key):
                        yield Changed(
                            offset, kind, key, epoch, timestamp_ms, principal, client_id,
                            sequence, type_name, *(_json(old), _json(new)),
                        )  # fmt: skip
            draft.changes.clear()


def _json(value: Any) -> str | None:
    return None if value is None else to_json(value)


class History(NamedTuple):
    """The first changes by offset, and how many there are."""

    first: list[Changed]
    total: int


class _ChangeTask(NamedTuple):
    export: Export
    groups: Groups
    asked: Asked | None
    since: int
    since_ms: int
    limit: int


def history(
    export: Export,
    pool: Pool,
    asked: Asked,
    limit: int,
    *,
    since: int | None = None,
    since_ms: int | None = None,
) -> History:
    """The changes of the entities asked for, behind an offset and from a time on."""
    since = -1 if since is None else since
    since_ms = _ALWAYS_MS if since_ms is None else since_ms
    tasks = _change_tasks(export, pool, asked, since, limit, since_ms=since_ms)
    found = list(pool.map(_history, tasks))
    first = sorted(each for part in found for each in part.first)
    return History(first[:limit], sum(part.total for part in found))


def _change_tasks(
    export: Export,
    pool: Pool,
    asked: Asked | None,
    since: int,
    limit: int,
    *,
    since_ms: int = _ALWAYS_MS,
) -> list[_ChangeTask]:
    groups = groups_of(export, asked)
    buckets = [groups._replace(bucket=bucket, buckets=pool.size) for bucket in range(pool.size)]
    return [_ChangeTask(export, each, asked, since, since_ms, limit) for each in buckets]


def _history(task: _ChangeTask) -> History:
    first: list[Changed] = []
    total = 0
    for change in changes(task.export, task.groups, task.asked, task.since, task.since_ms):
        total += 1
        if len(first) < task.limit:
            first.append(change)
    return History(first, total)


class Net(NamedTuple):
    """What became of an entity: its first state, its last, and the last change."""

    kind: str
    key: str
    before: str | None
    after: str | None
    changes: int
    last: Changed

    @property
    def change(self) -> str:
        """In a word."""
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


def differing(export: Export, pool: Pool, asked: Asked | None, since: int) -> list[Net]:
    """The entities that are not what they were behind an offset, by kind and key.

    Only the groups that a record behind it changes are folded.
    """
    found = pool.map(_differing, _change_tasks(export, pool, asked, since, 0))
    return sorted((each for part in found for each in part), key=lambda each: each[:2])


def _differing(task: _ChangeTask) -> list[Net]:
    groups = task.groups
    if task.since >= 0:
        moved: set[tuple[str, str]] = set()
        for table in slices(task.export, COLUMNS[:2] + _TOUCH_COLUMNS):
            moved |= touched(table.filter(pc.greater(table["offset"], task.since)), groups)
        groups = groups._replace(wanted=frozenset(moved))
    nets: dict[tuple[str, str], Net] = {}
    for change in changes(task.export, groups, task.asked, task.since):
        name = change.kind, change.key
        old = nets.get(name)
        before, count = (change.before, 0) if old is None else (old.before, old.changes)
        nets[name] = Net(*name, before, change.after, count + 1, change)
    return [net for net in nets.values() if net.before != net.after]


_TOUCH_COLUMNS = ("offset", "client_id", "sequence")
