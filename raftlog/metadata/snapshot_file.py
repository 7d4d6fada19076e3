"""The file of a snapshot: a header batch, batches of content, and a footer batch, all in the log's
format, with offsets from 0.

Every batch has its CRC32C, offsets are contiguous, and the footer counts the preceding records, so
that a truncated or altered snapshot is detected before it is used. ``raftlog.metadata.snapshot``
defines the content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata.control_records import NO_GENERATION, from_entries, to_entries
from raftlog.metadata.log_hash import DIGEST_BYTES, LogHash, unknown
from raftlog.metadata.records import RecordType, parse, record
from raftlog.wire.records.v1 import records_pb2 as pb

MAX_BATCH_BYTES = 16 << 20
"""Largest batch, in bytes. A length field above it is damaged, and its bytes are not awaited."""


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """The name of a snapshot of the state before ``end_offset`` (exclusive), whose last record has
    ``epoch`` (KIP-630).
    """

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The header of a snapshot.

    ``end_offset``: exclusive. ``epoch`` and ``last_timestamp_ms``: from the batch before it.
    ``voters``: empty if the log had named none. ``generations``: the generations of the log, oldest
    first.
    """

    cluster_id: str
    generations: tuple[int, ...]
    end_offset: int
    epoch: int
    last_timestamp_ms: int
    voters: tuple[Voter, ...] = ()
    metadata_version: int = 0

    @property
    def generation(self) -> int:
        """The generation of the state, or 0 if no leader had chosen one."""
        return self.generations[-1] if self.generations else NO_GENERATION


def encode_header(header: SnapshotHeader) -> bytes:
    """Encode the first batch of a snapshot, which takes offset 0."""
    message = pb.SnapshotHeaderRecord(
        cluster_id=header.cluster_id,
        generations=header.generations,
        end_offset=header.end_offset,
        epoch=header.epoch,
        last_timestamp_ms=header.last_timestamp_ms,
        voters=to_entries(header.voters),
        metadata_version=header.metadata_version,
    )
    return _control(message, 0, header)


class Footer(NamedTuple):
    """The footer of a snapshot: hashes of its state, and of the log's bytes below its end.
    ``log_hash``: empty if unknown.
    """

    state_hash: int
    log_hash_begin_offset: int = 0
    log_hash: bytes = b""


def encode_footer(
    header: SnapshotHeader, base_offset: int, state_hash: int, log_hash: LogHash | None = None
) -> bytes:
    """Encode the last batch of a snapshot.

    ``base_offset``: end of the content, where the header has offset 0. ``log_hash``: hash of the
    log below the snapshot's end.
    """
    message = pb.SnapshotFooterRecord(
        record_count=base_offset - 1, state_hash=state_hash.to_bytes(16, "big")
    )
    if log_hash is not None and log_hash.is_known:
        if log_hash.end_offset != header.end_offset:
            raise FatalError(
                f"the log hash is for offset {log_hash.end_offset}, but the snapshot for "
                f"{header.end_offset}"
            )
        message.log_hash_begin_offset = log_hash.begin_offset
        message.log_hash = log_hash.digest
    return _control(message, base_offset, header)


def _control(message: object, base_offset: int, header: SnapshotHeader) -> bytes:
    return batch.encode(
        [record(message).data],
        base_offset=base_offset,
        epoch=header.epoch,
        timestamp_ms=header.last_timestamp_ms,
        control=True,
    )


def read_header(start: bytes) -> SnapshotHeader:
    """Return the header from the first bytes of a snapshot, at least the whole first batch. Raises
    CorruptLogError.
    """
    first = next(batch.headers(start, expect_offset=0), None)
    if first is None:
        raise CorruptLogError("the snapshot is empty")
    message = _sole_record(start, first, RecordType.SNAPSHOT_HEADER)
    return SnapshotHeader(
        message.cluster_id,
        tuple(message.generations),
        message.end_offset,
        message.epoch,
        message.last_timestamp_ms,
        from_entries(message.voters),
        message.metadata_version,
    )


def read_footer(tail: bytes) -> Footer | None:
    """Return the footer at the end of ``tail``, a snapshot's last bytes, or None if no valid footer
    ends there.
    """
    for position in range(len(tail)):
        with suppress(CorruptLogError):
            if batch.size_at(tail, position) == len(tail) - position:
                (found,) = batch.headers(tail[position:])
                message = _sole_record(tail[position:], found, RecordType.SNAPSHOT_FOOTER)
                return _footer(message)
    return None


def _footer(message: pb.SnapshotFooterRecord) -> Footer | None:
    """Return the footer in a record, or None if its hashes do not have the length of a hash."""
    if len(message.state_hash) != 16 or len(message.log_hash) not in (0, DIGEST_BYTES):
        return None
    return Footer(
        int.from_bytes(message.state_hash, "big"), message.log_hash_begin_offset, message.log_hash
    )


class SnapshotVerifier:
    """The check of a snapshot from its first byte to its last, fed in pieces of any size; it
    buffers at most one batch.

    ``on_content`` is called with the bytes and the header of each checked batch between header and
    footer.
    """

    def __init__(
        self, on_content: Callable[[bytes, batch.BatchHeader], None] | None = None
    ) -> None:
        self._on_content = on_content
        self.header: SnapshotHeader | None = None
        self.footer: Footer | None = None
        """Footer of the snapshot, or None until it has been read."""
        self._rest = b""
        self._next_offset = 0

    @property
    def state_hash(self) -> int | None:
        """State hash of the image from the footer, or None until that has been read."""
        return None if self.footer is None else self.footer.state_hash

    def log_hash(self) -> LogHash:
        """Hash of the log below the snapshot's end; valid once the check has reached the end."""
        header, footer = self.header, self.footer
        assert header is not None
        assert footer is not None
        if not footer.log_hash:
            return unknown(header.end_offset)
        return LogHash(footer.log_hash_begin_offset, header.end_offset, footer.log_hash)

    def feed(self, data: bytes) -> None:
        """Process the next piece. Raises CorruptLogError."""
        self._rest += data
        position = 0
        while (size := batch.size_at(self._rest, position)) is not None:
            if size > MAX_BATCH_BYTES:
                raise CorruptLogError(f"a batch's length field has the impossible value {size}")
            if position + size > len(self._rest):
                break
            self._take(self._rest[position : position + size])
            position += size
        self._rest = self._rest[position:]

    def _take(self, content: bytes) -> None:
        if self.footer is not None:
            raise CorruptLogError("the snapshot has data after its footer")
        (found,) = batch.headers(content, expect_offset=self._next_offset)
        if self.header is None:
            self.header = read_header(content)
        elif found.control:
            message = _sole_record(content, found, RecordType.SNAPSHOT_FOOTER)
            footer = _footer(message)
            if message.record_count != found.base_offset - 1 or footer is None:
                raise CorruptLogError(
                    f"the footer counts {message.record_count} records, but the snapshot has "
                    f"{found.base_offset - 1}"
                )
            self.footer = footer
        elif self._on_content is not None:
            self._on_content(content, found)
        self._next_offset = found.end_offset

    def finish(self) -> SnapshotHeader:
        """End the check, and return the header. Raises CorruptLogError if the snapshot is
        incomplete.
        """
        if self.header is None or self.footer is None or self._rest:
            raise CorruptLogError("the snapshot is truncated: it has no footer")
        return self.header


def verify(pieces: Iterable[bytes]) -> SnapshotHeader:
    """Check a whole snapshot. Raises CorruptLogError."""
    verifier = SnapshotVerifier()
    for piece in pieces:
        verifier.feed(piece)
    return verifier.finish()


def _sole_record(content: bytes, header: batch.BatchHeader, expected: RecordType) -> Any:
    found = batch.records(content, header)
    if not header.control or len(found) != 1 or found[0].type != expected:
        raise CorruptLogError(
            f"record {header.base_offset} of the snapshot must be {expected.name}"
        )
    return parse(found[0])
