"""Checkpoints of an export, read: states in between, from which a fold can go on.

A checkpoint has the format of a controller's snapshot (``raftlog.metadata.snapshot``). The manifest
names each with its SHA-256, and what it is the state of; a signature covers that, too. A file that
was changed, or is another one, is found here. A state that somebody made up, with everything that
names it, is found by folding alone: from the checkpoint before it (``raftlog replay verify``). So
whoever begins with a checkpoint says so.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.image import Image, ImageDraft
from raftlog.metadata.log_hash import EMPTY, LogHash, unknown
from raftlog.metadata.records import UnknownRecordError
from raftlog.metadata.snapshot import SnapshotLoader, header_of
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.segments import files
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.manifest import CHECKPOINTS, RAW, Checkpoint, Manifest
from raftlog.segments.place import Place
from raftlog.segments.reading import read_segment

_READ_BYTES = 1 << 20


def last_at(
    checkpoints: Iterable[Checkpoint],
    *,
    offset: int | None = None,
    timestamp_ms: int | None = None,
) -> Checkpoint | None:
    """The last one whose records lie at or before an offset, and at or before a time (None: any);
    None: there is none.
    """
    ascending = list(checkpoints)
    count = len(ascending)
    if offset is not None:
        count = bisect_right(ascending, offset, hi=count, key=lambda one: one.offset)
    return next(
        (
            one
            for one in reversed(ascending[:count])
            # Not by bisection: log time may have gone back.
            if timestamp_ms is None or one.timestamp_ms <= timestamp_ms
        ),
        None,
    )


def load_checkpoint(place: Place, owner: tuple[str, int], one: Checkpoint) -> Image:
    """The state in a checkpoint, which is the file that the manifest names, and says of itself what
    the manifest says of it. ``owner``: cluster and generation of the export.

    Raises ExportMismatchError, CorruptExportError, ExportError.
    """
    loader, digest, size = SnapshotLoader(), hashlib.sha256(), 0
    fault: Exception | None = None
    try:
        with files.named_errors("read", f"{place}/{one.file}"), place.open(one.file) as file:
            while block := file.read(_READ_BYTES):
                size += len(block)
                digest.update(block)
                if size > one.bytes:
                    raise _corrupt(one, f"it has more bytes than the {one.bytes} of the manifest")
                if fault is None:
                    fault = _fed(loader, block)
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise _corrupt(one, "it is missing") from error
        raise
    header = loader.header
    # Before the hash: "from another cluster" says more than "other bytes than expected".
    if header is not None and (header.cluster_id, header.generation) != owner:
        raise ExportMismatchError(
            f"{one.describe()} belongs to cluster {header.cluster_id} generation"
            f" {header.generation}, and the export to cluster {owner[0]} generation {owner[1]}"
        )
    if size != one.bytes:
        raise _corrupt(one, f"it has {size} bytes, and the manifest says {one.bytes}")
    if digest.hexdigest() != one.sha256:
        raise _corrupt(
            one, f"its SHA-256 is {digest.hexdigest()}, and the manifest says {one.sha256}"
        )
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
    """What the file says of itself is what the manifest says, and what is in it."""
    found, log_hash = header.end_offset - 1, loader.log_hash()
    if found != one.offset:
        raise _corrupt(one, f"it holds the state at offset {found}")
    if (header.epoch, header.last_timestamp_ms) != (one.epoch, one.timestamp_ms):
        raise _corrupt(
            one,
            f"it is of epoch {header.epoch} at {header.last_timestamp_ms} ms, and the manifest says"
            f" epoch {one.epoch} at {one.timestamp_ms} ms",
        )
    if format_hash(image.state_hash) != one.state_hash:
        raise _corrupt(
            one,
            f"it holds a state with the hash {format_hash(image.state_hash)}, and the manifest says"
            f" {one.state_hash}",
        )
    begin = log_hash.begin_offset if log_hash.digest else -1
    if (log_hash.digest.hex(), begin) != (one.log_hash, one.log_hash_begin_offset):
        raise _corrupt(one, "it names another log hash than the manifest")
    if header != header_of(image, cluster_id=header.cluster_id, generations=header.generations):
        raise _corrupt(one, "its header names other voters, or another level, than its state")


def names(place: Place) -> list[str]:
    """The files in the directory of checkpoints; none if there is no such directory."""
    return place.names(CHECKPOINTS) if CHECKPOINTS in place.names("") else []


def log_hash_at(begin: Checkpoint | None, draft: ImageDraft) -> LogHash:
    """Of the log up to where a fold begins, as the checkpoint says it."""
    offset = draft.offset
    if begin is not None and begin.log_hash:
        digest = bytes.fromhex(begin.log_hash)
        return LogHash(begin.log_hash_begin_offset, offset + 1, digest)
    return EMPTY if offset < 0 else unknown(offset + 1)


def batches_from(
    place: Place, manifest: Manifest, offset: int
) -> Iterator[tuple[bytes, batch.BatchHeader]]:
    """The batches of an export from an offset on. Raises CorruptExportError, ExportError."""
    for segment in manifest.of_kind(RAW):
        if segment.last_offset < offset:
            continue
        for data in read_segment(place, segment, owner=manifest.owner):
            for header in batch.headers(data, verify=False):
                if header.base_offset >= offset:
                    yield data, header


def _corrupt(one: Checkpoint, why: str) -> CorruptExportError:
    return CorruptExportError(
        f"{one.describe()} is corrupt: {why}",
        file=one.file,
        base_offset=one.offset,
        last_offset=one.offset,
    )
