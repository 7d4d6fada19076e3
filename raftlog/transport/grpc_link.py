"""A gRPC stream as a link, the same at both ends: a writer task and a reader loop.

A message needs no Task and no unary RPC. ``send`` serialises and appends; the first call wakes the
writer, which writes all queued messages in its next iteration, so that sends within one iteration
of the loop, or during a write, share an envelope. A served link delivers messages in turns
(:mod:`raftlog.transport.turns`): no peer delays the loop with one message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from raftlog.bounds import ENVELOPE_MAX_ITEMS, ITEM_MEMORY_BYTES, ITEMS_A_SLICE
from raftlog.errors import ApiError
from raftlog.transport.api import Conversation
from raftlog.transport.bounds import RESPONSE_SHIFT, Bounds, Complaint, OpenCall
from raftlog.transport.conversations import WIRES, MalformedMessageError, TooManyItemsError
from raftlog.transport.lanes import LaneError
from raftlog.transport.links import PEER_ENDED, BaseLink

FEW_BYTES = 1024
"""Largest message, in bytes, that is parsed whole before its items are counted."""
TIMER_S = 0.0015
"""Seconds by which uvloop's timers may be early, as they count whole milliseconds from the start of
the current one, and round to the nearest.
"""
THROTTLED_RESTS = 9
"""Pause before the next message of a throttled peer is read, as a multiple of a refusal's cost, so
that a peer that ignores the throttling gets a tenth of the time.
"""
UNBUDGETED_BYTES = 1024
"""Unsent bytes of a link that are not charged to the budget of all links, as a short message is
usually sent before it would be charged, and charging costs time.
"""
_NO_METHOD = "Method not found!"
"""gRPC's status details for a method that the server does not have."""
_CONNECT_PREAMBLE = re.compile(
    r"^failed to connect to all addresses; last error: \w+: (ipv[46]:\S+: )?(Failed to connect to"
    r" remote host: (connect: )?)?"
)
_HTTP1 = "Trying to connect an http1.x server"
"""gRPC's status details for a server that answers in HTTP/1."""


class Stream(Protocol):
    """The common interface of a client's call and a server's context."""

    def read(self) -> Coroutine[Any, Any, Any]:
        """Return the next message's bytes, or grpc.aio.EOF."""

    def write(self, message: bytes) -> Coroutine[Any, Any, None]:
        """Send a message; return when the transport has accepted it."""


class GrpcLink(BaseLink):
    """A link over one stream.

    The owner of the stream awaits ``run``. ``serves``: True for the server's end.
    """

    def __init__(
        self, stream: Stream, peer: str, conversation: Conversation, bounds: Bounds, *, serves: bool
    ) -> None:
        super().__init__(asyncio.get_running_loop(), peer)
        self._stream = stream
        wires, limits = WIRES[conversation], bounds.limits
        self._outgoing, self._incoming = (wires.to_client, wires.to_server)[:: 1 if serves else -1]
        self._encode = self._outgoing.encode
        self._bounds = bounds
        self._complaints = bounds.complaints
        self._budget = bounds.send_budget
        self._turns = bounds.turns[conversation.name] if serves else None
        self._asked_once = serves and conversation is Conversation.WATCH
        """Whether the client sends only one message, and may then end its side."""
        self._slice_items = ITEMS_A_SLICE.get(conversation.name, 1)
        request_max_bytes = limits.request_max_bytes(conversation.name)
        self._send_max_bytes = limits.max_message_bytes if serves else request_max_bytes
        self._receive_max_bytes = request_max_bytes if serves else limits.max_message_bytes
        self._max_items = limits.max_message_items
        self._max_messages = limits.max_queued_messages
        self._max_bytes = limits.max_queued_bytes
        self._tasks: list[asyncio.Task[None]] = []
        self._pending: list[bytes] = []
        self._unsent_bytes = 0
        self._budgeted_bytes = 0
        """Unsent bytes that are charged to the budget of all links."""
        self._wake: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._throttled = False
        self._rest_s = 0.0
        """Pause before the next message is processed, in seconds."""
        self._leaves = False
        """Whether a mark must end this direction of the stream after the current write."""
        self._arriving: OpenCall | None = None
        """Account of the served stream's unfinished messages."""
        self.refusal: ApiError | None = None
        """Error that is sent to the peer when the link closes, or None."""

    def send(self, message: Any) -> None:
        """Queue a message.

        Raises LinkClosedError, TypeError, and ApiError MESSAGE_TOO_LARGE (nothing is sent, the link
        stays open).
        """
        if self._reason is not None:
            raise self._closed_error()
        self._queue(self._encode(message, self._send_max_bytes))

    def _queue(self, data: bytes) -> None:
        """Queue an item for the writer. Raises LinkClosedError."""
        pending, length = self._pending, len(data)
        if len(pending) >= self._max_messages or self._unsent_bytes + length > self._max_bytes:
            self.cut(
                f"{len(pending)} messages with {self._unsent_bytes} bytes are unsent: the peer does"
                " not keep up"
            )
            raise self._closed_error()
        pending.append(data)
        unsent_bytes = self._unsent_bytes = self._unsent_bytes + length
        more_bytes = unsent_bytes - self._budgeted_bytes
        if more_bytes > UNBUDGETED_BYTES:
            self._budgeted_bytes = unsent_bytes
            self._budget.add(self, more_bytes)
            if self._reason is not None:
                raise self._closed_error()
        wake = self._wake
        if wake is not None:
            self._wake = None
            wake.set_result(None)

    @property
    def unsent_bytes(self) -> int:
        """Size of the queued messages and of the current write, in bytes."""
        return self._unsent_bytes

    def cut(self, reason: str) -> None:
        """Close the link, because its peer does not read."""
        self.refuse(self._bounds.throttled(Complaint.SLOW_READER, self.peer, reason))

    def refuse(self, error: ApiError) -> None:
        """Close the link with an error to the peer."""
        if self._reason is None:
            self.refusal = error
            self.close(error.message)

    async def run(self) -> None:
        """Carry messages until either side ends the stream or the caller is cancelled."""
        if self._turns is None:
            await self._carry()
            return
        unfinished, most_bytes = self._bounds.unfinished, self._receive_max_bytes
        with unfinished.call(self.peer, self._cut_unfinished, most_bytes) as self._arriving:
            await self._carry()

    def throttled(self, what: str) -> None:
        """See :class:`raftlog.transport.api.Link`."""
        super().throttled(what)
        self._throttled = True

    def _rested_for(self, took_s: float) -> float:
        """Return the pause that follows work of ``took_s`` seconds."""
        if not self._throttled:
            return 0.0
        self._throttled = False
        return THROTTLED_RESTS * took_s + TIMER_S

    def _cut_unfinished(self, reason: str) -> None:
        """Close the link, because its peer leaves messages unfinished."""
        self.refuse(self._bounds.throttled(Complaint.UNFINISHED, self.peer, reason))

    async def _carry(self) -> None:
        self._spawn(self._read(self._reader(), self._arriving))
        self._spawn(self._write())
        try:
            await self._ended
        finally:
            self.close("the stream was cancelled")
            # A cancelled task refers to its frame, and so to the stream: a kept reference would
            # hold the connection open until the next garbage collection.
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _reader(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        """Return the function that reads from the stream."""
        return self._stream.read

    def _spawn(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part of the link while the link is open."""
        self._tasks.append(self._loop.create_task(part))

    def _shut(self) -> None:
        self._pending, self._unsent_bytes = [], 0
        budgeted_bytes, self._budgeted_bytes = self._budgeted_bytes, 0
        self._budget.sent(self, budgeted_bytes, all_sent=True)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _read(
        self, read: Callable[[], Coroutine[Any, Any, Any]], arriving: OpenCall | None = None
    ) -> None:
        try:
            while arriving is None or arriving.reads:
                data = await read()
                if data is grpc.aio.EOF:
                    self.close(PEER_ENDED)
                    return
                if arriving is not None:
                    arriving.took(len(data))
                    # Anything after the only request is not read.
                    arriving.reads = not self._asked_once
                if len(data) > self._receive_max_bytes:
                    detail = (
                        f"the message has {len(data)} bytes, but the limit is"
                        f" {self._receive_max_bytes}"
                    )
                    raise self._bounds.throttled(Complaint.TOO_LARGE, self.peer, detail)
                turns = self._turns
                if turns is None:
                    self.deliver(self._incoming.decode(data, self._max_items))
                    continue
                if self._rest_s:
                    rest_s, self._rest_s = self._rest_s, 0.0
                    await asyncio.sleep(rest_s)
                if len(data) <= FEW_BYTES and not turns.busy:
                    # A fetch, a heartbeat, a write: too short to split.
                    begun = turns.now()
                    few = self._incoming.decode(data, self._max_items)
                    if len(few) <= self._slice_items:
                        self.deliver(few)
                        took_s = turns.now() - begun
                        turns.used(took_s)
                        self._rest_s = self._rested_for(took_s)
                        continue
                await self._work(data)
        except (grpc.RpcError, grpc.aio.BaseError, LaneError) as error:
            self.close(failure_text(error))
        except MalformedMessageError as error:
            self._bounds.complaints.add(Complaint.MALFORMED, self.peer, str(error))
            self.close(f"malformed message: {error}")
        except TooManyItemsError as error:
            self.refusal = self._bounds.throttled(Complaint.TOO_MANY_ITEMS, self.peer, str(error))
            self.close(str(error))
        except ApiError as error:
            self.refusal = error
            self.close(error.message)

    async def _work(self, data: bytes) -> None:
        """Deliver one envelope in as many turns as it needs."""
        turns = self._turns
        assert turns is not None
        if turns.busy:
            await self._turn(len(data))
        begun = turns.now()
        try:
            for messages, waiting_bytes in self._slices(data):
                self.deliver(messages)
                now = turns.now()
                turns.spent(now - begun)
                rest_s = self._rested_for(now - begun)
                begun = now
                if not waiting_bytes:
                    self._rest_s = rest_s
                elif rest_s or turns.over:
                    await self._turn(waiting_bytes, rest_s)
                    begun = turns.now()
        except (MalformedMessageError, TooManyItemsError):
            # Detecting the fault took time, too.
            turns.spent(turns.now() - begun)
            raise
        finally:
            # Also after an error, which ends the link: otherwise the turn would never be passed on
            # [all waiting links kept waiting].
            turns.pass_on()

    def _slices(self, data: bytes) -> Iterator[tuple[Sequence[Any], int]]:
        """Yield an envelope's messages in slices, each with the number of bytes held while the next
        slice waits for its turn; 0 for the last slice.
        """
        size, part_begin = self._slice_items, 0
        ends = self._incoming.cut(data, self._max_items)
        for part_end in ends:
            part = data if len(ends) == 1 else data[part_begin:part_end]
            part_begin = part_end
            messages: Sequence[Any] = self._incoming.decode(part, self._max_items)
            count = len(messages)
            held_bytes = len(data) + ITEM_MEMORY_BYTES * count
            for begin in range(0, max(count, 1), size):
                some = messages[begin : begin + size] if count > size else messages
                is_last = begin + size >= count and part_end == ends[-1]
                yield some, 0 if is_last else held_bytes

    async def _turn(self, cost_bytes: int, rest_s: float = 0.0) -> None:
        """Wait for a turn after a pause, if the queue has room for ``cost_bytes``. Raises
        ApiError.
        """
        assert self._turns is not None
        waiting = self._bounds.waiting
        if not waiting.take(self.peer, cost_bytes):
            raise self._bounds.throttled(
                Complaint.TOO_MUCH_WAITING,
                self.peer,
                f"{waiting.held(self.peer)} bytes from this peer are already queued",
            )
        try:
            if rest_s:
                self._turns.pass_on()
                await asyncio.sleep(rest_s)
            await self._turns.next(self.peer)
        finally:
            waiting.give_back(self.peer, cost_bytes)

    async def _write(self) -> None:
        envelopes = self._outgoing.envelopes
        try:
            while self._reason is None:
                if self._leaves:
                    await self._leave_stream()
                if not self._pending:
                    self._wake = self._loop.create_future()
                    await self._wake
                    continue
                # At most ENVELOPE_MAX_ITEMS at once: for a peer that has read nothing for a while,
                # or for many peers together, tens of thousands may be queued.
                if len(self._pending) <= ENVELOPE_MAX_ITEMS:
                    # No message is queued between here and the first write: these items are all
                    # that is unsent.
                    left_bytes = self._unsent_bytes
                    items, self._pending = self._pending, []
                else:
                    items, self._pending = (
                        self._pending[:ENVELOPE_MAX_ITEMS],
                        self._pending[ENVELOPE_MAX_ITEMS:],
                    )
                    left_bytes = sum(map(len, items))
                if self._arriving is not None:
                    self._arriving.counted_bytes += left_bytes >> RESPONSE_SHIFT
                write = self._stream.write
                *others, last = envelopes(items)
                for envelope in others:
                    await write(envelope)
                    count = min(left_bytes, len(envelope))
                    left_bytes -= count
                    self._sent(count)
                await write(last)
                # Inlined ``_sent``: this runs for every message.
                if self._reason is None:
                    self._unsent_bytes -= left_bytes
                    if self._budgeted_bytes:
                        self._settle()
        # grpc.aio raises InvalidStateError if the call ends during a write.
        except (
            grpc.RpcError,
            grpc.aio.BaseError,
            asyncio.InvalidStateError,
            LaneError,
        ) as error:
            self.close(failure_text(error))

    async def _leave_stream(self) -> None:
        """End this direction of the stream; further messages take another path."""

    def _sent(self, count: int) -> None:
        """Subtract ``count`` sent bytes."""
        if self._reason is None:
            self._unsent_bytes -= count
            if self._budgeted_bytes:
                self._settle()

    def _settle(self) -> None:
        """Reduce the charge on the budget to the unsent bytes."""
        before, self._budgeted_bytes = (
            self._budgeted_bytes,
            min(self._budgeted_bytes, self._unsent_bytes),
        )
        self._budget.sent(self, before - self._budgeted_bytes, all_sent=not self._unsent_bytes)


def failure_text(error: Exception) -> str:
    """Return the error of a failed stream in one line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return status_text(error.code(), error.details())
    if isinstance(error, LaneError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def status_text(code: Any, details: str | None) -> str:
    """Return a gRPC status in one line; for a failed connect, without gRPC's preamble."""
    hint = (
        "; the server there is a node of the other kind, or another program"
        if details == _NO_METHOD
        else ""
    )
    if details and _HTTP1 in details:
        return f"{code.name}: the server speaks HTTP/1, not gRPC (is this the http.listener port?)"
    return f"{code.name}: {_CONNECT_PREAMBLE.sub('', details or '')}{hint}"
