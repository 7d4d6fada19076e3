"""Encoding of each conversation's messages into the bytes of its stream, and decoding.

Hot conversations put a list into every envelope: all queued items share one gRPC message. Items are
serialised one by one when they are sent, and an envelope is their concatenation, each preceded by
its tag and length. Protobuf defines the encoding of a repeated field in just this way, so the bytes
equal those of ``envelope.requests.extend(items)`` at about half the cost (0.27 against 0.5 to 1.0
us per item). For reading, one parse of the whole envelope is cheaper (0.17 against 0.30 us).
Replication and the observers' log have one message per envelope, as most of it is one opaque field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from google.protobuf.message import DecodeError, Message

from raftlog.bounds import ENVELOPE_MAX_ITEMS
from raftlog.config_writes import codec
from raftlog.config_writes.writes import (
    KIND,
    ConfigReplies,
    ConfigWrite,
    Framed,
    grouped,
    varint_at,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

ENVELOPE_TARGET_BYTES = 1 << 20
"""Envelope size in bytes above which no item is added: as a larger envelope would delay the loop
and the messages after it.
"""

PART_MAX_ITEMS, PART_MAX_BYTES = 512, 256 << 10
"""Largest part of an envelope that is parsed at once, in items and in bytes: 16,000 items take ten
milliseconds or more.
"""
MANY_ITEMS = 8
"""Minimum number of items at which an envelope is joined without examining each item."""
SHORT_BYTES = 8 << 10
"""Largest envelope that is parsed whole, in bytes."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class MalformedMessageError(ValueError):
    """The peer sent bytes that are not a message of this conversation."""


class TooManyItemsError(ValueError):
    """The peer sent a message with more items than the limit."""


def _header(tag: int, length: int) -> bytes:
    """Return a field's tag and the varint of its length."""
    out = bytearray((tag,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


@cache
def _short_headers(tag: int) -> list[bytes]:
    """Return the headers of short items by length, so that nearly every item's header is
    looked up.
    """
    return [_header(tag, length) for length in range(2048)]


def _has_more_fields(message: bytes, most: int, usual: int) -> bool:
    """Return whether a message has more than ``most`` fields at its top level.

    The count stops at the first malformed field, as parsing will, and, since a field has at least
    two bytes, once the rest is too short for ``most`` fields. ``usual``: the tag of nearly all
    fields, which are short strings: a fast path for honest envelopes.
    """
    position, end, room = 0, len(message), 2 * most
    try:
        while room >= 0 and position + room < end:
            room -= 2
            if message[position] == usual:
                length = message[position + 1]
                if length <= 0x7F:
                    position += length + 2
                    continue
                high = message[position + 2]
                if high <= 0x7F:
                    position += (length & 0x7F | high << 7) + 3
                    continue
            tag, position = varint_at(message, position)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                length, position = varint_at(message, position)
                position += length
            elif kind == _VARINT:
                _, position = varint_at(message, position)
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            # A group has no length: the fields inside it are counted.
    except IndexError:
        return False
    return room < 0


class Wire(ABC):
    """One direction of a conversation: its message types and their layout in envelopes."""

    def __init__(self, item_type: type[Message]) -> None:
        self.item_type = item_type

    def check(self, message: Any) -> None:
        """Raise TypeError for a message of the other direction: the peer would misread its
        bytes.
        """
        if type(message) is not self.item_type:
            raise TypeError(
                f"this stream carries {self.item_type.__name__}, not {type(message).__name__}"
            )

    def encode(self, message: Any, max_bytes: int) -> bytes:
        """Return the bytes of one item.

        Raises TypeError, and ApiError MESSAGE_TOO_LARGE if the item fits into no envelope.
        """
        if type(message) is not self.item_type:
            self.check(message)
        data = message.SerializeToString()
        if len(data) + 8 > max_bytes:
            raise _too_large(self.item_type.__name__, len(data), max_bytes, _body(message))
        return data

    @property
    @abstractmethod
    def single(self) -> bool:
        """Whether each envelope holds exactly one message."""

    @abstractmethod
    def envelopes(self, items: list[bytes]) -> list[bytes]:
        """Return the encoded items in order, in as few envelopes as the size limit permits."""

    def envelope(self, item: bytes) -> bytes:
        """Return the envelope of one encoded item."""
        return self.envelopes([item])[0]

    @abstractmethod
    def decode(self, envelope: bytes, max_items: int) -> Sequence[Any]:
        """Return the messages of an envelope, or of a part of one.

        Raises MalformedMessageError, and TooManyItemsError before anything is parsed.
        """

    def grouped(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Return parsed messages grouped as by ``decode``."""
        return messages

    def cut(self, envelope: bytes, max_items: int) -> Sequence[int]:
        """Return the ends of the parts into which an envelope is split for decoding. Raises
        TooManyItemsError.
        """
        return (len(envelope),)


class SingleWire(Wire):
    """The layout with one message per envelope."""

    single = True

    def envelopes(self, items: list[bytes]) -> list[bytes]:
        """Return the items themselves."""
        return items

    def decode(self, envelope: bytes, max_items: int) -> Sequence[Any]:
        """Return a list of one message."""
        try:
            return [self.item_type.FromString(envelope)]
        except DecodeError as error:
            raise MalformedMessageError(str(error)) from error


class RepeatedWire(Wire):
    """The layout with one repeated field per envelope."""

    single = False

    def __init__(self, item_type: type[Message], envelope_type: type[Message]) -> None:
        super().__init__(item_type)
        (field,) = envelope_type.DESCRIPTOR.fields
        self._parse = envelope_type.FromString
        self._items: Callable[[Any], Any] = attrgetter(field.name)
        self._tag = field.number << 3 | _LENGTH_DELIMITED
        self._headers = _short_headers(self._tag)

    def envelopes(self, items: list[bytes]) -> list[bytes]:
        """Return the items joined after their headers."""
        headers, known = self._headers, len(self._headers)
        if MANY_ITEMS <= len(items) <= ENVELOPE_MAX_ITEMS and Framed not in set(map(type, items)):
            lengths = list(map(len, items))
            if max(lengths) < known and sum(lengths) <= ENVELOPE_TARGET_BYTES:
                # The case of nearly every envelope with many items: no loop over the items.
                both = [b""] * (2 * len(items))
                both[::2], both[1::2] = map(headers.__getitem__, lengths), items
                return [b"".join(both)]
        done: list[bytes] = []
        parts: list[bytes] = []
        size = count = 0
        for item in items:
            length = len(item)
            if parts and (size + length > ENVELOPE_TARGET_BYTES or count >= ENVELOPE_MAX_ITEMS):
                done.append(b"".join(parts))
                parts, size, count = [], 0, 0
            if type(item) is Framed:
                count += item.items
            else:
                parts.append(headers[length] if length < known else _header(self._tag, length))
                count += 1
            parts.append(item)
            size += length
        done.append(b"".join(parts))
        return done

    def decode(self, envelope: bytes, max_items: int) -> Sequence[Any]:
        """Parse an envelope at once; its items share memory."""
        # An item has at least two bytes: only a long envelope is counted. A megabyte of empty items
        # takes a hundred megabytes when parsed.
        if len(envelope) > 2 * max_items and _has_more_fields(envelope, max_items, self._tag):
            raise TooManyItemsError(
                f"a message of {len(envelope)} bytes has more than {max_items} items, the limit"
            )
        try:
            return list(self._items(self._parse(envelope)))
        except DecodeError as error:
            raise MalformedMessageError(str(error)) from error

    def cut(self, envelope: bytes, max_items: int) -> Sequence[int]:
        """See :class:`Wire`.

        An envelope with other fields is one part: ``decode`` raises the error, if any.
        """
        if len(envelope) <= SHORT_BYTES:
            return (len(envelope),)
        ends = codec.ends(envelope, self._tag, max_items, PART_MAX_ITEMS, PART_MAX_BYTES)
        return ends or (len(envelope),)


class RequestsWire(RepeatedWire):
    """Requests to a controller: adjacent plain config writes are grouped into one object."""

    def __init__(self) -> None:
        super().__init__(controller_pb2.ControllerRequest, controller_pb2.ControllerRequests)

    def encode(self, message: Any, max_bytes: int) -> bytes:
        """See :class:`Wire`."""
        if type(message) is not ConfigWrite:
            return super().encode(message, max_bytes)
        data = codec.request(message)
        if len(data) + 8 > max_bytes:
            raise _too_large("ControllerRequest", len(data), max_bytes, KIND)
        return data

    def decode(self, envelope: bytes, max_items: int) -> Sequence[Any]:
        """Return requests, and groups of config writes."""
        if len(envelope) <= 2 * max_items or not _has_more_fields(envelope, max_items, self._tag):
            try:
                items = codec.grouped_envelope(envelope)
            except DecodeError as error:
                raise MalformedMessageError(str(error)) from error
            if items is not None:
                return items
        return self.grouped(super().decode(envelope, max_items))

    def grouped(self, messages: Sequence[Any]) -> Sequence[Any]:
        """See :class:`Wire`."""
        return grouped(messages)


class ResponsesWire(RepeatedWire):
    """A controller's responses: those to a group of config writes are sent as one object."""

    def __init__(self) -> None:
        super().__init__(controller_pb2.ControllerResponse, controller_pb2.ControllerResponses)

    def encode(self, message: Any, max_bytes: int) -> bytes:
        """See :class:`Wire`."""
        # The replies to a group are few and short, far below every bound.
        if type(message) is ConfigReplies:
            return codec.replies(message)
        return super().encode(message, max_bytes)


class _SharedWire(SingleWire):
    """A layout for a message that is sent to many peers in succession: it is encoded once."""

    def __init__(self, item_type: type[Message]) -> None:
        super().__init__(item_type)
        self._last: Any = None
        self._data = b""

    def encode(self, message: Any, max_bytes: int) -> bytes:
        """See :class:`Wire`. A sent message never changes."""
        if message is not self._last or len(self._data) + 8 > max_bytes:
            self._data = super().encode(message, max_bytes)
            self._last = message
        return self._data


class _TakesEncoded(Wire):
    """A layout for watch responses, most of which are already bytes, encoded once for many
    watches.
    """

    def encode(self, message: Any, max_bytes: int) -> bytes:
        """See :class:`Wire`."""
        # A broker keeps responses far below every bound.
        return message if isinstance(message, bytes) else super().encode(message, max_bytes)


class WatchWire(_TakesEncoded, SingleWire):
    """The layout of responses to one watch: messages, or their bytes."""


class WatchManyWire(_TakesEncoded, RepeatedWire):
    """The layout of responses to many watches on one stream: messages, or :class:`Framed` ones."""


@dataclass(frozen=True, slots=True)
class ConversationWires:
    """Both directions of a conversation."""

    to_server: Wire
    to_client: Wire


WIRES: dict[Conversation, ConversationWires] = {
    Conversation.QUORUM: ConversationWires(
        RepeatedWire(quorum_pb2.QuorumMessage, quorum_pb2.QuorumMessages),
        RepeatedWire(quorum_pb2.QuorumMessage, quorum_pb2.QuorumMessages),
    ),
    Conversation.REPLICATION: ConversationWires(
        SingleWire(quorum_pb2.FetchRequest), SingleWire(quorum_pb2.FetchResponse)
    ),
    Conversation.SNAPSHOT: ConversationWires(
        SingleWire(quorum_pb2.FetchSnapshotRequest), SingleWire(quorum_pb2.FetchSnapshotResponse)
    ),
    Conversation.CONTROLLER: ConversationWires(RequestsWire(), ResponsesWire()),
    Conversation.OBSERVER: ConversationWires(
        SingleWire(controller_pb2.MetadataFetchRequest),
        _SharedWire(controller_pb2.MetadataFetchResponse),
    ),
    Conversation.BROKER: ConversationWires(
        RepeatedWire(broker_pb2.BrokerRequest, broker_pb2.BrokerRequests),
        RepeatedWire(broker_pb2.BrokerResponse, broker_pb2.BrokerResponses),
    ),
    Conversation.WATCH: ConversationWires(
        SingleWire(broker_pb2.WatchRequest), WatchWire(broker_pb2.WatchResponse)
    ),
    Conversation.WATCH_MANY: ConversationWires(
        RepeatedWire(broker_pb2.WatchManyRequest, broker_pb2.WatchManyRequests),
        WatchManyWire(broker_pb2.WatchManyResponse, broker_pb2.WatchManyResponses),
    ),
    Conversation.REPLICA_FETCH: ConversationWires(
        SingleWire(data_pb2.ReplicaFetchRequest), SingleWire(data_pb2.ReplicaFetchResponse)
    ),
}


def _too_large(name: str, size: int, max_bytes: int, field: str) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the {name} has {size} bytes, but the transport accepts at most {max_bytes}",
        field=field,
    )


def _body(message: Any) -> str:
    """Return the name of the set field in the oneof ``body``, the innermost for a forwarded
    request; empty if none is set.
    """
    name = ""
    while "body" in message.DESCRIPTOR.oneofs_by_name:
        field = message.WhichOneof("body")
        if field is None:
            break
        name, message = field, getattr(message, field)
    return name
