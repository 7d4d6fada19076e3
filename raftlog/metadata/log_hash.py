"""The log hash: a chain of SHA-256 over the log's bytes, batch by batch.

The state hash identifies the state; the log hash identifies the bytes: authors, changes, and times.
The digest at an offset verifies the whole log below it, wherever that was copied to.

    digest(begin) = SHA-256 of "raftlog log hash 1", a zero byte, and begin (i64, big-endian)
    digest(batch end) = SHA-256 of the digest before the batch, and the batch

The unit is the batch, not the chunk, as chunks differ between readers. The log itself determines
where the chain begins, so that all nodes have the same chain, whatever they started with:

* at offset 0;
* at the RecoveryRecord of a restored log, as a backup's digest proves nothing about a log that is
  not available. After an unsafe recovery the chain continues, as the bytes below still belong to
  it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from raftlog import batch
from raftlog.metadata.control_records import RESTORED
from raftlog.metadata.records import RecordType, parse

DIGEST_BYTES = 32
_SEED = b"raftlog log hash 1\0"
_PREFIX = struct.Struct(">IIBB")
"""Length, CRC32C, magic and attributes of a batch."""


class LogHash(NamedTuple):
    """The digest of the log from ``begin_offset`` to ``end_offset`` (exclusive, the end of a
    batch).

    ``digest``: empty if the bytes below are not available and no chain has begun above them.
    """

    begin_offset: int
    end_offset: int
    digest: bytes

    @property
    def is_known(self) -> bool:
        """Whether there is a digest."""
        return bool(self.digest)


def seed(begin_offset: int) -> bytes:
    """Return the digest of a chain that begins at ``begin_offset``, before its first batch."""
    return hashlib.sha256(_SEED + begin_offset.to_bytes(8, "big", signed=True)).digest()


EMPTY = LogHash(0, 0, seed(0))
"""The hash of an empty log that begins at offset 0."""


def unknown(end_offset: int) -> LogHash:
    """Return the hash of a log that is available only from ``end_offset`` onwards, so that the
    bytes below were not hashed.
    """
    return LogHash(end_offset, end_offset, b"")


def extended(known: LogHash, chunk: bytes) -> LogHash:
    """Extend a hash by the batches in a checked chunk that follow it. The hot path: each batch
    costs one hash, and the records of few batches are examined.
    """
    begin, end, digest = known
    sha256, unpack = hashlib.sha256, _PREFIX.unpack_from
    position, total = 0, len(chunk)
    view = memoryview(chunk)
    while position < total:
        length, _, _, attributes = unpack(chunk, position)
        behind = position + 4 + length
        count, base = _COUNT_AND_BASE.unpack_from(chunk, position + _COUNT_AT)
        if attributes & batch.CONTROL and _begins(chunk[position:behind]):
            begin, digest = base, seed(base)
        if digest:
            chain = sha256(digest)
            chain.update(view[position:behind])
            digest = chain.digest()
        end = base + count
        position = behind
    return LogHash(begin if digest else end, end, digest)


_COUNT_AND_BASE = struct.Struct(">Iq")
_COUNT_AT = 12


def _begins(data: bytes) -> bool:
    """Return whether a chain begins with this control batch."""
    (header,) = batch.headers(data, verify=False)
    return any(
        found[0] == RecordType.RECOVERY and parse(batch.RecordData(*found)).kind == RESTORED
        for found in batch.bodies(data, header)
    )
