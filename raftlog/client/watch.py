"""Watches: the changes to the metadata from a position onwards, in order, each once, across
brokers.

A watch is one call to one broker. If that broker is lost, is fenced or has no room, the watch
continues at another one after the last token that it received. The watches of one client share a
stream to each broker that any of them uses; a stream lives as long as its link.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from typing_extensions import override

from raftlog.client.endpoints import Endpoints, EndpointSelector
from raftlog.client.streams import AsyncStream
from raftlog.errors import ApiError, ErrorCode
from raftlog.outcome import Token
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from raftlog.client.core import Core

LINK_TIMEOUT_S = 2.0
"""Time in seconds after which a broker without a link or a first response is skipped."""
SILENT = "does not answer"
START_TIMEOUT_S = 30.0
PROGRESS_MS = 5_000
SILENT_INTERVALS = 3
"""Number of intervals without a message after which a broker is abandoned."""
BUFFERED_MAX = 10_000
"""Maximum number of changes that a slow reader leaves unread before the call is suspended."""
_ELSEWHERE = frozenset(
    {
        ErrorCode.BROKER_FENCED,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.LAO_UNKNOWN,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class CompactedError(ApiError):
    """No broker keeps the changes after the token any more.

    ``oldest``: the oldest token from which the last broker could have continued. Start again from
    there, and miss the changes before it, or with ``initial``.
    """

    def __init__(self, message: str, oldest: Token) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message, field="since")
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one entity by one record.

    ``before`` and ``after`` are None where the entity does not exist. ``initial``: the entity
    existed when the watch began; ``offset`` is then the image's, and the token follows the whole
    list.
    """

    kind: str
    """Kind of the entity: topic, partition, config, broker, feature, acl …"""
    key: str
    path: str
    """Selector of this entity alone: "configs/topic/orders/retention.ms"."""
    before: Any
    """The entity before the change, as in its JSON: a config's value, or the fields of others."""
    after: Any
    offset: int
    timestamp_ms: int
    principal: str
    initial: bool
    token: Token
    """A watch since this token continues after the change."""


# --- calls to brokers ----------------------------------------------------------------------------


class WatchCall(Protocol):
    """One request to one broker. Once closed or lost, it delivers nothing more."""

    def close(self) -> None:
        """End the request. Idempotent."""


class WatchStreams:
    """The streams shared by one client's watches, one for each broker in use."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._open: dict[str, _Stream] = {}

    def begin(
        self, watch: Watch, address: str, request: pb.WatchRequest, silence_s: float
    ) -> WatchCall:
        """Begin a watch at a broker. ``silence_s``: longest silence of a broker that has
        answered.
        """
        stream = self._open.get(address)
        if stream is None or stream.over:
            stream = self._open[address] = _Stream(self._transport, address)
        return stream.begin(watch, request, silence_s)


class _Call:
    """One watch on a stream."""

    def __init__(
        self, stream: _Stream, watch_id: int, watch: Watch, request: pb.WatchRequest
    ) -> None:
        self._stream, self.watch_id, self.watch = stream, watch_id, watch
        self.request = pb.WatchManyRequest(watch_id=watch_id, begin=request)
        self.timer = asyncio.get_running_loop().call_later(
            LINK_TIMEOUT_S, lambda: watch.lost(self, SILENT)
        )

    def close(self) -> None:
        """See :class:`WatchCall`."""
        self._stream.end(self)


class _Stream:
    """One link to one broker, and the watches on it."""

    def __init__(self, transport: Transport, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._link: Link | None = None
        self.over = False
        """Whether the stream delivers nothing more."""
        self._silence_s, self._heard_at = 0.0, self._loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self._dialer: Dialer = transport.dial(address, Conversation.WATCH_MANY, self)

    def begin(self, watch: Watch, request: pb.WatchRequest, silence_s: float) -> _Call:
        """Add a watch."""
        self._last_id += 1
        call = self._calls[self._last_id] = _Call(self, self._last_id, watch, request)
        # A live broker sends a message for every watch from time to time.
        self._silence_s = max(self._silence_s, silence_s)
        self._send(call.request)
        return call

    def end(self, call: _Call) -> None:
        """Remove a watch. Idempotent."""
        call.timer.cancel()
        if self._calls.pop(call.watch_id, None) is None:
            return
        if self._calls:
            self._send(pb.WatchManyRequest(watch_id=call.watch_id, end=pb.EndWatch()))
        else:
            self._close()

    def _send(self, request: pb.WatchManyRequest) -> None:
        if self._link is not None:
            with suppress(LinkClosedError):  # ``closed`` is called next.
                self._link.send(request)

    def opened(self, link: Link) -> None:
        """Send the requests of all watches so far."""
        self._link = link
        self._heard_at = self._loop.time()
        self._check_silence()
        for call in self._calls.values():
            self._send(call.request)

    def received(self, link: Link, messages: Sequence[pb.WatchManyResponse]) -> None:
        """Deliver responses, each for one watch or for several."""
        self._heard_at = self._loop.time()
        for message in messages:
            for watch_id in message.watch_ids:
                # The broker may still answer watches that have just ended here.
                if (call := self._calls.get(watch_id)) is not None:
                    call.timer.cancel()
                    call.watch.told(call, message.response)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """End the watches, as there is no link or the broker refuses this client."""
        self._lost(reason, error)

    def closed(self, link: Link, reason: str) -> None:
        """End the watches, as the link is lost."""
        self._lost(reason, None)

    def _check_silence(self) -> None:
        # An absolute time: a remaining duration may be too short to advance the clock at all.
        due = self._heard_at + self._silence_s
        if self._loop.time() < due:
            self._silence = self._loop.call_at(due, self._check_silence)
        else:
            self._lost(SILENT, None)

    def _lost(self, reason: str, error: ApiError | None) -> None:
        self._close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.timer.cancel()
            call.watch.lost(call, reason, error)

    def _close(self) -> None:
        self.over, self._link = True, None
        if self._silence is not None:
            self._silence.cancel()
        self._dialer.close()


# --- one watch -----------------------------------------------------------------------------------


class Watch:
    """An asynchronous iterator over changes, which ends with an error or by ``close``. Must be
    created on the event loop.

    ``since`` and ``initial`` cannot be combined; with neither, it begins with the next change.
    ``tip``: deliver each change as soon as a broker has applied it, instead of when every broker
    can show it. The initial list is delivered only once it is complete, so that losing a broker
    before that has no effect.
    """

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        selectors: Sequence[str] = (),
        *,
        rng: random.Random,
        since: Token | None = None,
        initial: bool = False,
        tip: bool = False,
        cluster_id: str = "",
        start_timeout_s: float = START_TIMEOUT_S,
        progress_ms: int = PROGRESS_MS,
        calls: WatchStreams | None = None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``start_timeout_s``: timeout of the first response; later the watch waits indefinitely,
        calling ``waiting`` with the reason, and with "" when a broker serves it again. ``calls``:
        factory of its calls, or None to use its own streams.
        """
        self._loop = asyncio.get_running_loop()
        self._calls = calls or WatchStreams(transport)
        # At a random broker: programs have the same list, and its first broker would serve them
        # all. Short watches would also begin at the same dead broker each time.
        self._endpoints = EndpointSelector(endpoints, rng, shuffled=True)
        self._selectors, self._cluster_id = tuple(selectors), cluster_id
        self._mode = pb.LATEST if tip else pb.REPEATABLE
        self._initial, self._since = initial, since
        self._read_to = since
        """Token of the last change that was read."""
        self._progress_ms = progress_ms
        self._start_by = self._loop.time() + start_timeout_s
        self._ready: deque[Change] = deque()
        self._list: list[pb.WatchChange] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        """Set when a waiting reader has to check again."""
        self._call: WatchCall | None = None
        self._call_answered = False
        self._pause: asyncio.TimerHandle | None = None
        self._asked_in_vain: set[str] = set()
        self._failures: dict[str, str] = {}
        self._waiting, self._told_why = waiting, ""
        self._refusal: ApiError | None = None
        """The error of the last broker that refused the watch, or None."""
        self._started = self._closed = self._full = False
        self.failovers = 0
        """Number of continuations at another broker."""
        self._attempt()

    @property
    def token(self) -> Token | None:
        """Token to continue from, or None if there is no token yet or part of the initial list is
        unread.
        """
        return self._since if not self._ready else self._read_to

    @property
    def endpoint(self) -> str:
        """Address of the serving broker."""
        return self._endpoints.target

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Return the next change. Raises CompactedError, other ApiErrors, and StopAsyncIteration
        once closed.
        """
        while not self._ready or self._closed:
            if self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._until_news()
        change = self._ready.popleft()
        if not (change.initial and self._ready and self._ready[0].initial):
            self._read_to = change.token
        if self._full and len(self._ready) <= BUFFERED_MAX // 2:
            self._full = False
            self._attempt()
        return change

    async def started(self) -> None:
        """Wait until a broker has reported the start of the watch. Raises ApiError."""
        while not self._started:
            if self._error is not None:
                raise self._error
            if self._closed:
                message = "the watch was closed before any broker answered"
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, message)
            await self._until_news()

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._closed = True
        self._hang_up()
        self._news.set()

    def _attempt(self) -> None:
        self._pause = None
        if self._closed or self._error is not None:
            return
        if not self._started and self._loop.time() >= self._start_by:
            self._fail(self._not_started())
            return
        self._list = []
        request = pb.WatchRequest(
            cluster_id=self._cluster_id,
            selectors=self._selectors,
            mode=self._mode,
            progress_interval_ms=self._progress_ms,
            initial=self._initial and self._since is None,
        )
        if (since := self._since) is not None:
            generation, epoch, offset, part = astuple(since)
            request.since.CopyFrom(
                pb.WatchToken(generation=generation, epoch=epoch, offset=offset, part=part)
            )
        silence_s = SILENT_INTERVALS * self._progress_ms / 1000
        self._call_answered = False
        self._call = self._calls.begin(self, self._endpoints.target, request, silence_s)

    def _not_started(self) -> ApiError:
        """Return the error of the last refusal, or each broker's failure."""
        refused = self._refusal
        if refused is not None:
            return ApiError(refused.code, refused.message, field=refused.field)
        whom = ", ".join(
            f"{one} ({self._failures[one]})" if one in self._failures else one
            for one in self._endpoints.known
        )
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no broker of {whom} has answered")

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.close()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _go_elsewhere(self, pause_s: float) -> None:
        self._hang_up()
        self.failovers += self._started
        self._pause = self._loop.call_later(pause_s, self._attempt)

    def lost(self, call: WatchCall, reason: str, error: ApiError | None = None) -> None:
        """Continue at another broker, as the current one is lost, silent, or refuses this client
        (``error``).
        """
        if call is not self._call:
            return
        target = self._endpoints.target
        self._asked_in_vain.add(target)
        self._failures[target] = reason
        everywhere = self._asked_in_vain.issuperset(self._endpoints.known)
        if error is not None and everywhere and not self._started:
            self._fail(error)
        else:
            if everywhere and self._started:
                self._tell_why((error or self._not_started()).message)
            self._go_elsewhere(self._endpoints.unreachable(self._loop.time()))

    def told(self, call: WatchCall, response: pb.WatchResponse) -> None:
        """Process a broker's response."""
        if call is not self._call:
            return
        if response.HasField("error"):
            self._refused(response)
            return
        self._list.extend(response.changes)
        if not response.HasField("token"):
            # Part of the changes; the last part has a token.
            return
        at = response.token
        self._ready.extend(_change(one, at.generation) for one in self._list)
        self._list = []
        self._since = _token(at)
        if not self._call_answered:
            self._call_answered = self._started = True
            self._endpoints.reached()
            self._asked_in_vain.clear()
            self._failures.clear()
            self._refusal = None
            self._tell_why("")
            if self._read_to is None and not self._initial:
                self._read_to = self._since
        if len(self._ready) > BUFFERED_MAX:
            self._full = True
            self._hang_up()
        self._news.set()

    def _refused(self, response: pb.WatchResponse) -> None:
        error = error_from_wire(response.error)
        if error.code in _ELSEWHERE:
            self._refusal = error
            pause_s = self._endpoints.lost(self._loop.time())
            self._go_elsewhere(max(pause_s, error.throttle_time_ms / 1000))
        elif error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # Another broker may keep older changes.
            self._asked_in_vain.add(self._endpoints.target)
            if self._asked_in_vain.issuperset(self._endpoints.known):
                self._fail(CompactedError(error.message, _token(response.oldest)))
            else:
                self._go_elsewhere(self._endpoints.lost(self._loop.time()))
        else:
            self._fail(error)

    def _tell_why(self, why: str) -> None:
        if why != self._told_why:
            self._told_why = why
            self._waiting(why)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._hang_up()
        self._news.set()


def _token(token: pb.WatchToken) -> Token:
    return Token(token.generation, token.epoch, token.offset, token.part)


def _change(change: pb.WatchChange, generation: int) -> Change:
    return Change(
        change.kind,
        change.key,
        change.path,
        json.loads(change.before) if change.HasField("before") else None,
        json.loads(change.after) if change.HasField("after") else None,
        change.offset,
        change.timestamp_ms,
        change.principal,
        change.initial,
        Token(generation, change.epoch, change.offset, change.part),
    )


class AsyncChanges(AsyncStream[Change]):
    """The stream returned by :meth:`AsyncClient.watch`; an asynchronous context manager and
    iterable.
    """

    what = "watch"

    def __init__(self, core: Core, watch: Watch, idle_timeout_s: float | None) -> None:
        super().__init__(core, watch)
        self._core, self._watch, self.idle_timeout_s = core, watch, idle_timeout_s

    @property
    def token(self) -> Token | None:
        """Token from which a watch would continue, or None before the first."""
        return self._watch.token

    async def started(self) -> None:
        """Wait until a broker has reported the start of the watch. Raises ApiError."""
        with self._core.until_closed():
            await self._watch.started()

    @override
    async def _next(self) -> Change:
        """Return the next change. Raises CompactedError, whose ``oldest`` is a token from which to
        start again.
        """
        if not self.closed:
            await self.started()
        try:
            async with asyncio.timeout(self.idle_timeout_s):
                return await anext(self._watch)
        except TimeoutError:
            await self.close()
            raise StopAsyncIteration from None

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.started()
        except BaseException:
            await self.close()
            raise
        return self
