"""A link that moves from its gRPC stream to a lane.

The link opens on the stream, like every link, and the stream stays open: it still proves the peer's
identity, detects a silent host, and reports why the link ends. The envelopes move to the lane when
no request is unanswered: the dialing side sends its next request on the lane, and the serving side
answers on the path of the request. So no message is lost, duplicated or overtaken, and none waits
for a lane that cannot be opened. Clients have many requests in flight: once a lane is open, some
requests are held for a moment until all earlier ones are answered.

A broken lane ends the link, as a broken stream does. A lane that breaks before its first use is
dropped.

On a stream of watches both ends send without a request, so neither knows when nothing is in flight.
So there each direction moves separately: the sender's last message on the stream is a *mark*, an
empty message, and further messages are sent on the lane. The receiver reads the lane once it has
read the mark. The client moves first, when its lane is open; the server answers the mark with its
own.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc.aio

from raftlog.config_writes.writes import Framed
from raftlog.logger import get_logger
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import Bounds
from raftlog.transport.conversations import MalformedMessageError, TooManyItemsError
from raftlog.transport.grpc_link import FEW_BYTES, GrpcLink, Stream
from raftlog.transport.lane_tickets import (
    LANED,
    LOOKS_AFTER_REQUESTS,
    LOOKS_AFTER_RESPONSES,
    MARKED,
    OF_NODES,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Offer,
    connect,
)
from raftlog.transport.lane_tls import LaneTls
from raftlog.transport.lanes import Lane, LaneError
from raftlog.transport.links import BaseLink
from raftlog.transport.probe import split_address

log = get_logger(__name__)

PUT_MAX_BYTES = {
    Conversation.REPLICATION: 64 << 10,
    Conversation.OBSERVER: 8 << 10,
    Conversation.CONTROLLER: 8 << 10,
    Conversation.BROKER: 8 << 10,
    Conversation.WATCH_MANY: 8 << 10,
}
"""Largest item, in bytes, that is written directly; the writer queues a longer one and counts its
unsent bytes. Unsent bytes of short items are not counted, and add up over many observers.
"""

MARK = b""
"""The last message on a stream that its sender leaves; no other message there is empty."""
HOLD_AFTER_REQUESTS = 64
"""Number of requests on the stream after which further ones are held until all earlier ones are
answered, so that a steady sender can move to its lane. If that takes too long, this number is
doubled.
"""
HOLD_MAX_S = 0.02
"""Longest hold, in seconds, as a request may wait for visibility or its deadline, and must not
delay others for that long.
"""


class LanedLink(GrpcLink):
    """The common part of both ends of a link that may move to a lane."""

    def __init__(
        self, stream: Stream, peer: str, conversation: Conversation, bounds: Bounds, *, serves: bool
    ) -> None:
        super().__init__(stream, peer, conversation, bounds, serves=serves)
        self._call = stream
        self._conversation = conversation
        self._put_max_bytes = PUT_MAX_BYTES[conversation]
        self._single = self._outgoing.single
        """Whether each message is an envelope."""
        self._standing: Lane | None = None
        """An open lane that is not in use yet, or None."""
        self._lane: Lane | None = None

    def lane_max_bytes(self) -> int:
        """Largest accepted envelope, in bytes."""
        return self._receive_max_bytes

    def lane_opened(self, lane: Lane) -> None:
        """Handle a lane that has opened, so that the link may use it."""
        if self._reason is not None:
            lane.abort()
            return
        self._standing = lane
        if self._tasks:
            self._attend(lane)

    def lane_ended(self) -> None:
        """Drop the lane. Idempotent."""
        for lane in (self._standing, self._lane):
            if lane is not None:
                lane.take = None
                lane.abort()

    def send(self, message: Any) -> None:
        """See :class:`GrpcLink`. If nothing is queued, the message is sent at once."""
        lane = self._lane
        if lane is None or self._reason is not None:
            self._send_on_stream(message)
            return
        item = self._encode(message, self._send_max_bytes)
        # The writer is busy as long as nothing can wake it. Items of a list are left to it: more
        # may follow in this iteration, and share their envelope.
        if (
            (self._single or type(item) is Framed)
            and self._wake is not None
            and lane.writable
            and len(item) <= self._put_max_bytes
        ):
            lane.put(item)
        else:
            self._queue(item)

    def _send_on_stream(self, message: Any) -> None:
        """Queue a message on the stream, because no lane is in use."""
        super().send(message)

    def _use(self, lane: Lane) -> None:
        """Move all further messages to the lane."""
        self._standing, self._lane, self._stream = None, lane, lane
        self._arriving = None
        lane.take = self._take
        self._count(1)

    def _take(self, envelope: bytes) -> bool:
        """Deliver an envelope directly if none is queued before it. Return False if the reader must
        process it.
        """
        turns = self._turns
        if turns is not None:
            if len(envelope) > FEW_BYTES or turns.busy or self._rest_s:
                return False
            begun = turns.now()
        try:
            messages = self._incoming.decode(envelope, self._max_items)
        except (MalformedMessageError, TooManyItemsError):
            return False
        if turns is not None and len(messages) > self._slice_items:
            return False
        BaseLink.deliver(self, messages)
        if turns is not None:
            took_s = turns.now() - begun
            turns.used(took_s)
            self._rest_s = self._rested_for(took_s)
        return True

    def _reader(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        return self._read_call

    async def _read_call(self) -> Any:
        """Read from the stream; after the link has moved, only the stream's end is valid."""
        data = await self._call.read()
        if self._lane is not None and data is not grpc.aio.EOF:
            raise MalformedMessageError("message on the stream after the link moved to its lane")
        return data

    async def run(self) -> None:
        """See :class:`GrpcLink`."""
        if self._standing is not None:
            self._attend(self._standing)
        try:
            await super().run()
        finally:
            self.lane_ended()

    def _shut(self) -> None:
        super()._shut()
        if self._lane is not None:
            self._count(-1)

    @abstractmethod
    def _attend(self, lane: Lane) -> None:
        """Start using an open lane, while the link runs."""

    @abstractmethod
    def _count(self, change: int) -> None:
        """Add ``change`` to the number of links on a lane."""


class _QuietLink(LanedLink):
    """A link that moves when no request is unanswered."""

    def _attend(self, lane: Lane) -> None:
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

    @abstractmethod
    def _first_came(self, lane: Lane) -> None:
        """Process the first bytes on a lane that is not in use."""


class _Served(LanedLink):
    """The common part of the server's ends, which are counted as served."""

    def __init__(
        self, stream: Stream, peer: str, conversation: Conversation, bounds: Bounds
    ) -> None:
        super().__init__(stream, peer, conversation, bounds, serves=True)

    def _count(self, change: int) -> None:
        self._bounds.lanes.served[self._conversation] += change


class _Dialed(LanedLink):
    """The dialing end: it opens the lane, and decides when to move."""

    def __init__(
        self,
        stream: Stream,
        address: str,
        conversation: Conversation,
        bounds: Bounds,
        offer: Offer,
        tls: LaneTls | None = None,
    ) -> None:
        super().__init__(stream, address, conversation, bounds, serves=False)
        self._offer, self._tls = offer, tls

    async def _look_for_lane(self) -> None:
        """Retry until a lane is open, as an obstacle such as a firewall may disappear."""
        host, _ = split_address(self.peer)
        timeout_s = self._bounds.limits.connect_timeout_ms / 1000
        lanes, pause_s = self._bounds.lanes, RETRY_MIN_S
        of = host, self._offer, self._receive_max_bytes, timeout_s, self._tls
        while True:
            try:
                lane = await connect(*of)
            except LaneError as error:
                loses_fetches = self._conversation in OF_NODES
                lanes.failed(self.peer, str(error), loses_fetches=loses_fetches)
                # Random: many peers may have lost their lanes at once.
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            lanes.opened(self.peer)
            self.lane_opened(lane)
            return

    def _count(self, change: int) -> None:
        self._bounds.lanes.dialed[self._conversation] += change
        if change > 0:
            say = log.info if self._conversation in OF_NODES else log.debug
            say("a link has moved to a separate TCP connection", address=self.peer)


class ServedLanedLink(_QuietLink, _Served):
    """The server's end: it answers on the path of the last request."""

    def _first_came(self, lane: Lane) -> None:
        # The dialing side has moved.
        self._use(lane)


class DialedLanedLink(_QuietLink, _Dialed):
    """The dialing end: it moves with a request, or holds requests for a moment until it can."""

    def __init__(
        self,
        stream: Stream,
        address: str,
        conversation: Conversation,
        *of: Any,
    ) -> None:
        super().__init__(stream, address, conversation, *of)
        self._answers = LANED[conversation]
        self._unanswered = 0
        """Number of unanswered requests on the stream."""
        self._asks_left = LOOKS_AFTER_REQUESTS.get(conversation, 0)
        """Number of requests before the link tries to open its lane."""
        self._until_hold = self._hold_every = HOLD_AFTER_REQUESTS
        """Number of requests on the stream, once a lane is open, until the next ones are held."""
        self._asleep: asyncio.Future[None] | None = None
        """Future that would wake the writer while requests are held, or None."""
        self._held = 0
        """Number of held requests."""
        self._hold_timer: asyncio.TimerHandle | None = None

    def _send_on_stream(self, message: Any) -> None:
        """Queue a message; move to the open lane first if no request is unanswered."""
        if self._lane is None and self._standing is not None and not self._unanswered:
            self._use(self._standing)
            self.send(message)
            return
        if self._lane is None:
            self._hold()
            super()._send_on_stream(message)
            self._not_moved()
        else:
            super()._send_on_stream(message)

    def _hold(self) -> None:
        """Hold further requests if a steady flow of earlier ones has kept the link from moving."""
        # The writer is idle when it can be woken.
        if self._until_hold <= 0 and self._standing is not None and self._wake is not None:
            self._asleep, self._wake = self._wake, None
            self._hold_timer = self._loop.call_later(HOLD_MAX_S, self._release)

    def _not_moved(self) -> None:
        """Count a request that was sent on the stream, although a lane is open or not open yet."""
        if self._asleep is not None:
            self._held += 1
            return
        self._unanswered += 1
        if self._standing is not None:
            self._until_hold -= 1
        elif self._asks_left:
            self._asks_left -= 1
            if not self._asks_left:
                self._spawn(self._look_for_lane())

    def _release(self) -> None:
        """Release the held requests on the link's current path."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        wake, self._asleep = self._asleep, None
        if self._lane is None:
            self._unanswered += self._held
            self._hold_every *= 2
            self._until_hold = self._hold_every
        self._held = 0
        if wake is not None and self._reason is None:
            if not self._pending:
                self._wake = wake
            elif not wake.done():
                wake.set_result(None)

    def deliver(self, messages: Sequence[Any]) -> None:
        """Deliver messages from the stream, or from the lane's reader."""
        if self._lane is None:
            self._unanswered -= sum(map(self._answers, messages))
            if self._asleep is not None and not self._unanswered:
                if self._standing is not None:
                    self._use(self._standing)
                self._release()
        super().deliver(messages)

    async def run(self) -> None:
        """See :class:`LanedLink`."""
        if not self._asks_left:
            self._spawn(self._look_for_lane())
        await super().run()

    def _shut(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        super()._shut()

    def _first_came(self, lane: Lane) -> None:
        self.malformed("response on a lane without a request")
        self.close("malformed message")


class _MarkedLink(LanedLink):
    """A link each of whose directions moves after a mark."""

    _marked = False
    """True once the peer's mark was read: only the stream's end may follow."""

    def _begin_leaving(self) -> None:
        """Make the writer send the mark, and everything queued after it on the lane."""
        self._leaves = True
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.set_result(None)

    async def _leave_stream(self) -> None:
        self._leaves = False
        await self._call.write(MARK)
        if self._standing is not None and self._reason is None:
            self._use(self._standing)

    async def _read_call(self) -> Any:
        """Read from the stream up to the mark; after it only the stream's end is valid."""
        data = await self._call.read()
        if data == MARK and not self._marked:
            lane = self._lane or self._standing
            if lane is None:
                raise MalformedMessageError("mark on a stream without a lane")
            self._marked = True
            self._spawn(self._read(lane.read))
            self._mark_came()
            data = await self._call.read()
        if self._marked and data is not grpc.aio.EOF:
            raise MalformedMessageError("message on the stream after the link moved to its lane")
        return data

    def _mark_came(self) -> None:
        """Process the peer's mark."""


class ServedMarkedLink(_MarkedLink, _Served):
    """The server's end: it moves after the client."""

    def _attend(self, lane: Lane) -> None:
        """Do nothing, as the client moves first."""

    def _mark_came(self) -> None:
        self._begin_leaving()


class DialedMarkedLink(_MarkedLink, _Dialed):
    """The client's end: it tries to open a lane after it has received some responses."""

    _responses_left = LOOKS_AFTER_RESPONSES
    """Number of responses before the link tries to open its lane."""

    def _attend(self, lane: Lane) -> None:
        self._begin_leaving()

    def deliver(self, messages: Sequence[Any]) -> None:
        """Deliver messages; after the first few, try to open the lane."""
        if self._responses_left > 0:
            self._responses_left -= len(messages)
            if self._responses_left <= 0:
                self._spawn(self._look_for_lane())
        super().deliver(messages)


SERVED = {one: ServedMarkedLink if one in MARKED else ServedLanedLink for one in LANED}
DIALED = {one: DialedMarkedLink if one in MARKED else DialedLanedLink for one in LANED}
"""The link class of each end, by conversation, where a lane is possible."""
