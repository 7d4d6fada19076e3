"""The parallel fold: the code of :mod:`raftlog.metadata`, with a bucket of entity groups per task.

A record changes one entity group, and groups are independent. So each bucket folds into its own
draft, in log order, from the empty state or its part of a checkpoint. A bucket's state hash is its
share of the whole image's: shares add up modulo 2**128.

See docs/decisions/020-one-fold-everywhere.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import accumulate, islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.fold import FileBuilder, ImageBuilder
from raftlog.metadata.image import FoldError, Image
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import content_hash
from raftlog.metadata.words import to_json
from raftlog.segments.manifest import Segment
from replay.engine.plan import Bucket, ByGroup, Shuffle, stretches
from replay.engine.pool import Pool
from replay.engine.reading import slices
from replay.export import Export, base_of_groups, base_topic_id
from replay.kernels.arrays import typed
from replay.kernels.folding import (
    AUTHOR_COLUMNS,
    COLUMNS,
    Groups,
    RecordingDraft,
    UnhashedDraft,
    count_entities,
    entities,
    rows,
)
from replay.selection import Selection, groups_of

_HASH_BYTES = 16
_BYTES = pa.binary()
_TEXTS = dict.fromkeys(("kind", "key", "value", "before", "after", "last_principal"), pa.string())
FOLDED = typed("kind", "key", "value", "entities", "hash", **_TEXTS, hash=_BYTES)
"""Columns of a folded bucket: its first entities, the number of each kind, and its state hash."""
CHANGED = typed(
    "offset", "epoch", "timestamp_ms", "principal", "client_id", "sequence", "type_name", "kind",
    "key", "before", "after", **_TEXTS,
)  # fmt: skip
"""Columns of entity changes: the record's offset, epoch, time and author; the entity; and its JSON
before and after the change, null if it did not exist.
"""
_COUNTED = CHANGED.append(pa.field("total", pa.int64()))
"""Columns of changes, followed by one extra row that contains only their number."""
NET = typed(
    "kind", "key", "before", "after", "changes", "last_offset", "last_timestamp_ms",
    "last_principal", **_TEXTS,
)  # fmt: skip
"""Columns of net entity changes: the state before and after, the number of changes, and the last
one.
"""
_HASHED = typed("stretch", "hash", hash=_BYTES)


class Folded(NamedTuple):
    """Result of a fold: the state hash, the number of entities per kind, and the first entities as
    kind, key and JSON.
    """

    state_hash: int
    counts: dict[str, int]
    first: list[tuple[str, str, str]]


def fold(
    export: Export,
    pool: Pool,
    *,
    selection: Selection | None = None,
    limit: int = 0,
    tasks: int | None = None,
) -> Folded:
    """Fold all groups, or those of the selected entities. ``tasks``: number of tasks, which does
    not affect the result.
    """
    groups = selected_groups(export, pool, selection)
    work = partial(_fold, export, groups, selection, limit)
    found = pool.bucket_rows(work, _shuffle(export, groups, tasks), FOLDED)
    state_hash, counts = 0, Counter[str]()
    first: list[tuple[str, str, str]] = []
    for kind, key, value, count, share in _tuples(found):
        if share is not None:
            state_hash += int.from_bytes(share, "big")
        elif count is not None:
            counts[kind] += count
        else:
            first.append((kind, key, value))
    return Folded(state_hash & HASH_MASK, dict(sorted(counts.items())), sorted(first)[:limit])


def _shuffle(
    export: Export, groups: Groups, tasks: int | None = None, columns: tuple[str, ...] = COLUMNS
) -> Shuffle:
    return Shuffle(export, columns, ByGroup(groups), buckets=tasks)


def _fold(
    export: Export, groups: Groups, selection: Selection | None, limit: int, bucket: Bucket
) -> pa.Table:
    groups = groups._replace(bucket=bucket.number, buckets=bucket.of)
    image = _folded(UnhashedDraft(base_of_groups(export, groups)), export, groups, bucket)
    there: Iterable[tuple[str, str, Any]] = entities(image)
    if selection is None:
        counts: dict[str, int] = count_entities(image)
    else:
        there = [each for each in there if selection.has(each[0], each[1])]
        counts = Counter(kind for kind, _, _ in there)
    first = nsmallest(limit, there, key=lambda each: each[:2]) if limit else []
    found = [(kind, key, to_json(value), None, None) for kind, key, value in first]
    totals = [(kind, None, None, count, None) for kind, count in counts.items()]
    return _table([*found, *totals, ("", None, None, 0, _share(content_hash(image)))], FOLDED)


def _folded(draft: ImageBuilder, export: Export, groups: Groups, bucket: Bucket) -> Image:
    with _order_checked(export):
        for table in bucket.tables:
            for row in rows(table, groups):
                row.fold(draft)
    return draft.snapshot()


def _share(state_hash: int) -> bytes:
    return (state_hash & HASH_MASK).to_bytes(_HASH_BYTES, "big")


def _table(found: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


@contextmanager
def _order_checked(export: Export) -> Iterator[None]:
    """On a FoldError, check whether records are merely out of order in their file, and raise
    CorruptExportError in that case.
    """
    try:
        yield
    except FoldError:
        for _ in slices(export, ("offset",)):
            pass
        raise


def selected_groups(export: Export, pool: Pool, selection: Selection | None) -> Groups:
    """Return the groups of the selected entities, or all groups if the selection is None."""
    if selection is None or not selection.topic_name:
        return groups_of(selection, ())
    # Several topics may have had the name at different times.
    name = selection.topic_name
    there = base_topic_id(export, name)
    parts = pool.map(partial(_topic_ids, export, name), stretches(export, pool.stretches(export)))
    found = {each for part in parts for each in part}
    return groups_of(selection, found if there is None else {*found, there})


def _topic_ids(export: Export, name: str, segments: list[Segment]) -> list[str]:
    found: list[str] = []
    columns = ("topic_id", "topic_name")
    for table in slices(export, columns, types=(RecordType.TOPIC,), segments=segments):
        names = table["topic_name"].cast(pa.string())
        found += table.filter(pc.equal(names, name))["topic_id"].to_pylist()
    return found


def state_hashes(
    export: Export, pool: Pool, offsets: Iterable[int], *, tasks: int | None = None
) -> dict[int, int]:
    """Return the state hash at each of the given offsets, from one fold from the beginning.

    An offset inside a batch or after the log end stands for the end of the last whole batch before
    it. Each task sums the hash changes of its groups between consecutive offsets, where a change
    counts at its batch's last offset. The running totals of these sums over all tasks are the
    hashes.
    """
    ascending = sorted(set(offsets))
    if not ascending:
        return {}
    cut = replace(export, at_offset=ascending[-1], begin=None)
    work = partial(_hash_shares, ascending)
    found = pool.bucket_rows(work, _shuffle(cut, Groups(), tasks), _HASHED)
    totals = [0] * len(ascending)
    for stretch, share in _tuples(found):
        totals[stretch] += int.from_bytes(share, "big")
    hashes = (each & HASH_MASK for each in accumulate(totals))
    return dict(zip(ascending, hashes, strict=True))


def _hash_shares(ascending: list[int], bucket: Bucket) -> pa.Table:
    draft = FileBuilder(Image())
    shares: Counter[int] = Counter()
    groups = Groups(bucket=bucket.number, buckets=bucket.of)
    for table in bucket.tables:
        for row in rows(table, groups):
            before = draft.state_hash
            row.fold(draft)
            if draft.state_hash != before:
                stretch = bisect_left(ascending, row.batch_last_offset)
                shares[stretch] += draft.state_hash - before
    return _table([(stretch, _share(share)) for stretch, share in shares.items()], _HASHED)


class ChangeRange(NamedTuple):
    """Changes after offset ``since`` and not before ``since_ms``; None for any time."""

    since: int = -1
    since_ms: int | None = None


def _changes(
    export: Export,
    groups: Groups,
    selection: Selection | None,
    wanted: ChangeRange,
    bucket: Bucket,
) -> Iterator[tuple[Any, ...]]:
    """Yield the changes by the records of a bucket in order, as rows of CHANGED."""
    groups = groups._replace(bucket=bucket.number, buckets=bucket.of)
    draft = RecordingDraft(base_of_groups(export, groups))
    since, since_ms = wanted
    with _order_checked(export):
        for table in bucket.tables:
            for row in rows(table, groups, authors=True):
                offset, epoch, _, _, _, timestamp_ms, sequence, _ = row.record
                draft.recording = offset > since and (since_ms is None or timestamp_ms >= since_ms)
                row.fold(draft)
                if not draft.changes:
                    continue
                client_id, principal, type_name = row.author
                for kind, key, old, new in draft.changes:
                    if selection is None or selection.has(kind, key):
                        yield (
                            offset, epoch, timestamp_ms, principal, client_id, sequence, type_name,
                            kind, key, _json(old), _json(new),
                        )  # fmt: skip
                draft.changes.clear()


def _json(value: Any) -> str | None:
    return None if value is None else to_json(value)


def change_work(export: Export) -> tuple[Callable[[Bucket], Iterator[pa.Table]], Shuffle]:
    """Return the work that yields all changes of a bucket as CHANGED tables, and its shuffle."""
    shuffle = _shuffle(export, Groups(), columns=COLUMNS + AUTHOR_COLUMNS)
    return partial(_all_changes, export), shuffle


_CHANGES_AT_ONCE = 4096


def _all_changes(export: Export, bucket: Bucket) -> Iterator[pa.Table]:
    found = _changes(export, Groups(), None, ChangeRange(), bucket)
    while some := list(islice(found, _CHANGES_AT_ONCE)):
        yield _table(some, CHANGED)


class History(NamedTuple):
    """The first changes by offset, as rows of CHANGED, and the number of all changes."""

    first: list[dict[str, Any]]
    total: int


def history(
    export: Export,
    pool: Pool,
    selection: Selection,
    limit: int,
    wanted: ChangeRange,
) -> History:
    """Return the changes to the selected entities."""
    groups = selected_groups(export, pool, selection)
    work = partial(_history, export, groups, selection, wanted, limit)
    shuffle = _shuffle(export, groups, columns=COLUMNS + AUTHOR_COLUMNS)
    found = pool.bucket_rows(work, shuffle, _COUNTED)
    total = pc.sum(found["total"]).as_py() or 0
    order = [(name, "ascending") for name in ("offset", "kind", "key")]
    changes = found.filter(pc.is_null(found["total"])).drop_columns("total").sort_by(order)
    return History(changes.slice(0, limit).to_pylist(), total)


def _history(
    export: Export,
    groups: Groups,
    selection: Selection,
    wanted: ChangeRange,
    limit: int,
    bucket: Bucket,
) -> pa.Table:
    first: list[tuple[Any, ...]] = []
    total = 0
    for change in _changes(export, groups, selection, wanted, bucket):
        total += 1
        # Keep all changes of the last record: the limit applies in order of kind and key.
        if len(first) < limit or (first and first[-1][0] == change[0]):
            first.append((*change, None))
    return _table([*first, (*[None] * len(CHANGED), total)], _COUNTED)


def differing(
    export: Export,
    pool: Pool,
    selection: Selection | None,
    since: int,
) -> list[dict[str, Any]]:
    """Return the entities that differ from their state after an offset, by kind and key, as rows of
    NET.
    """
    groups = selected_groups(export, pool, selection)
    work = partial(_differing, export, groups, selection, since)
    shuffle = _shuffle(export, groups, columns=COLUMNS + AUTHOR_COLUMNS)
    found = pool.bucket_rows(work, shuffle, NET)
    rows_: list[dict[str, Any]] = found.sort_by(
        [("kind", "ascending"), ("key", "ascending")]
    ).to_pylist()
    return rows_


def _differing(
    export: Export, groups: Groups, selection: Selection | None, since: int, bucket: Bucket
) -> pa.Table:
    nets: dict[tuple[str, str], tuple[Any, ...]] = {}
    for change in _changes(export, groups, selection, ChangeRange(since), bucket):
        offset, _, timestamp_ms, principal, *_, kind, key, before, after = change
        old = nets.get((kind, key))
        begun, count = (before, 0) if old is None else (old[2], old[4])
        nets[kind, key] = kind, key, begun, after, count + 1, offset, timestamp_ms, principal
    return _table([net for net in nets.values() if net[2] != net[3]], NET)
