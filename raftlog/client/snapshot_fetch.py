"""Fetching one snapshot from one node of the quorum, by position (KIP-630): what brokers, readers
and backups begin with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from raftlog.errors import ApiError, ErrorCode, RaftlogError
from raftlog.storage.api import SnapshotId
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

PIECE_BYTES = 32 << 10
"""What is asked for at a time: taking it in blocks the reader's loop for a few milliseconds."""
NO_EPOCH = -1
"""The reader follows no leader: any node that has the snapshot answers."""


class SnapshotFetch:
    """Asks for piece after piece on a link of its own, and hands each to ``sink``; then calls
    ``done``, once.

    ``done`` gets None when ``sink`` has taken the last piece; an ApiError if the node refuses
    (SNAPSHOT_NOT_FOUND: it has dropped it meanwhile) or stays silent (REQUEST_TIMED_OUT); whatever
    RaftlogError ``sink`` raised. Nothing is called after ``close``.

    A piece that does not come within ``timeout_s`` is asked for once more, on another link; only
    then the node is silent. Counter-example to giving up at once: one piece in a hundred is late,
    and a snapshot of a thousand pieces begins anew for ever.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        snapshot_id: SnapshotId,
        *,
        cluster_id: str,
        sink: Callable[[bytes], None],
        done: Callable[[RaftlogError | None], None],
        timeout_s: float,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address, self._id, self._cluster_id = address, snapshot_id, cluster_id
        self._sink, self._done, self._timeout_s, self._piece_bytes = (
            sink,
            done,
            timeout_s,
            piece_bytes,
        )
        self.position = 0
        """Bytes taken in so far."""
        self._asked = 0
        self._asked_again_at = 0
        """The position that was last asked for on another link. The first piece is not: begun anew,
        it costs nothing."""
        self._over = False
        self._transport = transport
        self._timer = self._loop.call_later(timeout_s, self._silent)
        self._dialer: Dialer = transport.dial(address, Conversation.SNAPSHOT, self)

    def opened(self, link: Link) -> None:
        """Begin, or go on where the last link ended."""
        self._ask(link)

    def _ask(self, link: Link) -> None:
        if self._over:
            return
        self._asked += 1
        try:
            link.send(
                pb.FetchSnapshotRequest(
                    cluster_id=self._cluster_id,
                    replica_id=-1,
                    current_leader_epoch=NO_EPOCH,
                    snapshot_id=pb.SnapshotId(end_offset=self._id.end_offset, epoch=self._id.epoch),
                    position=self.position,
                    max_bytes=self._piece_bytes,
                    correlation_id=self._asked,
                )
            )
        except LinkClosedError:
            return

    def received(self, link: Link, messages: Sequence[pb.FetchSnapshotResponse]) -> None:
        """Take the piece asked for; anything else is dropped."""
        for response in messages:
            if not self._over and response.correlation_id == self._asked:
                self._take(link, response)

    def _take(self, link: Link, response: pb.FetchSnapshotResponse) -> None:
        if response.error_code:
            code = ErrorCode(response.error_code)
            self._end(
                ApiError(
                    code,
                    f"{self._address} does not give snapshot {self._id.end_offset}: {code.name}",
                )
            )
            return
        if response.position != self.position or not response.bytes:
            self._end(
                ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{self._address} sent another piece than was asked for",
                )
            )
            return
        try:
            self._sink(response.bytes)
        except RaftlogError as error:
            self._end(error)
            return
        self.position += len(response.bytes)
        self._timer.cancel()
        if self.position >= response.size:
            self._end(None)
        else:
            self._timer = self._loop.call_later(self._timeout_s, self._silent)
            self._ask(link)

    def closed(self, link: Link, reason: str) -> None:
        """The dialer connects again, or the time runs out."""

    def _silent(self) -> None:
        if self._asked_again_at < self.position:
            self._asked_again_at = self.position
            self._dialer.close()
            self._timer = self._loop.call_later(self._timeout_s, self._silent)
            self._dialer = self._transport.dial(self._address, Conversation.SNAPSHOT, self)
            return
        self._end(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{self._address} sends no snapshot"))

    def _end(self, outcome: RaftlogError | None) -> None:
        self.close()
        self._done(outcome)

    def close(self) -> None:
        """Give it up. Idempotent."""
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._dialer.close()


async def fetch_snapshot(
    transport: Transport,
    address: str,
    snapshot_id: SnapshotId,
    sink: Callable[[bytes], None],
    *,
    cluster_id: str,
    timeout_s: float,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Fetch a whole snapshot, piece by piece into ``sink``.

    Raises ApiError, and what ``sink`` raises.
    """
    outcome: asyncio.Future[RaftlogError | None] = asyncio.get_running_loop().create_future()
    fetch = SnapshotFetch(
        transport,
        address,
        snapshot_id,
        cluster_id=cluster_id,
        sink=sink,
        done=outcome.set_result,
        timeout_s=timeout_s,
        piece_bytes=piece_bytes,
    )
    try:
        error = await outcome
    finally:
        fetch.close()
    if error is not None:
        raise error
