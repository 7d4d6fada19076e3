"""Pulling one snapshot from the leader, part after part by position (KIP-630).

Why: docs/decisions/007-snapshots.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.quorum.events import DropSnapshot, StoreSnapshot
from raftlog.storage.api import SnapshotId
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from raftlog.quorum.node import Node

MIN_PART_BYTES = 64 << 10
"""A part that does not come in time is asked for in smaller pieces, down to this: on a slow link
the same part would never come within the timeout, and the leader would seem silent (KIP-1219)."""


class SnapshotFetcher:
    """What came is stored at once; a request that failed is repeated for the same position."""

    def __init__(self, node: Node, snapshot_id: SnapshotId) -> None:
        self.snapshot_id = snapshot_id
        self._node = node
        self._position = 0
        self._size: int | None = None
        self._part_bytes = node.config.fetch_snapshot_max_bytes

    @property
    def complete(self) -> bool:
        """Whether all of it has come and was handed over."""
        return self._position == self._size

    def request(self, epoch: int, correlation_id: int) -> pb.FetchSnapshotRequest:
        """For the next part."""
        config = self._node.config
        return pb.FetchSnapshotRequest(
            cluster_id=config.cluster_id,
            replica_id=config.node_id,
            replica_directory_id=config.directory_id,
            current_leader_epoch=epoch,
            snapshot_id=pb.SnapshotId(
                end_offset=self.snapshot_id.end_offset, epoch=self.snapshot_id.epoch
            ),
            position=self._position,
            max_bytes=self._part_bytes,
            correlation_id=correlation_id,
        )

    def ask_for_less(self) -> None:
        """The last part did not come in time."""
        self._part_bytes = min(self._part_bytes, max(MIN_PART_BYTES, self._part_bytes // 2))

    def take(self, response: pb.FetchSnapshotResponse) -> bool:
        """Store what came. False if it is not what was asked for: begin anew."""
        named, data = response.snapshot_id, response.bytes
        end = self._position + len(data)
        if (
            (named.end_offset, named.epoch) != (self.snapshot_id.end_offset, self.snapshot_id.epoch)
            or response.position != self._position
            or self._size not in (None, response.size)
            or not data
            or end > response.size
        ):
            return False
        self._size = response.size
        self._node.out.append(
            StoreSnapshot(self.snapshot_id, self._position, data, last=end == response.size)
        )
        self._position = end
        return True

    def drop(self) -> None:
        """Give up."""
        if self._position:
            self._node.out.append(DropSnapshot(self.snapshot_id))
