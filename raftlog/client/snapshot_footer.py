"""What a node's snapshot says of the state in it and of the log below: only its last bytes are
fetched, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raftlog.client.snapshot_fetch import NO_EPOCH
from raftlog.metadata.snapshot_file import Footer, read_footer
from raftlog.storage.api import SnapshotId
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

FOOTER_BYTES_MAX = 256
"""A footer takes about half of it."""


async def fetch_footer(
    transport: Transport,
    address: str,
    snapshot_id: SnapshotId,
    *,
    cluster_id: str,
    timeout_s: float,
) -> Footer | None:
    """The footer of a node's snapshot; None if the node does not give it in time, whatever the
    reason.
    """
    asking = _Tail(transport, address, snapshot_id, cluster_id)
    try:
        async with asyncio.timeout(timeout_s):
            tail = await asking.outcome
    except TimeoutError:
        return None
    finally:
        asking.close()
    return read_footer(tail)


class _Tail:
    """Asks for one byte, which tells the size, and then for the end."""

    def __init__(
        self, transport: Transport, address: str, snapshot_id: SnapshotId, cluster_id: str
    ) -> None:
        self.outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._id, self._cluster_id = snapshot_id, cluster_id
        self._position, self._asked = 0, 0
        self._dialer: Dialer = transport.dial(address, Conversation.SNAPSHOT, self)

    def _ask(self, link: Link, position: int, max_bytes: int) -> None:
        self._position, self._asked = position, self._asked + 1
        try:
            link.send(
                pb.FetchSnapshotRequest(
                    cluster_id=self._cluster_id,
                    replica_id=-1,
                    current_leader_epoch=NO_EPOCH,
                    snapshot_id=pb.SnapshotId(end_offset=self._id.end_offset, epoch=self._id.epoch),
                    position=position,
                    max_bytes=max_bytes,
                    correlation_id=self._asked,
                )
            )
        except LinkClosedError:
            return

    def opened(self, link: Link) -> None:
        """Begin, on a new link anew."""
        self._ask(link, 0, 1)

    def received(self, link: Link, messages: Sequence[pb.FetchSnapshotResponse]) -> None:
        """The size, then the end."""
        for response in messages:
            if self.outcome.done() or response.correlation_id != self._asked:
                continue
            end = max(1, response.size - FOOTER_BYTES_MAX)
            if response.error_code:
                self.outcome.set_result(b"")
            elif self._position == 0:
                self._ask(link, end, FOOTER_BYTES_MAX)
            else:
                self.outcome.set_result(response.bytes)

    def closed(self, link: Link, reason: str) -> None:
        """The dialer connects again, or the time runs out."""

    def close(self) -> None:
        """Give it up."""
        self.outcome.cancel()
        self._dialer.close()
