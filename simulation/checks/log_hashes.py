"""The log hash at every offset of the committed log, computed a second time from decoded records by
the rules of ``raftlog/metadata/log_hash.py``; and the hashes in progress records.

Would catch: a tail that is hashed twice or not at all by a new leader, a chunk cut elsewhere that
changes the hash, a chain that begins elsewhere on a node that began with a snapshot, a record that
names the hash of what is not committed.
"""

from __future__ import annotations

import hashlib
import struct

from raftlog.metadata.log_hash import LogHash
from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import CheckFailedError
from simulation.checks.node_log import Logged


class LogHashes:
    """Hashes of the whole committed log, seen from offset 0 on."""

    def __init__(self) -> None:
        self._digest = self._seeded(0)
        self._at: dict[int, tuple[int, bytes]] = {0: (0, self._digest)}
        """End offset -> where the chain begins, and its digest."""
        self.compared = self.recorded = 0
        """Hashes that nodes had, and that the log has."""

    @staticmethod
    def _seeded(begin: int) -> bytes:
        return hashlib.sha256(b"raftlog log hash 1\0" + struct.pack(">q", begin)).digest()

    def append(self, logged: Logged, records: list[Record]) -> None:
        """The next batch is committed. Raises CheckFailedError: it claims another hash."""
        header = logged.header
        for record in records:
            message = record.message
            if record.type == RecordType.PROGRESS and message.log_hash:
                self._claimed(message, header.base_offset)
        data = logged.data[header.position : header.position + header.size]
        self._digest = hashlib.sha256(self._digest + data).digest()
        self._at[header.end_offset] = 0, self._digest

    def _claimed(self, message: object, offset: int) -> None:
        begin, end = message.log_hash_begin_offset, message.log_hash_end_offset  # type: ignore[attr-defined]
        digest = message.log_hash  # type: ignore[attr-defined]
        if end > offset or self._at.get(end) != (begin, digest):
            raise CheckFailedError(
                f"the progress record at {offset} says that the log from {begin} to {end} has the"
                f" hash {digest.hex()}; it is {self._at.get(end)}"
            )
        self.recorded += 1

    def at(self, end_offset: int) -> LogHash:
        """Return the hash of the committed log below an offset. Raises KeyError: no batch ends
        there.
        """
        begin, digest = self._at[end_offset]
        return LogHash(begin, end_offset, digest)

    def require(self, who: str, found: LogHash) -> None:
        """A node's own hash is that of the committed log. Raises CheckFailedError."""
        expected = self._at.get(found.end_offset)
        if (found.begin_offset, found.digest) != expected:
            raise CheckFailedError(f"{who} has the log hash {found}, it must be {expected}")
        self.compared += 1
