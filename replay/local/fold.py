"""The fold without Spark: each worker folds a bucket of the groups, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import nsmallest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.image import FoldError
from raftlog.metadata.records import EVERY_TOPIC, RecordType
from raftlog.metadata.snapshot import content_hash
from raftlog.metadata.words import to_json
from replay.asked import Asked, groups_of
from replay.beginning import part_of_base, topic_there
from replay.entities import count_entities, entities
from replay.kernels.folding import (
    AUTHOR_COLUMNS,
    COLUMNS,
    Groups,
    Noting,
    Unaccounted,
    rows,
    touched,
)
from replay.local.ends import End, end_of, ends_at
from replay.local.group_shares import GroupShare, group_shares, of_groups, rows_of
from replay.local.pool import Pool
from replay.local.reading import slices
from replay.opened import Export

__all__ = ["Changed", "End", "Folded", "History", "Net", "differing", "end_of",
           "ends_at", "fold", "groups_asked", "history"]  # fmt: skip

_ALWAYS_MS = -(1 << 62)
"""Time before all others."""


class Folded(NamedTuple):
    """Result of a fold: a state hash (of a part: its share), the number of entities of each kind,
    and the first of them: kind, key and JSON.
    """

    state_hash: int
    counts: dict[str, int]
    first: list[tuple[str, str, str]]


class _FoldTask(NamedTuple):
    export: Export
    part: GroupShare
    asked: Asked | None
    limit: int


def fold(export: Export, pool: Pool, *, asked: Asked | None = None, limit: int = 0) -> Folded:
    """Fold all groups, or those of the entities asked for."""
    parts = group_shares(export, groups_asked(export, asked), pool.size)
    tasks = [_FoldTask(export, part, asked, limit) for part in parts]
    return _together(pool.map(_fold, tasks), limit)


def _fold(task: _FoldTask) -> Folded:
    found = [_folded(task, *each) for each in of_groups(task.part)]
    return _together(found, task.limit)


@contextmanager
def _in_order(export: Export) -> Iterator[None]:
    """A record that does not fit the state may only stand in the wrong place of its file.

    Raises CorruptExportError for that instead of FoldError.
    """
    try:
        yield
    except FoldError:
        for _ in slices(export, ("offset",)):
            pass
        raise


def _together(parts: Iterable[Folded], limit: int) -> Folded:
    state_hash, counts, first = 0, dict[str, int](), list[tuple[str, str, str]]()
    for part in parts:
        state_hash += part.state_hash
        first += part.first
        for kind, count in part.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Folded(state_hash & HASH_MASK, dict(sorted(counts.items())), sorted(first)[:limit])


def _folded(task: _FoldTask, groups: Groups, bucket: int | None) -> Folded:
    draft = Unaccounted(part_of_base(task.export, groups))
    with _in_order(task.export):
        for table in rows_of(task.export, bucket, COLUMNS):
            for row in rows(table, groups):
                row.fold(draft)
    image = draft.snapshot()
    if task.asked is None:
        counts, found = count_entities(image), entities(image)
    else:
        asked = task.asked
        chosen = [each for each in entities(image) if asked.has(each[0], each[1])]
        counts = {}
        for kind, _, _ in chosen:
            counts[kind] = counts.get(kind, 0) + 1
        found = iter(chosen)
    first = nsmallest(task.limit, found, key=lambda each: each[:2]) if task.limit else []
    return Folded(
        content_hash(image), counts, [(kind, key, to_json(value)) for kind, key, value in first]
    )


def groups_asked(export: Export, asked: Asked | None) -> Groups:
    """Return the groups of the entities asked for; None: all groups."""
    name = "" if asked is None else asked.topic_name
    return groups_of(asked, _topic_ids(export, name) if name else ())


def _topic_ids(export: Export, name: str) -> set[str]:
    """A name may have belonged to several topics, one after the other."""
    there = topic_there(export, name)
    found = set() if there is None else {there}
    for table in slices(export, ("topic_id", "topic_name"), types=(RecordType.TOPIC,)):
        names = table["topic_name"].cast(pa.string())
        found.update(table.filter(pc.equal(names, name))["topic_id"].to_pylist())
    return found


class Changed(NamedTuple):
    """One change of one entity; ``before`` and ``after`` are JSON, None: it did not exist."""

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


class _ChangeTask(NamedTuple):
    """Task that collects changes behind an offset and from a time on, of the requested entities."""

    export: Export
    part: GroupShare
    asked: Asked | None
    since: int
    since_ms: int = _ALWAYS_MS
    limit: int = 0


def _changes(task: _ChangeTask, groups: Groups, bucket: int | None) -> Iterator[Changed]:
    """Yield the changes by the records of some groups, in order."""
    draft, asked = Noting(part_of_base(task.export, groups)), task.asked
    with _in_order(task.export):
        for table in rows_of(task.export, bucket, COLUMNS + AUTHOR_COLUMNS):
            for row in rows(table, groups, authors=True):
                offset, epoch = row.record[0], row.record[1]
                timestamp_ms, sequence = row.record[5], row.record[6]
                draft.listens = offset > task.since and timestamp_ms >= task.since_ms
                row.fold(draft)
                if draft.changes:
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
    """The first changes by offset, and the number of all."""

    first: list[Changed]
    total: int


def history(
    export: Export,
    pool: Pool,
    asked: Asked,
    limit: int,
    *,
    since: int | None = None,
    since_ms: int | None = None,
) -> History:
    """Return the changes of the entities asked for, behind an offset and from a time on."""
    since = -1 if since is None else since
    since_ms = _ALWAYS_MS if since_ms is None else since_ms
    parts = group_shares(export, groups_asked(export, asked), pool.size)
    tasks = [_ChangeTask(export, part, asked, since, since_ms, limit) for part in parts]
    found = list(pool.map(_history, tasks))
    first = sorted(each for part in found for each in part.first)
    return History(first[:limit], sum(part.total for part in found))


def _history(task: _ChangeTask) -> History:
    first: list[Changed] = []
    total = 0
    for groups, bucket in of_groups(task.part):
        some: list[Changed] = []
        for change in _changes(task, groups, bucket):
            total += 1
            if len(some) < task.limit:
                some.append(change)
        first = sorted([*first, *some])[: task.limit]
    return History(first, total)


class Net(NamedTuple):
    """Net change of an entity: its first state, its last, and the last change."""

    kind: str
    key: str
    before: str | None
    after: str | None
    changes: int
    last: Changed

    @property
    def change(self) -> str:
        """Name of the change: created, changed or deleted."""
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


def differing(export: Export, pool: Pool, asked: Asked | None, since: int) -> list[Net]:
    """Return the entities that are not what they were behind an offset, by kind and key.

    Only the groups that a record behind it changes are folded.
    """
    parts = group_shares(export, groups_asked(export, asked), pool.size)
    tasks = [_ChangeTask(export, part, asked, since) for part in parts]
    found = pool.map(_differing, tasks)
    return sorted((each for part in found for each in part), key=lambda each: each[:2])


def _differing(task: _ChangeTask) -> list[Net]:
    nets: dict[tuple[str, str], Net] = {}
    for groups, bucket in of_groups(task.part):
        some = _moved(task, groups, bucket) if task.since >= 0 else groups
        for change in _changes(task, some, bucket):
            name = change.kind, change.key
            old = nets.get(name)
            before, count = (change.before, 0) if old is None else (old.before, old.changes)
            nets[name] = Net(*name, before, change.after, count + 1, change)
    return [net for net in nets.values() if net.before != net.after]


def _moved(task: _ChangeTask, groups: Groups, bucket: int | None) -> Groups:
    """Return those of the groups that a record behind the offset may change."""
    behind = [each for each in task.export.segments if each.last_offset > task.since]
    moved: set[tuple[str, str]] = set()
    for table in rows_of(task.export, bucket, COLUMNS[:2] + _TOUCH_COLUMNS, behind):
        moved |= touched(table.filter(pc.greater(table["offset"], task.since)), groups)
    if EVERY_TOPIC in moved:
        return groups
    return groups._replace(wanted=frozenset(moved))


_TOUCH_COLUMNS = ("offset", "client_id", "sequence")
