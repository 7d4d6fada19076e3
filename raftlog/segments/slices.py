"""The fold of an export in slices, from one checkpoint to another: each proves the next.

The first slice begins with the empty state, so all of them together are a fold from the beginning;
in any order, at the same time. A slice believes the checkpoint that it begins with, and the slice
before it does not: whoever made up a state is found by the slice that leads to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

import msgspec

from raftlog import batch
from raftlog.errors import FatalError
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import extended
from raftlog.metadata.records import UnknownRecordError
from raftlog.segments.checkpoint_faults import CHECK
from raftlog.segments.checkpoints import batches_from, load_checkpoint, log_hash_at
from raftlog.segments.manifest import Checkpoint, Manifest
from raftlog.segments.place import Place
from raftlog.segments.ranges import Fault


class Slice(msgspec.Struct, frozen=True):
    """What lies between two checkpoints, or several of them in a row.

    ``begin`` None: the beginning of the export. ``checkpoints``: those on the way, the one at its
    end among them. ``last_offset``: inclusive.
    """

    begin: Checkpoint | None
    checkpoints: tuple[Checkpoint, ...]
    last_offset: int


class FoldedSlice(msgspec.Struct, frozen=True):
    """What came of one. ``hashes``: the state hash at each offset asked for; at one that is no
    batch's last, that of the batch before.

    ``end_offset`` exclusive; ``epoch`` and ``timestamp_ms`` are of its last batch.
    """

    end_offset: int
    epoch: int
    timestamp_ms: int
    hashes: dict[int, str]
    faults: list[Fault]


def plan(
    checkpoints: Iterable[Checkpoint], manifest: Manifest, end: int, count: int
) -> list[Slice]:
    """About ``count`` slices of about as many records each, up to an offset (inclusive).

    ``checkpoints``: those that are whole, by offset.
    """
    known = [one for one in checkpoints if one.offset <= end]
    first, records = manifest.history_begin, end + 1 - manifest.history_begin
    begins: list[Checkpoint | None] = [None]
    for number in range(1, count):
        wanted = first + records * number // count
        near = min(known, key=lambda one: abs(one.offset - wanted), default=None)
        if near is not None and near.offset < end and near not in begins:
            begins.append(near)
    slices = []
    for begin, after in pairwise([*begins, None]):
        low = -1 if begin is None else begin.offset
        high = end if after is None else after.offset
        way = tuple(one for one in known if low < one.offset <= high)
        slices.append(Slice(begin, way, high))
    return slices


def fold_slice(
    place: Place, manifest: Manifest, one: Slice, offsets: Collection[int]
) -> FoldedSlice:
    """Fold the raw batches of a slice, and hold what comes of it against its checkpoints.

    Raises CorruptExportError and its kinds, ExportError: files are checked elsewhere.
    """
    folding = _Folding(place, manifest, one, offsets)
    for data, header in batches_from(place, manifest, folding.next_offset):
        if header.last_offset > one.last_offset or not folding.take(data, header):
            break
    return folding.result()


class _Folding:
    def __init__(
        self, place: Place, manifest: Manifest, one: Slice, offsets: Collection[int]
    ) -> None:
        self._slice = one
        begin = one.begin
        if begin is None:
            self._draft = ImageBuilder(Image())
            self._draft.offset = manifest.history_begin - 1
        else:
            self._draft = ImageBuilder(load_checkpoint(place, manifest.owner, begin))
        self._log_hash = log_hash_at(begin, self._draft)
        low = self._draft.offset
        self._wanted = sorted(
            {offset for offset in offsets if low < offset <= one.last_offset}, reverse=True
        )
        self._due = list(reversed(one.checkpoints))
        self._hashes: dict[int, str] = {}
        self._faults: list[Fault] = []
        self._broken = False

    @property
    def next_offset(self) -> int:
        return self._draft.offset + 1

    def _state_hash(self) -> str:
        return format_hash(self._draft.state_hash & HASH_MASK)

    def take(self, data: bytes, header: batch.BatchHeader) -> bool:
        """The next batch; whether it folds."""
        self._pass(header.last_offset)
        try:
            self._draft.apply_encoded(data, header)
        except (FatalError, UnknownRecordError) as error:
            message = f"the log does not fold from offset {header.base_offset} on: {error}"
            self._faults.append(
                Fault(header.base_offset, self._slice.last_offset, "STATE", "", message)
            )
            self._broken = True
            return False
        self._log_hash = extended(self._log_hash, data)
        while self._due and self._due[-1].offset == header.last_offset:
            self._compare(self._due.pop())
        return True

    def _pass(self, next_last_offset: int) -> None:
        """What was asked of offsets before the batch that comes."""
        while self._wanted and self._wanted[-1] < next_last_offset:
            self._hashes[self._wanted.pop()] = self._state_hash()
        while self._due and self._due[-1].offset < next_last_offset:
            self._wrong(self._due.pop(), "no batch ends there")

    def _compare(self, one: Checkpoint) -> None:
        draft, known = self._draft, self._log_hash
        if one.state_hash != self._state_hash():
            self._wrong(
                one,
                f"the fold of the log gives the state hash {self._state_hash()} there, and it holds"
                f" {one.state_hash}",
            )
        elif (one.epoch, one.timestamp_ms) != (draft.epoch, draft.timestamp_ms):
            self._wrong(
                one,
                f"the batch that ends there is of epoch {draft.epoch} at {draft.timestamp_ms} ms,"
                f" and it says epoch {one.epoch} at {one.timestamp_ms} ms",
            )
        elif (
            one.log_hash
            and known.digest
            and (
                one.log_hash_begin_offset,
                one.log_hash,
            )
            != (known.begin_offset, known.digest.hex())
        ):
            self._wrong(
                one,
                f"the log has the log hash {known.digest.hex()} there, and it says {one.log_hash}",
            )

    def _wrong(self, one: Checkpoint, why: str) -> None:
        begin = self._slice.begin
        since = "the beginning" if begin is None else f"the checkpoint at offset {begin.offset}"
        message = (
            f"{one.describe()} is not what the log comes to from {since} on: {why}. Whoever began"
            " with it was told something else"
        )
        self._faults.append(Fault(one.offset, one.offset, CHECK, one.file, message))

    def result(self) -> FoldedSlice:
        draft = self._draft
        if not self._broken:
            self._pass(self._slice.last_offset + 1)
        return FoldedSlice(
            draft.offset + 1, draft.epoch, draft.timestamp_ms, self._hashes, self._faults
        )
