"""Parts of snapshots: a sent part is on the sender's disk under that name and position (KIP-630).
I11 (``states``) and I15 check the assembled snapshot.
"""

from typing import Any

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, fail
from simulation.twins.disk import SimDisk


class SnapshotParts(Checker):
    """Checker of sent parts of snapshots (KIP-630)."""

    def __init__(self) -> None:
        self.parts = 0
        """Number of sent parts of snapshots that have several."""
        self.whole = 0
        self.gone = 0
        """Number of requests for parts of a snapshot that was dropped after other parts were
        sent.
        """
        self._given: dict[tuple[str, str, SnapshotId], int] = {}
        """(sender, receiver, snapshot) -> end of the last part."""

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if type(message) is not pb.FetchSnapshotResponse:
            return
        disk = host.disk
        assert isinstance(disk, SimDisk)
        snapshot_id = SnapshotId(message.snapshot_id.end_offset, message.snapshot_id.epoch)
        key = host.name, peer, snapshot_id
        if message.error_code:
            if self._given.pop(key, 0) and message.error_code == ErrorCode.SNAPSHOT_NOT_FOUND:
                self.gone += 1
            return
        content = disk.snapshots.get(snapshot_id)
        if content is None:
            # The reply waited for a vote to become durable, and the snapshot was dropped meanwhile:
            # who takes the parts compares them.
            return
        position, given = message.position, message.bytes
        if (
            message.size != len(content)
            or content[position : position + len(given)] != given
            or not given
        ):
            what = f"{len(given)} of {message.size} bytes of {snapshot_id} from {position} on"
            fail(f"{host.name} gives {peer} {what}; that is not what it has there")
        end = position + len(given)
        if position or end < message.size:
            self.parts += 1
            self.whole += end == message.size
        self._given[key] = end if end < message.size else 0
