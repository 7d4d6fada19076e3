"""Handles of watches, and their responses: alone on a stream, or shared with others.

A *handle* stands for one watch, for the hub and for the shell. Equal responses to several watches
of one stream are sent as one that names them all.
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
"""Approximate size of an id, in bytes."""


class Handle(Protocol):
    """One watch of a client."""

    @property
    def link(self) -> Link:
        """The link that it arrived on."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that its stream, and it itself, have not sent yet."""

    def give(self, data: bytes) -> None:
        """Send a response. Raises LinkClosedError."""

    def ended(self) -> None:
        """Note that its last response, an error, was sent."""


class Shell(Protocol):
    """The interface of :class:`broker.service.watches.Watches` for handles."""

    def begin(self, handle: Handle, request: pb.WatchRequest) -> None:
        """Begin a watch, or refuse it with an error."""

    def refuse(self, handle: Handle, error: ApiError) -> None:
        """End a watch with an error, whether it has begun or not."""

    def forget(self, handle: Handle) -> None:
        """Forget a watch that has ended. Idempotent."""

    def unsent(self, stream: WatchStream) -> None:
        """Note that a stream has responses to send at the end of this turn."""

    def close_later(self, link: Link) -> None:
        """Close a link without further watches later, if its client does not."""

    def go_on(self) -> None:
        """Do the due work."""


class OneWatch:
    """The only watch of its link: a LinkHandler, too."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell, self._asked = shell, False

    def received(self, link: Link, messages: Sequence[pb.WatchRequest]) -> None:
        """Process the one request."""
        for request in messages:
            if self._asked:
                message = "a watch has one request; make another call for another watch"
                self._shell.refuse(self, ApiError(ErrorCode.INVALID_REQUEST, message))
                break
            self._asked = True
            self._shell.begin(self, request)
        self._shell.go_on()

    def closed(self, link: Link, reason: str) -> None:
        """Forget the watch of a closed client."""
        self._shell.forget(self)

    @property
    def unsent_bytes(self) -> int:
        """See :class:`Handle`."""
        return self.link.unsent_bytes

    def give(self, data: bytes) -> None:
        """See :class:`Handle`."""
        self.link.send(Encoded(data))

    def ended(self) -> None:
        """Wait for the client to close the link after its last response; close it later if not."""
        self._shell.close_later(self.link)


class WatchStream:
    """The watches of one link: a LinkHandler."""

    def __init__(self, shell: Shell, link: CountedLink) -> None:
        self.link = link
        self._shell = shell
        self._watches: dict[int, _Numbered] = {}
        self._responses: list[bytes] = []
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
        """Forget the watches of a closed client."""
        watches, self._watches = self._watches, {}
        for handle in watches.values():
            self._shell.forget(handle)

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the link, and of what is queued for the end of the turn."""
        return self.link.unsent_bytes + self._waiting_bytes

    def give(self, watch_id: int, data: bytes) -> None:
        """Queue a response for one watch; ``flush`` sends it."""
        if not self._ids and not self._responses:
            self._shell.unsent(self)
        if data is not self._data:
            self._close_response()
            self._data = data
            self._waiting_bytes += len(data)
        self._ids.append(watch_id)
        self._waiting_bytes += _ID_BYTES

    def over(self, watch_id: int) -> None:
        """Note that the last response of a watch was sent."""
        self._watches.pop(watch_id, None)

    def flush(self) -> None:
        """Send the queued responses."""
        self._close_response()
        responses, self._responses, self._waiting_bytes = self._responses, [], 0
        # ``closed`` is called when the link ends.
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
    """A watch of a stream with several."""

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
        """Free its id; its stream stays open."""
        self._stream.over(self._id)
