"""The fold of a part of the groups, in order: the code of :mod:`raftlog.metadata` on one draft.

A record changes one entity group, and groups know nothing of each other, so any part of them folds
by itself. The state hash of a part is its share of the whole image's, and shares add up modulo
2**128.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from raftlog.metadata.changes import ChangeRecorder
from raftlog.metadata.fold import FileBuilder, ImageBuilder, apply, fold_identity
from raftlog.metadata.image import FoldError, Image
from raftlog.metadata.imported import imported_key
from raftlog.metadata.kinds import KINDS, count_of, entities_of
from raftlog.metadata.records import EVERY_TOPIC, parse_body
from raftlog.segments.parquet_files import bucket_number
from replay.kernels.arrays import MISSING, Bools, codes, distinct, ints

IDENTITY = 1 << 30
"""Record type of a row that is a batch's header, which changes the client that it names. Sorts
after all records.
"""
COLUMNS = (
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
    "client_id",
    "batch_last_offset",
)
"""Columns of a record that a fold in order needs."""
AUTHOR_COLUMNS = ("principal", "type_name")
CLIENT = "client"


def apply_row(
    draft: ImageBuilder,
    group_id: str,
    offset: int,
    epoch: int,
    type_: int,
    version: int,
    body: bytes,
    timestamp_ms: int,
    sequence: int,
    all_below_done: int,
) -> None:
    """Fold one row into its group; the last three are its batch's. Raises FoldError.

    The draft's offset is that of the group's last record: rows come sorted, so a record that does
    not follow it is there twice.
    """
    draft.timestamp_ms = timestamp_ms
    if type_ == IDENTITY:
        draft.offset = offset
        fold_identity(draft, int(group_id), sequence, all_below_done, offset, epoch)
        return
    if offset <= draft.offset:
        raise FoldError(f"the record at offset {offset} is in the export twice")
    draft.offset = offset
    apply(draft, type_, parse_body(type_, version, body), offset, epoch)


class Unaccounted(FileBuilder):
    """A draft whose state hash is computed at its end alone: then the remaining entities are
    hashed, and not every change.
    """

    __slots__ = ()

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Ignore the change."""


class Noting(ChangeRecorder):
    """A draft that notes changes while it ``listens``. Its state hash is not maintained."""

    __slots__ = ("listens",)
    counts_standings = False

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.listens = True

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Note it, or nothing."""
        if self.listens:
            self.note(kind, key, old, new)


class Groups(NamedTuple):
    """Some of the groups. ``kinds``: of these kinds; None: of all.

    ``wanted``: these ones (kind and id); None: all. ``bucket`` of ``buckets``: those in it.
    ``types``: kind -> of that kind's records only these types.
    """

    kinds: frozenset[str] | None = None
    wanted: frozenset[tuple[str, str]] | None = None
    bucket: int = 0
    buckets: int = 1
    types: dict[str, frozenset[int]] | None = None

    @property
    def all(self) -> bool:
        """True if every group is one of them."""
        return self.kinds is None and self.wanted is None and self.buckets == 1

    def has(self, kind: str, id_: str) -> bool:
        """Return whether a group is one of them; EVERY_TOPIC: whether topics may be among them."""
        if (kind, id_) == EVERY_TOPIC:
            return self.kinds is None or kind in self.kinds
        return (
            (self.buckets == 1 or bucket_number(id_, self.buckets) == self.bucket)
            and (self.kinds is None or kind in self.kinds)
            and (self.wanted is None or (kind, id_) in self.wanted)
        )


class Row(NamedTuple):
    """A record, or a batch's header, that changes a group."""

    kind: str
    id: str
    record: tuple[Any, ...]
    author: tuple[Any, ...]
    batch_last_offset: int

    def fold(self, draft: ImageBuilder) -> None:
        """Into a draft."""
        apply_row(draft, self.id, *self.record)


def rows(table: pa.Table, groups: Groups, *, authors: bool = False) -> Iterator[Row]:
    """Yield the rows of a slice that change these groups, in order.

    A batch that names a client changes that client's group by its header, whatever its records
    change: one more row, IDENTITY.
    """
    of_group = _mask(table, groups)
    numbered = _numbered(table)
    chosen = np.flatnonzero(of_group | numbered)
    part = table.take(pa.array(chosen))
    names = COLUMNS + (AUTHOR_COLUMNS if authors else ())
    columns = [part[name].to_pylist() for name in names]
    marks = zip(of_group[chosen].tolist(), numbered[chosen].tolist(), strict=True)
    for (folds, names_client), row in zip(marks, zip(*columns, strict=True), strict=True):
        kind, id_, offset, epoch, type_, version, body, *batch, client_id, last = row[
            : len(COLUMNS)
        ]
        author = (client_id, *row[len(COLUMNS) :])
        if folds and (
            groups.types is None or kind not in groups.types or type_ in groups.types[kind]
        ):
            yield Row(kind, id_, (offset, epoch, type_, version, body, *batch), author, last)
        if names_client and groups.has(CLIENT, id_ := str(client_id)):
            yield Row(CLIENT, id_, (offset, epoch, IDENTITY, version, b"", *batch), author, last)


def bucket_masks(table: pa.Table, groups: Groups, of: int, chosen: Collection[int]) -> list[Bools]:
    """Return which rows of a slice ``rows`` needs for the groups in each of some buckets."""
    if of == 1:
        return [_mask(table, groups) | _numbered(table) for _ in chosen]
    wanted = _mask(table, groups._replace(buckets=1))
    numbers, ids = codes(table["group_id"])
    # A record that changes every topic is in all buckets.
    known = [_ANY if each == EVERY_TOPIC.id else bucket_number(each, of) for each in ids]
    bucket = np.array([*known, MISSING], np.int64)[np.maximum(numbers, -1)]
    numbered = _numbered(table)
    clients = ints(table["client_id"])
    different, where = distinct(np.where(numbered, clients, 0))
    owners = np.array([bucket_number(str(each), of) for each in different.tolist()], np.int64)
    owner = owners[where] if len(owners) else where
    return [
        (wanted & ((bucket == each) | (bucket == _ANY))) | (numbered & (owner == each))
        for each in chosen
    ]


_ANY = -1


def _numbered(table: pa.Table) -> Bools:
    """Which records end a batch that names a client."""
    named = (ints(table["client_id"]) != 0) & (ints(table["sequence"]) != 0)
    ends: Bools = ints(table["offset"]) == ints(table["batch_last_offset"])
    return named & ends


def _mask(table: pa.Table, groups: Groups) -> Bools:
    """Which records change one of the groups."""
    kinds, kind_names = codes(table["group_kind"])
    ids, id_names = codes(table["group_id"])
    there = kinds >= 0
    if groups.all:
        return there
    pairs = np.where(there, kinds * len(id_names) + ids, -1)
    different, where = distinct(pairs)
    count = max(len(id_names), 1)
    has = np.array(
        [
            pair >= 0 and groups.has(kind_names[pair // count], id_names[pair % count])
            for pair in different.tolist()
        ],
        np.bool_,
    )
    return has[where] if len(has) else there


def count_entities(image: Image) -> dict[str, int]:
    """Return the number of entities of each kind, without kinds that have none."""
    counts = {kind.name: count_of(image, kind) for kind in KINDS if kind.plural}
    counts |= Counter(kind for kind, _ in image.imported)
    return {kind: count for kind, count in counts.items() if count}


def entities(image: Image) -> Iterator[tuple[str, str, Any]]:
    """(kind, key, value) of every entity, each kind sorted by key."""
    for one in KINDS:
        if one.plural:
            for key, value in entities_of(image, one):
                yield one.name, key, image.topics[value.id] if one.name == "topic" else value
    for (kind, key), value in sorted(image.imported.items()):
        yield kind, imported_key(image, kind, key), msgspec.json.decode(value)
