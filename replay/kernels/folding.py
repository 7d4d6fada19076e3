"""The fold of some of the groups, in order: the code of :mod:`raftlog.metadata` on one draft.

A record changes one entity group and groups are independent, so any subset can be folded
separately. The state hash of a subset is its share of the whole image's: shares add up modulo
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
"""Record type of a row for a batch header, which changes the client that it names. Sorts after all
other types.
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
"""Record columns that a fold needs."""
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
    """Fold one row into its group; the last three arguments are from its batch. Raises FoldError.

    The draft's offset is that of the group's last record. As rows are sorted, a record that does
    not follow it is a duplicate.
    """
    draft.timestamp_ms = timestamp_ms
    if type_ == IDENTITY:
        draft.offset = offset
        fold_identity(draft, int(group_id), sequence, all_below_done, offset, epoch)
        return
    if offset <= draft.offset:
        raise FoldError(f"the export contains the record at offset {offset} twice")
    draft.offset = offset
    apply(draft, type_, parse_body(type_, version, body), offset, epoch)


class UnhashedDraft(FileBuilder):
    """A draft that computes its state hash only at the end, from the remaining entities, instead of
    with each change.
    """

    __slots__ = ()

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Ignore the change."""


class RecordingDraft(ChangeRecorder):
    """A draft that records changes while ``recording`` is set, without a state hash."""

    __slots__ = ("recording",)
    counts_standings = False

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.recording = True

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Record the change if ``recording`` is set."""
        if self.recording:
            self.note(kind, key, old, new)


class Groups(NamedTuple):
    """A subset of the entity groups.

    ``kinds``: their kinds, or None for all. ``wanted``: their (kind, id) pairs, or None for all.
    ``bucket``: only groups in this bucket out of ``buckets``. ``types``: kind -> record types to
    consider.
    """

    kinds: frozenset[str] | None = None
    wanted: frozenset[tuple[str, str]] | None = None
    bucket: int = 0
    buckets: int = 1
    types: dict[str, frozenset[int]] | None = None

    @property
    def all(self) -> bool:
        """Whether the subset contains every group."""
        return self.kinds is None and self.wanted is None and self.buckets == 1

    def has(self, kind: str, id_: str) -> bool:
        """Return whether the subset contains a group or, for EVERY_TOPIC, may contain topics."""
        if (kind, id_) == EVERY_TOPIC:
            return self.kinds is None or kind in self.kinds
        return (
            (self.buckets == 1 or bucket_number(id_, self.buckets) == self.bucket)
            and (self.kinds is None or kind in self.kinds)
            and (self.wanted is None or (kind, id_) in self.wanted)
        )


class Row(NamedTuple):
    """A record or batch header that changes a group."""

    kind: str
    id: str
    record: tuple[Any, ...]
    author: tuple[Any, ...]
    batch_last_offset: int

    def fold(self, draft: ImageBuilder) -> None:
        """Fold the row into a draft."""
        apply_row(draft, self.id, *self.record)


def rows(table: pa.Table, groups: Groups, *, authors: bool = False) -> Iterator[Row]:
    """Yield the rows of a slice that change these groups, in order.

    A batch that names a client also changes the client's group, through its header: this yields an
    extra row of type IDENTITY.
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
    """Return, for each chosen bucket, which rows of a slice ``rows`` needs for the groups in it."""
    if of == 1:
        return [_mask(table, groups) | _numbered(table) for _ in chosen]
    wanted = _mask(table, groups._replace(buckets=1))
    numbers, ids = codes(table["group_id"])
    # A record that changes every topic belongs to all buckets.
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
    """Return a mask of the records that end a batch that names a client."""
    named = (ints(table["client_id"]) != 0) & (ints(table["sequence"]) != 0)
    ends: Bools = ints(table["offset"]) == ints(table["batch_last_offset"])
    return named & ends


def _mask(table: pa.Table, groups: Groups) -> Bools:
    """Return a mask of the records that change one of the groups."""
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
    """Return kind -> number of entities, omitting kinds without any."""
    counts = {kind.name: count_of(image, kind) for kind in KINDS if kind.plural}
    counts |= Counter(kind for kind, _ in image.imported)
    return {kind: count for kind, count in counts.items() if count}


def entities(image: Image) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, key and value of every entity, each kind sorted by key."""
    for one in KINDS:
        if one.plural:
            for key, value in entities_of(image, one):
                yield one.name, key, image.topics[value.id] if one.name == "topic" else value
    for (kind, key), value in sorted(image.imported.items()):
        yield kind, imported_key(image, kind, key), msgspec.json.decode(value)
