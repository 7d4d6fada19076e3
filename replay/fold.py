"""The fold in parallel: the code of :mod:`raftlog.metadata`, one entity group at a time.

A record changes one entity group, and groups know nothing of each other. So rows are brought
together by group, sorted by offset, and each group is folded from nothing in a draft of its own:
memory is one group's state, whatever the history's length. The state hash of a group is its share
of the whole image's, and shares add up modulo 2**128: each task adds up its own and hands over one
row a kind, and the driver adds up those.

Why: docs/decisions/020-one-fold-everywhere.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import EVERY_TOPIC
from raftlog.metadata.snapshot import content_hash
from replay.entities import count_entities, entities, to_json
from replay.kernels.folding import IDENTITY, Unaccounted, apply_row
from replay.workers import prepare_worker

FOLD_COLUMNS = (
    "group_kind",
    "group_id",
    "offset",
    "epoch",
    "type",
    "version",
    "body",
    "timestamp_ms",
    "sequence",
    "all_below_done",
)
"""Columns of a row that a fold needs; the last three are the batch's, for ``apply_row``."""
_FOLDED = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("entities", pa.int64()),
        ("hash", pa.binary()),
    ]
)
_FOLDED_DDL = "kind string, key string, value string, entities long, hash binary"
_HASH_BYTES = 16
_ROWS = 4096

Folder = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Totals(NamedTuple):
    """Totals of a fold: the image's state hash, and the number of entities of each kind."""

    state_hash: int
    entities: dict[str, int]


def by_group(
    records: DataFrame,
    columns: tuple[str, ...],
    partitions: int | None,
    *,
    only: Column | None = None,
    since: int | None = None,
    base: DataFrame | None = None,
    imported: bool = False,
) -> DataFrame:
    """Return the rows that change something, each group whole in one task and ordered by offset.

    ``only``: a condition on group_kind and group_id; ``since``: only groups that a record behind
    this offset changes. ``base``: the state that the records continue (replay/based.py).
    ``imported``: the log is imported, so that a record may change every topic.

    A batch that names a client changes that client's group by its header, whatever its records
    change: one more row, IDENTITY.
    """
    rows = records.where(sf.col("group_kind").isNotNull()).select(*columns)
    rows = rows.unionByName(_identities(records, columns))
    if base is not None:
        rows = rows.unionByName(base.select(*columns))
    if imported:
        rows = _for_each_topic(rows)
    if only is not None:
        rows = rows.where(only)
    keys = ("group_id", "group_kind")
    if since is not None:
        changed = rows.where(sf.col("offset") > since).select(*keys).distinct()
        rows = rows.join(changed, [*keys], "left_semi").select(*columns)
    rows = rows.repartition(*keys) if partitions is None else rows.repartition(partitions, *keys)
    # group_id first: it differs within the eight bytes that Spark compares before it looks closer.
    return rows.sortWithinPartitions(*keys, "offset", "type")


def _for_each_topic(rows: DataFrame) -> DataFrame:
    """Put a copy of each record that changes every topic into the group of each topic."""
    of_topics = sf.col("group_kind") == EVERY_TOPIC.kind
    of_every = of_topics & (sf.col("group_id") == EVERY_TOPIC.id)
    topics = rows.where(of_topics & ~of_every).select("group_id").distinct()
    copies = rows.where(of_every).drop("group_id").crossJoin(topics)
    return rows.where(~of_every).unionByName(copies.select(*rows.columns))


def _identities(records: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    of_batch = (
        (sf.col("client_id") != 0)
        & (sf.col("sequence") != 0)
        & (sf.col("offset") == sf.col("batch_last_offset"))
    )
    instead = {
        "group_kind": sf.lit("client"),
        "group_id": sf.col("client_id").cast("string"),
        "type": sf.lit(IDENTITY),
        "body": sf.lit(b""),
    }
    named = [instead[name].alias(name) if name in instead else sf.col(name) for name in columns]
    return records.where(of_batch).select(*named)


def fold(
    records: DataFrame,
    *,
    partitions: int | None = None,
    with_entities: bool,
    only: Column | None = None,
    base: DataFrame | None = None,
    imported: bool = False,
) -> DataFrame:
    """Fold: one row an entity (kind, key, value as JSON) if asked for, and for each task and kind
    one with ``hash`` and ``entities``.

    ``only``, ``base``, ``imported``: see ``by_group``.
    """
    rows = by_group(records, FOLD_COLUMNS, partitions, only=only, base=base, imported=imported)
    return rows.mapInArrow(_folder(with_entities=with_entities), _FOLDED_DDL)


def totals(folded: DataFrame) -> Totals:
    """Add up what the tasks handed over: a few rows a task."""
    rows = folded.where(sf.col("hash").isNotNull()).select("kind", "entities", "hash").collect()
    return add_up(rows)


def add_up(rows: list[Row]) -> Totals:
    """Return the totals of the tasks' rows, in any order."""
    counts: dict[str, int] = {}
    state_hash = 0
    for row in rows:
        state_hash += int.from_bytes(row["hash"], "big")
        if row["entities"]:
            counts[row["kind"]] = counts.get(row["kind"], 0) + row["entities"]
    return Totals(state_hash & HASH_MASK, dict(sorted(counts.items())))


class _GroupFold:
    """Fold of groups, one after the other; it collects their rows."""

    def __init__(self, *, with_entities: bool) -> None:
        self.rows: list[tuple[str, str | None, str | None, int | None, bytes | None]] = []
        self._with_entities = with_entities
        self._nothing = Image()
        self._draft: ImageBuilder | None = None
        self._counts: dict[str, int] = {}
        self._state_hash = 0

    def start(self) -> ImageBuilder:
        """Return a draft for the next group."""
        self.finish()
        self._draft = Unaccounted(self._nothing)
        return self._draft

    def finish(self) -> None:
        """Account the group that has ended."""
        if self._draft is None:
            return
        image = self._draft.snapshot()
        self._draft = None
        self._state_hash += content_hash(image)
        for kind, count in count_entities(image).items():
            self._counts[kind] = self._counts.get(kind, 0) + count
        if self._with_entities:
            self.rows += [
                (kind, key, to_json(value), None, None) for kind, key, value in entities(image)
            ]

    def add_totals(self) -> None:
        """One row a kind of entity; the hash is in one more, of no kind."""
        self.finish()
        nothing = bytes(_HASH_BYTES)
        self.rows += [
            (kind, None, None, count, nothing) for kind, count in sorted(self._counts.items())
        ]
        share = (self._state_hash & HASH_MASK).to_bytes(_HASH_BYTES, "big")
        self.rows.append(("", None, None, 0, share))

    def take(self) -> pa.RecordBatch:
        """Return the rows so far, as a batch."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(_FOLDED)
        self.rows = []
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _FOLDED, strict=True)
        ]
        return pa.record_batch(arrays, schema=_FOLDED)


def _folder(*, with_entities: bool) -> Folder:
    def fold_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        groups = _GroupFold(with_entities=with_entities)
        current = ("", "")
        draft: ImageBuilder = Unaccounted(Image())
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in FOLD_COLUMNS)
            for kind, id_, *row in zip(*columns, strict=True):
                # By the id first: most groups that follow each other are of one kind.
                if id_ != current[1] or kind != current[0]:
                    current, draft = (kind, id_), groups.start()
                apply_row(draft, id_, *row)
            if len(groups.rows) >= _ROWS:
                yield groups.take()
        groups.add_totals()
        yield groups.take()

    return fold_groups
