"""Where watches come from, and how each is told: alone on its stream, or with others.

A *handle* stands for one watch, for the hub and for the shell. What several watches of one stream
are told alike leaves as one response that names them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from raftlog.config_writes.twin import varint
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import CountedLink, Link, LinkClosedError
from raftlog.transport.conversations import Encoded
from raftlog.wire.broker.v1 import broker_pb2 as pb

_RESPONSE_TAG = pb.WatchManyResponse.RESPONSE_FIELD_NUMBER << 3 | 2
_ID_BYTES = 4
"""About what an id takes."""


class Handle(Protocol):
    """One watch of a client."""

    @property
    def link(self) -> Link:
        """What it came on."""

    @property
    def unsent_bytes(self) -> int:
        """What it shares its stream with, and itself, have not read."""

    def give(self, data: bytes) -> None:
        """Send it a response. Raises LinkClosedError."""

    def ended(self) -> None:
        """The response with its error was given."""


class Shell(Protocol):
    """What handles ask of :class:`broker.service.watches.Watches`."""

    def begin(self, handle: Handle, request: pb.WatchRequest) -> None:
        """Begin a watch, or tell it why not."""

    def refuse(self, handle: Handle, error: ApiError) -> None:
        """End a watch with an error, whether it has begun or not."""

    def forget(self, handle: Handle) -> None:
        """A watch is gone. Idempotent."""

    def unsent(self, stream: WatchStream) -> None:
        """A stream has something to send, once this turn's work is done."""

    def close_later(self, link: Link) -> None:
        """Nothing more comes on a link: close it, if its client does not."""

    def go_on(self) -> None:
        """Do what is due now."""


class OneWatch:
    """The only watch of its link: a LinkHandler, too."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell, self._asked = shell, False

    def received(self, link: Link, messages: Sequence[pb.WatchRequest]) -> None:
        """The one request."""
        for request in messages:
            if self._asked:
                message = "a watch has one request; make another call for another watch"
                self._shell.refuse(self, ApiError(ErrorCode.INVALID_REQUEST, message))
                break
            self._asked = True
            self._shell.begin(self, request)
        self._shell.go_on()

    def closed(self, link: Link, reason: str) -> None:
        """The client is gone."""
        self._shell.forget(self)

    @property
    def unsent_bytes(self) -> int:
        """See :class:`Handle`."""
        return self.link.unsent_bytes

    def give(self, data: bytes) -> None:
        """See :class:`Handle`."""
        self.link.send(Encoded(data))

    def ended(self) -> None:
        """The client closes when it has read that; who does not is closed."""
        self._shell.close_later(self.link)


class WatchStream:
    """Many watches of one link: a LinkHandler."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell = shell
        self._watches: dict[int, _Numbered] = {}
        self._responses: list[bytes] = []
        self._data = b""
        """The response whose watches are still being named."""
        self._ids: list[int] = []
        self._waiting_bytes = 0

    def received(self, link: Link, messages: Sequence[pb.WatchManyRequest]) -> None:
        """Watches to begin and to end."""
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
                    link.unknown_kind("a request about a watch")
        self._shell.go_on()

    def _begin(self, watch_id: int, request: pb.WatchRequest) -> None:
        found = self._watches.get(watch_id)
        if found is not None:
            message = f"watch {watch_id} is open on this stream: an id is used once"
            error = ApiError(ErrorCode.INVALID_REQUEST, message, field="watch_id")
            self._shell.refuse(found, error)
            return
        handle = self._watches[watch_id] = _Numbered(self, watch_id)
        self._shell.begin(handle, request)

    def closed(self, link: Link, reason: str) -> None:
        """The client is gone."""
        watches, self._watches = self._watches, {}
        for handle in watches.values():
            self._shell.forget(handle)

    @property
    def unsent_bytes(self) -> int:
        """Of the link, and of what it is given at the end of the turn."""
        return self.link.unsent_bytes + self._waiting_bytes

    def give(self, watch_id: int, data: bytes) -> None:
        """A response for one watch, sent by ``flush``."""
        if not self._ids and not self._responses:
            self._shell.unsent(self)
        if data is not self._data:
            self._close_response()
            self._data = data
            self._waiting_bytes += len(data)
        self._ids.append(watch_id)
        self._waiting_bytes += _ID_BYTES

    def over(self, watch_id: int) -> None:
        """The last response of a watch was given."""
        self._watches.pop(watch_id, None)

    def flush(self) -> None:
        """Send what was given."""
        self._close_response()
        responses, self._responses, self._waiting_bytes = self._responses, [], 0
        # The link's end is told to ``closed``.
        with suppress(LinkClosedError):
            for response in responses:
                self.link.send(Encoded(response))

    def _close_response(self) -> None:
        if self._ids:
            head = pb.WatchManyResponse(watch_ids=self._ids).SerializeToString()
            length = varint(len(self._data))
            self._responses.append(b"%b%c%b%b" % (head, _RESPONSE_TAG, length, self._data))
        self._ids, self._data = [], b""


class _Numbered:
    """A watch of a stream."""

    __slots__ = ("_id", "_stream")

    def __init__(self, stream: WatchStream, watch_id: int) -> None:
        self._stream, self._id = stream, watch_id

    @property
    def link(self) -> Link:
        """See :class:`Handle`."""
        return self._stream.link

    @property
    def unsent_bytes(self) -> int:
        """See :class:`Handle`."""
        return self._stream.unsent_bytes

    def give(self, data: bytes) -> None:
        """See :class:`Handle`."""
        self._stream.give(self._id, data)

    def ended(self) -> None:
        """Its id is free; its stream goes on."""
        self._stream.over(self._id)
