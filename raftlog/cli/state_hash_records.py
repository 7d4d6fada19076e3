"""What nodes say of their state, to be recorded in an export: so that a replay can be held against
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from raftlog.client.log_reader import fetch_footer
from raftlog.client.quorum_queries import Answer, ask_quorum
from raftlog.client.security import security_of_environment
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.log_hash import DIGEST_BYTES
from raftlog.metadata.snapshot_file import Footer, SnapshotId, SnapshotVerifier
from raftlog.segments.manifest import StateHash
from raftlog.transport.api import Transport

if TYPE_CHECKING:
    from raftlog.storage.reader import LogReader

ANSWER_WITHIN_S = 2.0
"""For each question: a node that does not answer is not recorded, and the export does not wait for
it.
"""
_READ_BYTES = 1 << 20


class StateHashRecorder:
    """Asks all nodes of a running quorum: for the state of their image, and once for that of each
    of their snapshots.
    """

    def __init__(
        self, transport: Transport, addresses: Sequence[str], cluster_id: str, generation: int
    ) -> None:
        self._transport, self._addresses = transport, tuple(addresses)
        self._cluster_id, self._generation = cluster_id, generation
        self._asked: set[tuple[int, SnapshotId]] = set()

    async def ask(self) -> list[StateHash]:
        """What those say that answer; never an error."""
        quorum = await ask_quorum(self._addresses, ANSWER_WITHIN_S, security_of_environment())
        said: list[StateHash] = []
        for answer in quorum.answers:
            said += await self._said_by(answer)
        return said

    async def _said_by(self, answer: Answer) -> list[StateHash]:
        one = answer.description
        if one is None or (one.cluster_id, one.generation) != (self._cluster_id, self._generation):
            return []
        said: list[StateHash] = []
        if one.image_offset >= 0 and len(one.state_hash) == 16:
            footer = Footer(
                int.from_bytes(one.state_hash, "big"), one.log_hash_begin_offset, one.log_hash
            )
            said.append(_said(one.image_offset, one.image_epoch, footer, one.node_id, "image"))
        for snapshot in one.snapshots:
            snapshot_id = SnapshotId(snapshot.end_offset, snapshot.epoch)
            if (one.node_id, snapshot_id) in self._asked:
                continue
            found = await fetch_footer(
                self._transport,
                answer.address,
                snapshot_id,
                cluster_id=self._cluster_id,
                timeout_s=ANSWER_WITHIN_S,
            )
            if found is not None:
                self._asked.add((one.node_id, snapshot_id))
                said.append(
                    _said(snapshot.end_offset - 1, snapshot.epoch, found, one.node_id, "snapshot")
                )
        return said


def said_by_directory(log: LogReader) -> list[StateHash]:
    """What the sound snapshots in a stopped node's directory say; a damaged one is no reason not to
    export the log. Raises StorageError.
    """
    said: list[StateHash] = []
    for snapshot_id in log.snapshots:
        with suppress(CorruptLogError):
            said.append(
                _said(
                    snapshot_id.end_offset - 1,
                    snapshot_id.epoch,
                    _footer_of(log, snapshot_id),
                    log.identity.node_id,
                    "snapshot",
                )
            )
    return said


def _footer_of(log: LogReader, snapshot_id: SnapshotId) -> Footer:
    """The footer of a snapshot, checked from end to end.

    Raises CorruptLogError, StorageError.
    """
    verifier, position = SnapshotVerifier(), 0
    while data := log.read_snapshot(snapshot_id, position, _READ_BYTES):
        verifier.feed(data)
        position += len(data)
    verifier.finish()
    assert verifier.footer is not None
    return verifier.footer


def _said(offset: int, epoch: int, footer: Footer, node_id: int, source: str) -> StateHash:
    hashed = len(footer.log_hash) == DIGEST_BYTES
    return StateHash(
        offset=offset,
        epoch=epoch,
        state_hash=format_hash(footer.state_hash),
        node_id=node_id,
        source=source,
        log_hash=footer.log_hash.hex() if hashed else "",
        log_hash_begin_offset=footer.log_hash_begin_offset if hashed else -1,
    )
