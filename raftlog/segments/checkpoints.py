"""Checkpoints of an export: states at intermediate offsets, from which a fold can continue.

A checkpoint has the format of a controller's snapshot (``raftlog.metadata.snapshot``). The manifest
lists each checkpoint with its SHA-256 and describes its state; a signature also covers this.
Loading a checkpoint detects a changed or swapped file. If a state was forged together with
everything that describes it, only a fold from the previous checkpoint detects that (``raftlog
replay verify``). So every result states whether it started from a checkpoint.

The writer of an export also folds the log, and writes the state as a checkpoint from time to time.
A checkpoint is due after a number of records, at the end of a batch, but not before the log since
the last one has twice as many bytes as the state, so checkpoints are at most half as large as the
log, whatever the size of the cluster. If the log cannot be folded from some point on, no more
checkpoints are made; the export continues, as it is the evidence.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress

from raftlog import batch
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image, ImageDraft
from raftlog.metadata.log_hash import EMPTY, LogHash, extended, unknown
from raftlog.metadata.records import UnknownRecordError
from raftlog.metadata.snapshot import SnapshotLoader, header_of, pieces
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.files import Place
from raftlog.segments.log_hashes import log_hash_fields
from raftlog.segments.manifest import CHECKPOINTS, RAW, Checkpoint, Manifest
from raftlog.segments.raw import Headed, batch_bytes, read_headed

_READ_BYTES = 1 << 20


def last_at(
    checkpoints: Iterable[Checkpoint],
    *,
    offset: int | None = None,
    timestamp_ms: int | None = None,
) -> Checkpoint | None:
    """Return the last checkpoint at or before an offset and a time (None: no limit), or None."""
    ascending = list(checkpoints)
    count = len(ascending)
    if offset is not None:
        count = bisect_right(ascending, offset, hi=count, key=lambda one: one.offset)
    return next(
        (
            one
            for one in reversed(ascending[:count])
            # Not by bisection: log time may have decreased.
            if timestamp_ms is None or one.timestamp_ms <= timestamp_ms
        ),
        None,
    )


def load_checkpoint(place: Place, owner: tuple[str, int], one: Checkpoint) -> Image:
    """Load the state in a checkpoint whose file and header match the manifest.

    ``owner``: cluster and generation of the export. Raises ExportMismatchError, CorruptExportError,
    ExportError.
    """
    loader, digest, size = SnapshotLoader(), hashlib.sha256(), 0
    fault: Exception | None = None
    try:
        with files.named_errors("read", f"{place}/{one.file}"), place.open(one.file) as file:
            while block := file.read(_READ_BYTES):
                size += len(block)
                digest.update(block)
                if size > one.bytes:
                    raise _corrupt(one, f"expected {one.bytes} bytes, found more")
                if fault is None:
                    fault = _fed(loader, block)
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise _corrupt(one, "it is missing") from error
        raise
    header = loader.header
    # Before the hash: "from another cluster" is more helpful than "unexpected bytes".
    if header is not None and (header.cluster_id, header.generation) != owner:
        raise ExportMismatchError(
            f"{one.describe()} belongs to cluster {header.cluster_id} generation"
            f" {header.generation}, but the export belongs to cluster {owner[0]} generation"
            f" {owner[1]}"
        )
    if size != one.bytes:
        raise _corrupt(one, f"expected {one.bytes} bytes, found {size}")
    if digest.hexdigest() != one.sha256:
        raise _corrupt(one, f"expected the SHA-256 {one.sha256}, found {digest.hexdigest()}")
    try:
        if fault is not None:
            raise fault
        image = loader.finish()
    except (CorruptLogError, UnknownRecordError) as error:
        raise _corrupt(one, str(error)) from error
    assert header is not None
    _require_same(one, header, image, loader)
    return image


def _fed(loader: SnapshotLoader, block: bytes) -> Exception | None:
    try:
        loader.feed(block)
    except (CorruptLogError, UnknownRecordError) as error:
        return error
    return None


def _require_same(
    one: Checkpoint, header: SnapshotHeader, image: Image, loader: SnapshotLoader
) -> None:
    """Require that the file's header matches the manifest and the loaded state."""
    found, log_hash = header.end_offset - 1, loader.log_hash()
    if found != one.offset:
        raise _corrupt(one, f"it contains the state at offset {found}")
    if (header.epoch, header.last_timestamp_ms) != (one.epoch, one.timestamp_ms):
        raise _corrupt(
            one,
            f"expected epoch {one.epoch} at {one.timestamp_ms} ms, found epoch {header.epoch} at"
            f" {header.last_timestamp_ms} ms",
        )
    if format_hash(image.state_hash) != one.state_hash:
        raise _corrupt(
            one,
            f"expected the state hash {one.state_hash}, found {format_hash(image.state_hash)}",
        )
    begin = log_hash.begin_offset if log_hash.digest else -1
    if (log_hash.digest.hex(), begin) != (one.log_hash, one.log_hash_begin_offset):
        raise _corrupt(one, "its log hash differs from the manifest's")
    if header != header_of(image, cluster_id=header.cluster_id, generations=header.generations):
        raise _corrupt(one, "the voters or the feature level in its header differ from its state")


def checkpoint_files(place: Place) -> list[str]:
    """Return the files in the checkpoint directory; none if there is no such directory."""
    return place.names(CHECKPOINTS) if CHECKPOINTS in place.names("") else []


def log_hash_at(begin: Checkpoint | None, draft: ImageDraft) -> LogHash:
    """Return the log hash at the offset where a fold begins, as recorded in the checkpoint."""
    offset = draft.offset
    if begin is not None and begin.log_hash:
        digest = bytes.fromhex(begin.log_hash)
        return LogHash(begin.log_hash_begin_offset, offset + 1, digest)
    return EMPTY if offset < 0 else unknown(offset + 1)


def batches_from(
    place: Place, manifest: Manifest, offset: int, *, checked: bool = False
) -> Iterator[Headed]:
    """Yield the batches of an export from an offset onwards. Raises CorruptExportError,
    ExportError.
    """
    for segment in manifest.of_kind(RAW):
        if segment.last_offset >= offset:
            yield from read_headed(
                place, segment, owner=manifest.owner, begin_offset=offset, checked=checked
            )


def _corrupt(one: Checkpoint, why: str) -> CorruptExportError:
    return CorruptExportError(
        f"{one.describe()} is corrupt: {why}",
        file=one.file,
        base_offset=one.offset,
        last_offset=one.offset,
    )


CHECKPOINT_RECORDS = 50_000
"""Smallest number of records between two checkpoints: half a second of folding."""
LOG_BYTES_PER_STATE_BYTE = 2
MAX_CHECKPOINTS = 1024
"""Maximum number of checkpoints in the manifest. Above it, every second one of the older half is
dropped.
"""


def checkpoint_name(end_offset: int, epoch: int) -> str:
    """Return a checkpoint's path within the export, named like a controller's snapshot."""
    return f"{CHECKPOINTS}/{end_offset:020d}-{epoch:010d}.checkpoint"


def thinned(known: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints, thinned to the manifest's limit."""
    while len(known) > MAX_CHECKPOINTS:
        half = len(known) // 2
        known = known[1:half:2] + known[half:]
    return known


def can_fold(manifest: Manifest) -> bool:
    """Return whether a state is known from which to fold: the empty state at the beginning, the
    state in the first records, or a checkpoint.
    """
    return _from_the_beginning(manifest) or bool(manifest.checkpoints)


def _from_the_beginning(manifest: Manifest) -> bool:
    return manifest.history_begin == 0 or manifest.state_from is not None


class CheckpointMaker:
    """A fold of an export while it is written. Blocking; one thread."""

    def __init__(
        self,
        place: Place,
        manifest: Manifest,
        every: int,
        draft: ImageBuilder | None = None,
        base: Image | None = None,
    ) -> None:
        """Continue from the last intact checkpoint of the export, or else from ``base``.

        ``every``: smallest number of records between two checkpoints. ``base``: the state of a log
        whose beginning was dropped; a checkpoint is due immediately after it, as all later states
        need one. With a ``draft`` nothing is folded here: the caller folds each batch, from the
        beginning of the export, before it calls ``take`` or ``pass_over``.
        """
        self._place, self._manifest, self._every = place, manifest, every
        self.not_folded = ""
        """Why no more checkpoints are made, or empty while they are made."""
        self._log_bytes = 0
        known = manifest.checkpoints
        self._last = known[-1].offset if known else manifest.history_begin - 1
        self._folds, self._owed = draft is None, False
        if draft is not None:
            self._begin, self._draft = None, draft
            return
        self._begin, image = _last_image(place, manifest)
        self._owed = base is not None and not known
        if self._begin is None and base is None and not _from_the_beginning(manifest):
            self.not_folded = "no checkpoint is intact, and the state at the beginning is unknown"
        self._draft = ImageBuilder(base if self._owed and base is not None else image)

    def pass_over(self, header: batch.BatchHeader) -> None:
        """Skip a batch that is already in the export. A checkpoint that is due is written after a
        later batch.
        """
        if header.last_offset > self._last:
            self._log_bytes += header.size

    def catch_up(self) -> Iterator[Checkpoint]:
        """Fold the rest of the export after the last loaded state, and write the checkpoints that
        were due there.

        Raises CorruptExportError, ExportError, OSError.
        """
        known = log_hash_at(self._begin, self._draft)
        for chunk, header in batches_from(self._place, self._manifest, self._draft.offset + 1):
            known = extended(known, batch_bytes(chunk, header))
            made = self.take(chunk, header, known)
            if made is not None:
                yield made
            if self.not_folded:
                return

    def take(self, chunk: bytes, header: batch.BatchHeader, log_hash: LogHash) -> Checkpoint | None:
        """Fold a verified batch of a chunk. Return the checkpoint after it, whose file is written,
        or None if none was due.

        ``log_hash``: the log hash after the batch, or empty if unknown. Raises OSError.
        """
        if self.not_folded:
            return None
        draft = self._draft
        try:
            if self._folds:
                if header.last_offset <= draft.offset:
                    return None  # Already in the base.
                draft.apply_encoded(chunk, header)
            if header.last_offset <= self._last:
                return None
            self._log_bytes += header.size
            if not self._owed and (
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
        self._last, self._log_bytes, self._owed = image.offset, 0, False
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
    """Return the state to continue from, and its checkpoint, or None.

    A damaged checkpoint is skipped but not removed: ``verify`` must detect it.
    """
    for one in reversed(manifest.checkpoints):
        with suppress(CorruptExportError, ExportMismatchError):
            return one, load_checkpoint(place, manifest.owner, one)
    draft = ImageBuilder(Image())
    draft.offset = manifest.history_begin - 1
    return None, draft.snapshot()
