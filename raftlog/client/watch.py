"""Watching the metadata: the changes from a point on, in order, each once, whatever broker tells
them.

A watch is one call to one broker. When that broker is lost, is fenced or has no room, the watch
goes on at another one, behind the last token that it was given.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from raftlog.client.endpoint_selector import Endpoints, EndpointSelector
from raftlog.client.watch_calls import Calls, OwnCalls, WatchCall
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Transport
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2 as pb

START_TIMEOUT_S = 30.0
PROGRESS_MS = 5_000
SILENT_INTERVALS = 3
"""A broker that has said nothing for so many intervals is given up."""
BUFFERED_MAX = 10_000
"""Changes that wait for a slow reader; with more the call ends, and begins again when half of them
are read.
"""
_TOKEN = re.compile(r"[0-9]{1,18}-[0-9]{1,9}-[0-9]{1,18}(-[0-9]{1,9})?")
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


class Token(NamedTuple):
    """A place in the order of all changes; as text to be kept, ``str`` and ``Token.parse``."""

    generation: int
    epoch: int
    offset: int
    part: int = 0

    def __str__(self) -> str:
        tail = f"-{self.part}" if self.part else ""
        return f"{self.generation}-{self.epoch}-{self.offset}{tail}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """A token of ``str``. Raises ApiError INVALID_REQUEST."""
        if _TOKEN.fullmatch(text) is None:
            message = f"{text[:80]!r} is no token: GENERATION-EPOCH-OFFSET, as a watch says it"
            raise ApiError(ErrorCode.INVALID_REQUEST, message, field="since")
        return cls(*map(int, text.split("-")))


class CompactedError(ApiError):
    """No broker keeps the changes behind the token any more.

    ``oldest``: the image to begin with, which a watch with ``initial`` shows, and the oldest token
    that the last broker asked could have gone on from.
    """

    def __init__(self, message: str, oldest: Token) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message, field="since")
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Change:
    """One entity that one record has changed. ``before`` and ``after`` are JSON, None: not there.

    ``token``: a watch since this one goes on behind the change. ``initial``: it was there when the
    watch began, and ``offset`` is the image's; its token lies behind the whole list.
    """

    kind: str
    key: str
    path: str
    before: str | None
    after: str | None
    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    initial: bool
    token: Token


class Watch:
    """An asynchronous iterator over changes, which ends by an error or by ``close``.

    Must be made on the event loop. ``since`` and ``initial`` exclude each other; with neither it
    begins with what comes. ``tip``: changes as soon as a broker has applied them, and not only when
    every broker can show them. The initial list is held until it is complete, so that a broker that
    is lost in the middle of it is not noticed.
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
        calls: Calls | None = None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``start_timeout_s``: for the first response; later on it is patient without end:
        ``waiting`` is told why no broker serves it then, and the empty string when one does again.
        ``calls``: how it asks brokers; None: by calls of its own.
        """
        self._loop = asyncio.get_running_loop()
        self._calls = calls or OwnCalls(transport)
        # Anywhere: programs have the same list, and the first broker in it would carry them all. A
        # short watch would also begin at the same dead broker each time.
        self._endpoints = EndpointSelector(endpoints, rng, shuffled=True)
        self._selectors, self._cluster_id = tuple(selectors), cluster_id
        self._mode = pb.LATEST if tip else pb.REPEATABLE
        self._initial, self._since = initial, since
        self._told = since
        """The last token that was read by the user of this."""
        self._progress_ms = progress_ms
        self._start_by = self._loop.time() + start_timeout_s
        self._ready: deque[Change] = deque()
        self._list: list[pb.WatchChange] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        """Set whenever those that wait have to look again."""
        self._call: WatchCall | None = None
        self._call_answered = False
        self._pause: asyncio.TimerHandle | None = None
        self._asked_in_vain: set[str] = set()
        self._failures: dict[str, str] = {}
        self._waiting, self._told_why = waiting, ""
        self._refusal: ApiError | None = None
        """What the last broker said that would not take it."""
        self._started = self._closed = self._full = False
        self.failovers = 0
        """How often it went on at another broker."""
        self._attempt()

    @property
    def token(self) -> Token | None:
        """Where a watch would go on behind what was read so far; None: nothing is known yet, or the
        initial list is not read to its end.
        """
        return self._since if not self._ready else self._told

    @property
    def endpoint(self) -> str:
        """The broker that is asked."""
        return self._endpoints.target

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next change. Raises CompactedError, other ApiErrors, and StopAsyncIteration once it
        is closed.
        """
        while not self._ready or self._closed:
            if self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._until_news()
        change = self._ready.popleft()
        if not (change.initial and self._ready and self._ready[0].initial):
            self._told = change.token
        if self._full and len(self._ready) <= BUFFERED_MAX // 2:
            self._full = False
            self._attempt()
        return change

    async def started(self) -> None:
        """Wait until a broker has said where the watch begins. Raises ApiError."""
        while not self._started:
            if self._error is not None:
                raise self._error
            if self._closed:
                message = "the watch was closed before a broker had answered"
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, message)
            await self._until_news()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it. Idempotent."""
        self._closed = True
        self._hang_up()
        self._news.set()

    # --- calls -----------------------------------------------------------------------------------

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
        if self._since is not None:
            request.since.CopyFrom(pb.WatchToken(**self._since._asdict()))
        silence_s = SILENT_INTERVALS * self._progress_ms / 1000
        self._call_answered = False
        self._call = self._calls.begin(self, self._endpoints.target, request, silence_s)

    def _not_started(self) -> ApiError:
        """Why nobody has taken the watch: what the last one said that refused it, or what became of
        each.
        """
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
        """The broker is gone, or says nothing, or does not let this client in (``error``).

        A watch that has begun waits until one does.
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
        """A broker tells something."""
        if call is not self._call:
            return
        if response.HasField("error"):
            self._refused(response)
            return
        self._list.extend(response.changes)
        if not response.HasField("token"):
            # Part of a list, which a token completes.
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
            if self._told is None and not self._initial:
                self._told = self._since
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
            # Another broker may keep more.
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

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()


def _token(token: pb.WatchToken) -> Token:
    return Token(token.generation, token.epoch, token.offset, token.part)


def _change(change: pb.WatchChange, generation: int) -> Change:
    return Change(
        change.kind,
        change.key,
        change.path,
        change.before if change.HasField("before") else None,
        change.after if change.HasField("after") else None,
        change.offset,
        change.epoch,
        change.timestamp_ms,
        change.principal,
        change.initial,
        Token(generation, change.epoch, change.offset, change.part),
    )
