"""Checkpoints of an export, written: whoever writes an export folds it on the way, and writes the
state down from time to time.

A checkpoint is due after so many records, at the end of a batch, and not before the log since the
last one has twice the bytes of the state: so checkpoints are at most half as large as the log,
whatever the size of the cluster. Where the log does not fold there are no more checkpoints; the
export goes on, for it is the evidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress

from raftlog import batch
from raftlog.errors import FatalError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.metadata.records import UnknownRecordError
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.segments.checkpoints import batches_from, load_checkpoint, log_hash_at
from raftlog.segments.errors import CorruptExportError, ExportMismatchError
from raftlog.segments.log_hashes import log_hash_fields
from raftlog.segments.manifest import CHECKPOINTS, Checkpoint, Manifest
from raftlog.segments.place import Place

CHECKPOINT_RECORDS = 50_000
"""So many records lie between two checkpoints: half a second of folding."""
LOG_BYTES_PER_STATE_BYTE = 2
MAX_CHECKPOINTS = 1024
"""The manifest names no more. With more, every second one of the older half goes."""


def checkpoint_name(end_offset: int, epoch: int) -> str:
    """A checkpoint's path within the export; as a controller names its snapshots."""
    return f"{CHECKPOINTS}/{end_offset:020d}-{epoch:010d}.checkpoint"


def thinned(known: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """As many as the manifest may name."""
    while len(known) > MAX_CHECKPOINTS:
        half = len(known) // 2
        known = known[1:half:2] + known[half:]
    return known


def can_fold(manifest: Manifest) -> bool:
    """Whether the state at the beginning is known: it is the empty one, or in the first records."""
    return manifest.history_begin == 0 or manifest.state_from is not None


class CheckpointMaker:
    """Folds an export as it is written. Blocking; one thread."""

    def __init__(
        self, place: Place, manifest: Manifest, every: int, draft: ImageBuilder | None = None
    ) -> None:
        """``every``: so many records lie between two checkpoints, at least.

        Goes on from the last checkpoint of the export that is as it was written. With a ``draft``
        it folds nothing: the caller does, each batch before it is taken or passed over, from the
        beginning of the export.
        """
        self._place, self._manifest, self._every = place, manifest, every
        self.not_folded = ""
        """Why there are no more checkpoints; empty: there are."""
        self._log_bytes = 0
        known = manifest.checkpoints
        self._last = known[-1].offset if known else manifest.history_begin - 1
        self._folds = draft is None
        if draft is not None:
            self._begin, self._draft = None, draft
            return
        self._begin, image = _last_image(place, manifest)
        self._draft = ImageBuilder(image)

    def pass_over(self, header: batch.BatchHeader) -> None:
        """A batch that the export holds already. What is due is written behind a later one."""
        if header.last_offset > self._last:
            self._log_bytes += header.size

    def catch_up(self) -> Iterator[Checkpoint]:
        """Fold what the export holds behind the state that was gone on from, and write the
        checkpoints that were due there.

        Raises CorruptExportError, ExportError, OSError.
        """
        known = log_hash_at(self._begin, self._draft)
        for data, header in batches_from(self._place, self._manifest, self._draft.offset + 1):
            known = extended(known, data)
            made = self.take(data, header, known)
            if made is not None:
                yield made
            if self.not_folded:
                return

    def take(self, chunk: bytes, header: batch.BatchHeader, log_hash: LogHash) -> Checkpoint | None:
        """Fold a verified batch of a chunk; the checkpoint behind it, if one was due: its file is
        there then. ``log_hash``: of the log up to there, empty if that is not known.

        Raises OSError.
        """
        if self.not_folded:
            return None
        draft = self._draft
        try:
            if self._folds:
                draft.apply_encoded(chunk, header)
            if header.last_offset <= self._last:
                return None
            self._log_bytes += header.size
            if (
                draft.offset - self._last < self._every
                or self._log_bytes < LOG_BYTES_PER_STATE_BYTE * draft.state_bytes
            ):
                return None
            return self._write(draft.snapshot(), log_hash)
        except (FatalError, UnknownRecordError) as error:
            self.not_folded = str(error)
            return None

    def _write(self, image: Image, log_hash: LogHash) -> Checkpoint:
        of = self._manifest
        header = header_of(image, cluster_id=of.cluster_id, generations=(of.generation,))
        told = log_hash if log_hash.is_known else None
        name = checkpoint_name(header.end_offset, header.epoch)
        self._place.names(CHECKPOINTS)
        temporary = self._place.temporary(name)
        digest, size = hashlib.sha256(), 0
        try:
            with temporary.open("wb") as file:
                for piece in pieces(image, header, told):
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
            self._place.put(temporary, name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._last, self._log_bytes = image.offset, 0
        return Checkpoint(
            file=name,
            offset=image.offset,
            epoch=image.epoch,
            timestamp_ms=image.timestamp_ms,
            bytes=size,
            sha256=digest.hexdigest(),
            state_hash=format_hash(image.state_hash),
            **({} if told is None else log_hash_fields(told)),
        )


def _last_image(place: Place, manifest: Manifest) -> tuple[Checkpoint | None, Image]:
    """The state to go on from, and the checkpoint that holds it. A damaged one is passed over: it
    stays, for ``verify`` to find.
    """
    for one in reversed(manifest.checkpoints):
        with suppress(CorruptExportError, ExportMismatchError):
            return one, load_checkpoint(place, manifest.owner, one)
    draft = ImageBuilder(Image())
    draft.offset = manifest.history_begin - 1
    return None, draft.snapshot()
