"""The watches of clients: the shell of ``broker.watch``.

A response is sent on a link only while the link has room, so a slow reader holds a bounded amount
of memory, however much changes. Work is done in turns, between which everything else is served.

A *handle* represents one watch to the hub and to the shell, whether the watch has a stream of its
own or shares one. Equal responses to several watches of one stream are sent as one response that
names them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

import structlog

from broker.metadata.view import View
from broker.settings import WatchSettings
from broker.watch.hub import LEAST_MS, Sending, WatchHub
from broker.watch.responses import ending
from raftlog.bounds import RETRY_AFTER_MS, TURN_MAX_S, Shares
from raftlog.config_writes.writes import Framed, varint
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import check as check_limits
from raftlog.limits import cluster_error
from raftlog.metadata.image import Image
from raftlog.metadata.selectors import entity_of, parse_selectors
from raftlog.node.security.authorization import Asker, refusal
from raftlog.node.security.client_rules import ClientRules
from raftlog.node.security.permissions import WATCH
from raftlog.transport.api import CountedLink, Link, LinkClosedError
from raftlog.wire.broker.v1 import broker_pb2 as pb

_RESPONSE_TAG = pb.WatchManyResponse.RESPONSE_FIELD_NUMBER << 3 | 2
_ID_BYTES = 4
"""Approximate size of an id, in bytes."""


class Handle(Protocol):
    """One watch of a client."""

    @property
    def link(self) -> Link:
        """The link on which the watch was requested."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the watch and its stream have not sent yet."""

    def send(self, data: bytes) -> None:
        """Send a response.

        Raises LinkClosedError.
        """

    def ended(self) -> None:
        """Called once the last response, an error, has been sent."""


class Shell(Protocol):
    """The interface of :class:`broker.service.watches.Watches` for handles."""

    def begin(self, handle: Handle, request: pb.WatchRequest) -> None:
        """Begin a watch, or refuse it with an error."""

    def refuse(self, handle: Handle, error: ApiError) -> None:
        """End a watch with an error, whether it has begun or not."""

    def forget(self, handle: Handle) -> None:
        """Remove a watch that has ended. Idempotent."""

    def unsent(self, stream: WatchStream) -> None:
        """Record that a stream has responses to send at the end of this turn."""

    def close_later(self, link: Link) -> None:
        """Close a link that has no more watches after a while, if its client does not."""

    def schedule_turn(self) -> None:
        """Do the due work soon."""


class OneWatch:
    """The only watch of its link, and the link's handler."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell, self._asked = shell, False

    def received(self, link: Link, messages: Sequence[pb.WatchRequest]) -> None:
        """Process the one request."""
        for request in messages:
            if self._asked:
                message = "a Watch call takes one request; make another call for another watch"
                self._shell.refuse(self, ApiError(ErrorCode.INVALID_REQUEST, message))
                break
            self._asked = True
            self._shell.begin(self, request)
        self._shell.schedule_turn()

    def closed(self, link: Link, reason: str) -> None:
        """Remove the watch of a closed client."""
        self._shell.forget(self)

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the link, all of which belong to this watch."""
        return self.link.unsent_bytes

    def send(self, data: bytes) -> None:
        """Send a response at once."""
        self.link.send(data)

    def ended(self) -> None:
        """Wait for the client to close the link after its last response; close it later if it does
        not.
        """
        self._shell.close_later(self.link)


class WatchStream:
    """The watches of one link, and the link's handler."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell = shell
        self._watches: dict[int, _Numbered] = {}
        self._responses: list[Framed] = []
        self._data = b""
        """The response whose watches are still being collected."""
        self._ids: list[int] = []
        self._waiting_bytes = 0

    def received(self, link: Link, messages: Sequence[pb.WatchManyRequest]) -> None:
        """Begin and end watches."""
        for message in messages:
            watch_id = message.watch_id
            match message.WhichOneof("body"):
                case "begin":
                    self._begin(watch_id, message.begin)
                case "end":
                    found = self._watches.pop(watch_id, None)
                    if found is not None:
                        self._shell.forget(found)
                case _:
                    link.unknown_kind("a watch request with neither begin nor end")
        self._shell.schedule_turn()

    def _begin(self, watch_id: int, request: pb.WatchRequest) -> None:
        found = self._watches.get(watch_id)
        if found is not None:
            message = f"watch {watch_id} is already open on this stream: use each id once"
            error = ApiError(ErrorCode.INVALID_REQUEST, message, field="watch_id")
            self._shell.refuse(found, error)
            return
        handle = self._watches[watch_id] = _Numbered(self, watch_id)
        self._shell.begin(handle, request)

    def closed(self, link: Link, reason: str) -> None:
        """Remove the watches of a closed client."""
        watches, self._watches = self._watches, {}
        for handle in watches.values():
            self._shell.forget(handle)

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the link, and of the responses queued for the end of the turn."""
        return self.link.unsent_bytes + self._waiting_bytes

    def send(self, watch_id: int, data: bytes) -> None:
        """Queue a response for one watch; ``flush`` sends it.

        The only watch of a stream gets it at once. Raises LinkClosedError.
        """
        if len(self._watches) == 1 and not self._waiting_bytes:
            self.link.send(_last.numbered(data, [watch_id]))
            return
        if not self._ids and not self._responses:
            self._shell.unsent(self)
        if data is not self._data:
            self._close_response()
            self._data = data
            self._waiting_bytes += len(data)
        self._ids.append(watch_id)
        self._waiting_bytes += _ID_BYTES

    def over(self, watch_id: int) -> None:
        """Remove a watch whose last response has been sent."""
        self._watches.pop(watch_id, None)

    def flush(self) -> None:
        """Send the queued responses."""
        self._close_response()
        responses, self._responses, self._waiting_bytes = self._responses, [], 0
        # ``closed`` is called when the link ends.
        with suppress(LinkClosedError):
            for response in responses:
                self.link.send(response)

    def _close_response(self) -> None:
        if self._ids:
            self._responses.append(_last.numbered(self._data, self._ids))
        self._ids, self._data = [], b""


class _LastNumbered:
    """A cache of the last response with its watches, as an item of an envelope, because many
    streams get the same response for the same ids.
    """

    def __init__(self) -> None:
        self._data, self._response = b"", Framed()
        self._ids: list[int] = []

    def numbered(self, data: bytes, ids: list[int]) -> Framed:
        """Return a response for the watches with these ids on one stream."""
        if data is not self._data or ids != self._ids:
            head = pb.WatchManyResponse(watch_ids=ids).SerializeToString()
            body = b"%b%c%b%b" % (head, _RESPONSE_TAG, varint(len(data)), data)
            self._response = Framed.one(body)
            self._data, self._ids = data, ids
        return self._response


_last = _LastNumbered()


class _Numbered:
    """A watch on a stream that has several."""

    __slots__ = ("_id", "_stream")

    def __init__(self, stream: WatchStream, watch_id: int) -> None:
        self._stream, self._id = stream, watch_id

    @property
    def link(self) -> Link:
        """The link of the stream."""
        return self._stream.link

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the stream, for all of its watches together."""
        return self._stream.unsent_bytes

    def send(self, data: bytes) -> None:
        """Queue a response for the end of the turn."""
        self._stream.send(self._id, data)

    def ended(self) -> None:
        """Free the watch's id; its stream stays open."""
        self._stream.over(self._id)


log = structlog.get_logger(__name__)

TICK_S = 0.1
"""Interval in seconds between checks for fencing, and for watchers that need a progress response.
"""
LINGER_S = 5.0
"""Time in seconds after which a link whose watch has ended is closed, if its client has not closed
it.
"""
_SHUTTING_DOWN = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is shutting down")


class Watches:
    """All watches of one broker.

    ``why_fenced``: returns why the broker serves nothing now, or "" if it serves.
    """

    def __init__(
        self,
        view: View,
        settings: WatchSettings,
        *,
        cluster_id: str,
        why_fenced: Callable[[], str],
        stopwatch: Callable[[], float] | None = None,
        client_rules: ClientRules | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._view, self._settings, self._cluster_id = view, settings, cluster_id
        self._why_fenced, self._rules = why_fenced, client_rules
        self._stopwatch = stopwatch or self._loop.time
        self.hub = WatchHub(
            history_max_bytes=settings.watch_history_max_bytes,
            generation=lambda: view.generation,
            image_of=self._image_of,
            permits=self._permits,
            has_room=lambda handle: handle.unsent_bytes < settings.watch_max_unsent_bytes,
        )
        view.tip_listener = self.hub
        self._shares = Shares(settings.watch_max_watchers)
        self._places: dict[Handle, str] = {}
        """The peer to whose share each open watch is charged."""
        self._unsent: dict[WatchStream, None] = {}
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    # --- links -----------------------------------------------------------------------------------

    def accept(self, link: Link) -> OneWatch:
        """Accept a client's link for one watch."""
        return OneWatch(self, cast(CountedLink, link))

    def accept_many(self, link: Link) -> WatchStream:
        """Accept a client's link for many watches."""
        return WatchStream(self, cast(CountedLink, link))

    def begin(self, handle: Handle, request: pb.WatchRequest) -> None:
        """See ``Shell``."""
        try:
            self._begin(handle, request)
        except ApiError as error:
            self.refuse(handle, error)

    def refuse(self, handle: Handle, error: ApiError) -> None:
        """See ``Shell``."""
        self.hub.forget(handle)
        self._send(Sending(handle, ending(error), ends=True))

    def forget(self, handle: Handle) -> None:
        """See ``Shell``."""
        self._leave(handle)
        self.hub.forget(handle)

    def unsent(self, stream: WatchStream) -> None:
        """See ``Shell``."""
        self._unsent[stream] = None

    def close(self) -> None:
        """End all watches with an error, and accept no more."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._send_all(self.hub.end_all(_SHUTTING_DOWN))

    # --- changes of the view ---------------------------------------------------------------------

    def moved(self) -> None:
        """Process a change of the view: it shows more, or has received LAO."""
        hub = self.hub
        if hub.is_idle:
            return
        # If LAO is unknown, nothing above the tip is needed.
        hub.moved(self._view.repeatable_from)
        if len(hub):
            self.schedule_turn()

    def log_replaced(self, message: str) -> None:
        """End all watches, because the log was replaced and the view emptied."""
        error = ApiError(ErrorCode.INCONSISTENT_GENERATION, message, field="since.generation")
        self._send_all(self.hub.end_all(error, resumable=False))

    # --- beginning -------------------------------------------------------------------------------

    def _begin(self, handle: Handle, request: pb.WatchRequest) -> None:
        if self._closing:
            raise _SHUTTING_DOWN
        link = handle.link
        if (other := cluster_error(self._cluster_id, request.cluster_id)) is not None:
            raise other
        check_limits(request)
        _check(request)
        selection = parse_selectors(request.selectors)
        asker = None if self._rules is None else self._rules.asker_of(link)
        if asker is not None:
            self._check_rights(asker, request.selectors)
        if why := self._why_fenced():
            raise ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why}")
        since = request.since if request.HasField("since") else None
        if since is not None:
            self._view.check_position(since.generation, since.epoch, since.offset, "since")
        if not self._shares.take(link.peer):
            message = (
                f"{self._shares.total} of {self._settings.watch_max_watchers} watches are open,"
                f" {self._shares.held(link.peer)} of them on this connection"
            )
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
            )
        self._places[handle] = link.peer
        self.hub.watch(
            handle,
            selection,
            mode=request.mode,
            asker=asker,
            since=since,
            initial=request.initial,
            progress_ms=request.progress_interval_ms or self._settings.watch_progress_interval_ms,
            now=self._loop.time(),
        )

    # --- rights ----------------------------------------------------------------------------------

    def _check_rights(self, asker: Asker, selectors: Sequence[str]) -> None:
        """Refuse a watch that names an entity without the right to see it; a wider selection omits
        such entities.
        """
        for index, selector in enumerate(selectors):
            kind, key = entity_of(selector)
            row = WATCH.get(kind)
            if row is None or (not key and row.of != "CLUSTER"):
                continue
            if not self._permits(asker, kind, key):
                field = f"selectors[{index}]"
                raise refusal(asker.caller, row.operation, row.resource(key), field)

    def _permits(self, asker: Asker, kind: str, key: str) -> bool:
        """Return whether the asker may see an entity. The newest image decides, even if the watch
        shows an older one: see ``requests.py``.
        """
        assert self._rules is not None
        row = WATCH[kind]
        return self._rules.authorization.allows(
            asker, row.operation, row.resource(key), self._view.tip
        )

    # --- turns -----------------------------------------------------------------------------------

    def _image_of(self, mode: int) -> Image | None:
        return self._view.tip if mode == pb.LATEST else self._view.repeatable

    def close_later(self, link: Link) -> None:
        """See ``Shell``."""
        self._loop.call_later(LINGER_S, link.close, "the watch has ended")

    def schedule_turn(self) -> None:
        """Do the due work in a separate turn, as the caller has more urgent work."""
        self._flush()
        if not self._turn_due and not self._closing:
            self._turn_due = True
            self._loop.call_soon(self._turn)
        if self._timer is None and not self._closing:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _turn(self) -> None:
        self._turn_due = False
        if self._closing:
            return
        begun, now = self._stopwatch(), self._loop.time()
        while (sendings := self.hub.work(now)) is not None:
            for one in sendings:
                self._send(one)
            took_s = self._stopwatch() - begun
            if took_s >= TURN_MAX_S:
                # The same time for all other work.
                self._turn_due = True
                self._loop.call_later(took_s, self._turn)
                break
        self._flush()

    def _tick(self) -> None:
        self._timer = None
        if not len(self.hub):
            return
        if why := self._why_fenced():
            error = ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why}")
            self._send_all(self.hub.end_all(error))
        else:
            # A client may have read by now.
            self.moved()

    def _send_all(self, sendings: Sequence[Sending]) -> None:
        for one in sendings:
            self._send(one)
        self._flush()

    def _send(self, sending: Sending) -> None:
        handle: Handle = sending.handle
        try:
            handle.send(sending.data)
        except LinkClosedError:
            self.hub.forget(handle)
            return
        if sending.ends:
            self._leave(handle)
            handle.ended()

    def _leave(self, handle: Handle) -> None:
        peer = self._places.pop(handle, None)
        if peer is not None:
            self._shares.give_back(peer)

    def _flush(self) -> None:
        """Send this turn's responses on streams of many watches."""
        streams, self._unsent = self._unsent, {}
        for stream in streams:
            stream.flush()


def _check(request: pb.WatchRequest) -> None:
    if request.mode not in (pb.REPEATABLE, pb.LATEST):
        message = "the mode of a watch must be REPEATABLE or LATEST"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="mode")
    if request.initial and request.HasField("since"):
        message = (
            "initial and since exclude each other: start with the current state, or from a token"
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="initial")
    if request.since.offset < -1 or request.since.part < 0:
        message = "since must have an offset of -1 or more, and a part of 0 or more"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="since")
    if request.progress_interval_ms and request.progress_interval_ms < LEAST_MS:
        message = f"progress_interval_ms must be 0, or at least {LEAST_MS}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field="progress_interval_ms")
