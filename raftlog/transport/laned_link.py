"""A link that leaves its gRPC stream for a lane.

The link opens on the stream, as every link, and stays open on it: the stream goes on to prove who
the peer is, to notice a silent host, and to say why the link ends. The envelopes move when nothing
is under way: who dials sends its next request on the lane when each request before it has been
answered, and who serves answers where the request came from. So no message is lost, doubled or
overtaken, and nothing waits for a lane that is not to be had.

A lane that breaks ends the link, as a broken stream does. One that breaks before it was used is
forgotten.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from raftlog.logger import get_logger
from raftlog.transport.api import Conversation
from raftlog.transport.base_link import BaseLink
from raftlog.transport.bounds import Bounds
from raftlog.transport.conversations import MalformedMessageError, TooManyItemsError
from raftlog.transport.grpc_link import FEW_BYTES, GrpcLink, Stream
from raftlog.transport.lane import Lane, LaneError
from raftlog.transport.lane_offer import (
    LANED,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Offer,
    connect,
)
from raftlog.transport.probe import split_address

import grpc.aio  # isort: skip

log = get_logger(__name__)

PUT_MAX_BYTES = {Conversation.REPLICATION: 64 << 10, Conversation.OBSERVER: 8 << 10}
"""A longer item is left to the writer, which counts what the kernel does not take. What it does not
take of one that is not longer is in no count: of many observers that adds up.
"""


class LanedLink(GrpcLink):
    """What both ends do alike."""

    def __init__(
        self, stream: Stream, peer: str, conversation: Conversation, bounds: Bounds, *, serves: bool
    ) -> None:
        super().__init__(stream, peer, conversation, bounds, serves=serves)
        self._call = stream
        self._conversation = conversation
        self._put_max_bytes = PUT_MAX_BYTES[conversation]
        self._standing: Lane | None = None
        """Had, and not used yet."""
        self._lane: Lane | None = None
        """In use."""

    def lane_max_bytes(self) -> int:
        """The largest envelope that is taken."""
        return self._receive_max_bytes

    def lane_stands(self, lane: Lane) -> None:
        """The lane may be used from now on."""
        if self._reason is not None:
            lane.abort()
            return
        self._standing = lane
        if self._tasks:
            self._spawn(self._read_lane(lane))

    async def _read_lane(self, lane: Lane) -> None:
        try:
            await lane.readable()
        except LaneError as error:
            if lane is self._lane:
                self.close(str(error))
            else:
                self._standing = None
            return
        if self._lane is None:
            self._first_came(lane)
        await self._read(lane.read)

    def lane_over(self) -> None:
        """Let go of the lane. Idempotent."""
        for lane in (self._standing, self._lane):
            if lane is not None:
                lane.take = None
                lane.abort()

    def send(self, message: Any) -> None:
        """See :class:`GrpcLink`. Nothing in front of it: it leaves at once."""
        lane = self._lane
        if lane is None or self._reason is not None:
            super().send(message)
            return
        item = self._encode(message, self._send_max_bytes)
        # The writer is busy as long as nothing can wake it. A message is an envelope here.
        if self._wake is not None and lane.writable and len(item) <= self._put_max_bytes:
            lane.put(item)
        else:
            self._queue(item)

    def _use(self, lane: Lane) -> None:
        """From here on everything goes over the lane."""
        self._standing, self._lane, self._stream = None, lane, lane
        lane.take = self._take
        self._count(1)

    def _take(self, envelope: bytes) -> bool:
        """An envelope that no other waits in front of. False: the reader has to."""
        turns = self._turns
        if turns is not None:
            if len(envelope) > FEW_BYTES or turns.busy:
                return False
            begun = turns.now()
        try:
            # One at a time: these are conversations of single messages.
            messages = self._incoming.decode(envelope, self._max_items)
        except (MalformedMessageError, TooManyItemsError):
            return False
        BaseLink.deliver(self, messages)
        if turns is not None:
            turns.used(turns.now() - begun)
        return True

    def _reader(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        return self._read_call

    async def _read_call(self) -> Any:
        """What comes on the stream: no more than its end, once the link has moved."""
        data = await self._call.read()
        if self._lane is not None and data is not grpc.aio.EOF:
            raise MalformedMessageError("a message on the stream, beside its lane")
        return data

    async def run(self) -> None:
        """See :class:`GrpcLink`."""
        if self._standing is not None:
            self._spawn(self._read_lane(self._standing))
        try:
            await super().run()
        finally:
            self.lane_over()

    def _shut(self) -> None:
        super()._shut()
        if self._lane is not None:
            self._count(-1)

    @abstractmethod
    def _first_came(self, lane: Lane) -> None:
        """Something came on a lane that is not in use."""

    @abstractmethod
    def _count(self, change: int) -> None:
        """So many more links use a lane."""


class ServedLanedLink(LanedLink):
    """The server's end: it answers where it was asked last."""

    def __init__(
        self, stream: Stream, peer: str, conversation: Conversation, bounds: Bounds
    ) -> None:
        super().__init__(stream, peer, conversation, bounds, serves=True)

    def _first_came(self, lane: Lane) -> None:
        # Whoever dialed has moved.
        self._use(lane)

    def _count(self, change: int) -> None:
        self._bounds.lanes.served[self._conversation] += change


class DialedLanedLink(LanedLink):
    """The end that dials: it looks for the lane, and decides when to move."""

    def __init__(
        self,
        stream: Stream,
        address: str,
        conversation: Conversation,
        bounds: Bounds,
        offer: Offer,
    ) -> None:
        super().__init__(stream, address, conversation, bounds, serves=False)
        self._offer = offer
        self._answers = LANED[conversation]
        self._unanswered = 0
        """Requests on the stream that have no answer yet."""

    def send(self, message: Any) -> None:
        """See :class:`LanedLink`."""
        if self._lane is None:
            if self._standing is None or self._unanswered:
                super().send(message)
                self._unanswered += 1
                return
            self._use(self._standing)
        super().send(message)

    def deliver(self, messages: Sequence[Any]) -> None:
        """Hand over what arrived on the stream, or what the reader of the lane has read."""
        if self._lane is None:
            self._unanswered -= sum(map(self._answers, messages))
        super().deliver(messages)

    async def run(self) -> None:
        """See :class:`LanedLink`."""
        self._spawn(self._look_for_lane())
        await super().run()

    async def _look_for_lane(self) -> None:
        """Until there is one: what keeps it away, a firewall, may go."""
        host, _ = split_address(self.peer)
        timeout_s = self._bounds.limits.connect_timeout_ms / 1000
        lanes, pause_s = self._bounds.lanes, RETRY_MIN_S
        while True:
            try:
                lane = await connect(host, self._offer, self._receive_max_bytes, timeout_s)
            except LaneError as error:
                lanes.failed(self.peer, str(error))
                # Spread: many may have lost theirs at once.
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            lanes.had(self.peer)
            self.lane_stands(lane)
            return

    def _first_came(self, lane: Lane) -> None:
        self.malformed("an answer on a lane on which nothing was asked")
        self.close("malformed message")

    def _count(self, change: int) -> None:
        self._bounds.lanes.dialed[self._conversation] += change
        if change > 0:
            log.info("fetches over a TCP connection of its own", address=self.peer)
