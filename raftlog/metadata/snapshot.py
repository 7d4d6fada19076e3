"""An image as the content of a snapshot, and back (KIP-630).

Between a snapshot's header and footer (``raftlog.metadata.snapshot_file``) are the image's
entities, kind by kind and sorted by key, as the canonical bytes from which the state hash is
computed. Offset, epoch and timestamp are in the header; the parts that an image derives from its
entities (indexes, counts) are derived again. Writer and reader recompute the hash: a state that
does not match its claimed hash is neither written nor accepted.

Why: docs/decisions/007-snapshots.md
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata import flat_map
from raftlog.metadata.entities import (
    HASH_MASK,
    encoded_hash,
    entity_bytes,
)
from raftlog.metadata.image import Image, ImageDraft
from raftlog.metadata.kinds import KIND_OF, KINDS, Kind, decode_into
from raftlog.metadata.log_hash import LogHash
from raftlog.metadata.records import RecordType, parse, record
from raftlog.metadata.snapshot_file import (
    SnapshotHeader,
    SnapshotVerifier,
    encode_footer,
    encode_header,
)
from raftlog.metadata.versions import metadata_version
from raftlog.wire.records.v1 import records_pb2 as pb

BATCH_BYTES = 16 << 10
"""Size of a batch in bytes, which is also one step of a loader: one to two milliseconds of
decoding, hashing and inserting into maps.
"""
SLICE_ENTITIES = 256
"""Number of entities encoded in one step of the writer: well below a millisecond."""
SLICE_KEYS = 2048
"""Number of keys collected and sorted in one step of the writer."""
MERGE_RUNS, MERGE_KEYS = 32, 32
"""Number of sorted runs merged at once, and maximum number of keys from each in one step of the
writer.
"""


class Parts(ImageDraft):
    """A draft of an image that is built from entities."""

    __slots__ = ()

    def __init__(self, *, flat: bool) -> None:
        super().__init__(Image(configs=flat_map.empty()) if flat else Image())

    def finish(self, header: SnapshotHeader) -> Image:
        """Return the image."""
        self.offset, self.epoch, self.timestamp_ms = (
            header.end_offset - 1,
            header.epoch,
            header.last_timestamp_ms,
        )
        return self.snapshot()


IN_HEADER = ("offset", "epoch", "timestamp_ms", "state_hash")
"""Fields of ``Image`` that are in the header or the footer."""
DERIVED = ("state_bytes", "key_value_bytes")
"""Fields of ``Image`` that are derived as entities are added."""


def header_of(image: Image, *, cluster_id: str, generations: tuple[int, ...]) -> SnapshotHeader:
    """Return the header of a snapshot of this image."""
    voters = image.voters.voters if image.voters is not None else ()
    return SnapshotHeader(
        cluster_id=cluster_id,
        generations=generations,
        end_offset=image.offset + 1,
        epoch=image.epoch,
        last_timestamp_ms=image.timestamp_ms,
        voters=tuple(Voter(one.id, one.endpoint, one.directory_id) for one in voters),
        metadata_version=metadata_version(image.features),
    )


def content_hash(image: Image) -> int:
    """Compute the state hash from the entities: it equals ``state_hash`` if every change was
    accounted for.
    """
    total = 0
    for kind in KINDS:
        for key in kind.keys(image):
            for content in kind.contents(image, key):
                total += encoded_hash(kind.name, entity_bytes(content))
    return total & HASH_MASK


def pieces(
    image: Image, header: SnapshotHeader, log_hash: LogHash | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a snapshot, piece by piece. Raises FatalError at the end if the image does
    not match its state hash.

    ``log_hash``: hash of the log up to the image. Each step is a bounded amount of work; an empty
    piece is work without output.
    """
    if header.end_offset != image.offset + 1:
        raise ValueError(
            f"the header is for offset {header.end_offset}, but the image ends at "
            f"{image.offset + 1}"
        )
    yield encode_header(header)
    next_offset, state_hash = 1, 0
    for kind in KINDS:
        entities: list[bytes] = []
        size = visited = 0
        keys = yield from _sorted_slowly(kind.keys(image))
        for key in keys:
            for content in kind.contents(image, key):
                data = entity_bytes(content)
                entities.append(data)
                size += len(data)
                state_hash += encoded_hash(kind.name, data)
                visited += 1
                if size >= BATCH_BYTES:
                    yield _batch(kind, entities, next_offset, header)
                    next_offset, entities, size, visited = next_offset + 1, [], 0, 0
                elif visited >= SLICE_ENTITIES:
                    visited = 0
                    yield b""
        if entities:
            yield _batch(kind, entities, next_offset, header)
            next_offset += 1
    if state_hash & HASH_MASK != image.state_hash:
        raise FatalError(
            f"the image at offset {image.offset} has the state hash {image.state_hash:032x}, but "
            f"its entities have {state_hash & HASH_MASK:032x}"
        )
    yield encode_footer(header, next_offset, image.state_hash, log_hash)


def _sorted_slowly(keys: Iterable[Any]) -> Generator[bytes, None, Iterable[Any]]:
    """Sort in bounded steps: into runs, one per step, which are merged on demand. Return the
    iterator over the result.
    """
    runs: list[list[Any]] = []
    iterator = iter(keys)
    while run := list(islice(iterator, SLICE_KEYS)):
        run.sort()
        runs.append(run)
        if len(run) == SLICE_KEYS:
            yield b""
    while len(runs) > MERGE_RUNS:
        longer: list[list[Any]] = []
        for first in range(0, len(runs), MERGE_RUNS):
            merged: list[Any] = []
            for block in _merge(runs[first : first + MERGE_RUNS]):
                merged += block
                yield b""
            longer.append(merged)
        runs = longer
    return chain.from_iterable(_merge(runs))


def _merge(runs: list[list[Any]]) -> Iterator[list[Any]]:
    """Merge sorted runs into sorted blocks: all keys up to the lowest end of the runs' next blocks
    are sorted at once. Python's sort detects the runs and merges them, faster than a heap would.
    """
    ahead = [(run, 0) for run in runs if run]
    while len(ahead) > 1:
        pivot = min(run[min(at + MERGE_KEYS, len(run)) - 1] for run, at in ahead)
        block: list[Any] = []
        left: list[tuple[list[Any], int]] = []
        for run, at in ahead:
            end = bisect_right(run, pivot, at, min(at + MERGE_KEYS, len(run)))
            block += run[at:end]
            if end < len(run):
                left.append((run, end))
        block.sort()
        ahead = left
        yield block
    for run, at in ahead:
        for begin in range(at, len(run), SLICE_KEYS):
            yield run[begin : begin + SLICE_KEYS]


def _batch(kind: Kind, entities: list[bytes], base_offset: int, header: SnapshotHeader) -> bytes:
    message = pb.SnapshotEntitiesRecord(kind=kind.name, entities=entities)
    return batch.encode(
        [record(message).data],
        base_offset=base_offset,
        epoch=header.epoch,
        timestamp_ms=header.last_timestamp_ms,
    )


class SnapshotLoader:
    """The loader of a snapshot's image, fed piece by piece from the first byte to the last."""

    def __init__(self, *, flat: bool = False) -> None:
        """``flat``: whether only the newest image will be folded further (``flat_map``)."""
        self._verifier = SnapshotVerifier(self._content)
        self._parts = Parts(flat=flat)

    @property
    def header(self) -> SnapshotHeader | None:
        """Header of the snapshot, or None until it has been read."""
        return self._verifier.header

    def log_hash(self) -> LogHash:
        """Hash of the log below the snapshot's end; valid once ``finish`` has returned."""
        return self._verifier.log_hash()

    def feed(self, data: bytes) -> None:
        """Process the next bytes. Raises CorruptLogError, UnknownRecordError."""
        self._verifier.feed(data)

    def _content(self, data: bytes, header: batch.BatchHeader) -> None:
        for found in batch.records(data, header):
            if found.type != RecordType.SNAPSHOT_ENTITIES:
                raise CorruptLogError(
                    f"record {header.base_offset} of the snapshot contains no entities"
                )
            message = parse(found)
            if message.kind not in KIND_OF:
                raise CorruptLogError(
                    f"record {header.base_offset} of the snapshot contains entities of unknown "
                    f"kind {message.kind!r}"
                )
            try:
                decode_into(self._parts, message.kind, message.entities[:])
            except (msgspec.MsgspecError, KeyError, ValueError) as error:
                raise CorruptLogError(
                    f"record {header.base_offset} of the snapshot: invalid {message.kind}: {error}"
                ) from error

    def finish(self) -> Image:
        """Return the image. Raises CorruptLogError if the snapshot is truncated, or its state does
        not match its footer.
        """
        header = self._verifier.finish()
        image = self._parts.finish(header)
        if image.state_hash != self._verifier.state_hash:
            raise CorruptLogError(
                f"the state in the snapshot at {header.end_offset} has the hash "
                f"{image.state_hash:032x}, but its footer names {self._verifier.state_hash:032x}"
            )
        return image


def load(content: Iterable[bytes]) -> tuple[SnapshotHeader, Image]:
    """Read a whole snapshot at once. Raises CorruptLogError, UnknownRecordError."""
    loader = SnapshotLoader()
    for piece in content:
        loader.feed(piece)
    image = loader.finish()
    assert loader.header is not None
    return loader.header, image
