"""Groups of config writes, their replies, and the Python codec, which specifies ``native.c`` and is
used if that is not compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from raftlog.config_writes.records import Change
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_REQUESTS, MAX_BYTES = 128, 64 << 10
"""Maximum number of requests and bytes in a group, unless a single request is larger: connections
take turns by group.
"""
MAX_CHANGES = 1_024
"""Maximum number of changes in a grouped request. A request of 4 MB can have 400,000; splitting and
reassembling it, only to refuse it, would take a second.
"""
KIND = "incremental_alter_configs"
"""Name of the body of each request in a group."""


class ConfigWrite(msgspec.Struct, eq=False):
    """An atomic write of a client, which sets the same key on one or more resources.

    Its bytes are those of an IncrementalAlterConfigsRequest of ``ConfigOperation.SET``.
    """

    changes: list[Change]
    """The changes, at least one; no value is None."""
    acks: common_pb2.Acks = common_pb2.ACKS_COMMITTED
    cluster_id: str = ""
    principal: str = ""
    timeout_ms: int = 0
    correlation_id: int = 0

    def request(self) -> pb.ControllerRequest:
        """Return the write as a message."""
        group = ConfigWrites(
            [self.correlation_id], self.changes, [len(self.changes)], self.timeout_ms, self.acks,
            self.cluster_id, self.principal, "", 0,
        )  # fmt: skip
        return next(group.requests())

    def again(self, remaining_s: float) -> ConfigWrite:
        """Return a copy for another attempt."""
        timeout_ms = max(1, int(remaining_s * 1000))
        return ConfigWrite(self.changes, self.acks, self.cluster_id, self.principal, timeout_ms)


class ConfigWrites(msgspec.Struct, eq=False):
    """A group of adjacent requests from one connection. Each sets the same key on one or more
    resources; otherwise they are equal.

    Each request is an independent atomic write, with its own decision and answer.
    """

    correlation_ids: list[int]
    changes: list[Change]
    """The changes of all requests, in the order of the requests."""
    counts: list[int]
    """Number of changes in each request; at least 1."""
    timeout_ms: int
    acks: common_pb2.Acks
    cluster_id: str
    principal: str
    host: str
    size: int
    """Total size of the requests, in bytes."""
    printable: bool = False
    """Whether all texts are known to consist of printable ASCII characters."""

    # The methods of a message, since a group is handled like a single request.

    def ByteSize(self) -> int:  # noqa: N802
        """Return the size of the requests, in bytes."""
        return self.size

    def WhichOneof(self, _oneof: str) -> str:  # noqa: N802
        """Return the name of each request's body."""
        return KIND

    def requests(self, begin: int = 0) -> Iterator[pb.ControllerRequest]:
        """Yield the requests from ``begin`` onwards as messages."""
        position = sum(self.counts[:begin])
        for index in range(begin, len(self.counts)):
            end = position + self.counts[index]
            request = pb.ControllerRequest(
                correlation_id=self.correlation_ids[index],
                cluster_id=self.cluster_id,
                timeout_ms=self.timeout_ms,
                acks=self.acks,
                client=self.client(),
                incremental_alter_configs=pb.IncrementalAlterConfigsRequest(
                    resources=[
                        pb.AlterConfigsResource(
                            resource_type=type_,
                            resource_name=name,
                            configs=[pb.AlterableConfig(name=key, value=value)],
                        )
                        for type_, name, key, value in self.changes[position:end]
                    ]
                ),
            )
            position = end
            yield request

    def client(self) -> common_pb2.ClientIdentity | None:
        """Return the requests' client, or None if they name none."""
        if not self.principal and not self.host:
            return None
        return common_pb2.ClientIdentity(principal=self.principal, host=self.host)

    def part(self, begin: int, end: int) -> ConfigWrites:
        """Return the requests from ``begin`` to ``end`` (exclusive)."""
        if end - begin == len(self.counts):
            return self
        first = sum(self.counts[:begin])
        last = first + sum(self.counts[begin:end])
        return ConfigWrites(
            self.correlation_ids[begin:end],
            self.changes[first:last],
            self.counts[begin:end],
            self.timeout_ms,
            self.acks,
            self.cluster_id,
            self.principal,
            self.host,
            self.size * (end - begin) // len(self.counts),
            self.printable,
        )


def single_requests(items: Sequence[Any]) -> Sequence[pb.ControllerRequest]:
    """Return the requests one by one, splitting groups."""
    if not any(type(item) is ConfigWrites for item in items):
        return items
    return [
        request
        for item in items
        for request in (item.requests() if type(item) is ConfigWrites else (item,))
    ]


class ConfigReplies(msgspec.Struct, eq=False):
    """The replies to a group of writes, all of which succeeded."""

    correlation_ids: list[int]
    counts: list[int]
    """Number of records appended by each write."""
    base_offset: int
    """Offset of the first record."""
    leader_id: int
    controller_epoch: int
    generation: int
    reached: common_pb2.Acks = common_pb2.ACKS_COMMITTED
    """Level reached, as in WriteResult."""

    def responses(self) -> Iterator[pb.ControllerResponse]:
        """Yield the replies one by one, as messages."""
        offset = self.base_offset - 1
        for correlation_id, count in zip(self.correlation_ids, self.counts, strict=True):
            offset += count
            response = pb.ControllerResponse(
                correlation_id=correlation_id,
                leader_id=self.leader_id,
                controller_epoch=self.controller_epoch,
                incremental_alter_configs=pb.IncrementalAlterConfigsResponse(),
            )
            write = response.write
            write.reached = self.reached
            token = write.token
            token.generation, token.epoch, token.offset = (
                self.generation,
                self.controller_epoch,
                offset,
            )
            yield response


class Framed(bytes):
    """The items of an envelope, each preceded by its tag and length."""

    items = 0

    @classmethod
    def one(cls, item: bytes) -> Framed:
        """Return one encoded item."""
        framed = cls(b"%c%b%b" % (_ITEM_TAG, varint(len(item)), item))
        framed.items = 1
        return framed


_json = msgspec.json.Encoder().encode
_ITEM_TAG = 0x0A
MAX_ACKS = 2
_KNOWN_OF_CLIENT = frozenset({"principal", "host"})


def grouped(
    requests: Sequence[pb.ControllerRequest],
    max_requests: int = MAX_REQUESTS,
    max_bytes: int = MAX_BYTES,
) -> list[pb.ControllerRequest | ConfigWrites]:
    """Return the requests in order, with adjacent plain config writes combined into groups."""
    items: list[pb.ControllerRequest | ConfigWrites] = []
    group: ConfigWrites | None = None
    shared: tuple[Any, ...] = ()
    for request in requests:
        changes = _changes(request)
        if changes is None:
            items.append(request)
            group = None
            continue
        size, client = request.ByteSize(), request.client
        fields = (
            request.timeout_ms, request.acks, request.cluster_id, client.principal, client.host
        )  # fmt: skip
        if (
            group is None
            or len(group.counts) >= max_requests
            or group.size + size > max_bytes
            or fields != shared
        ):
            shared = fields
            group = ConfigWrites([], [], [], *fields, 0)
            items.append(group)
        group.correlation_ids.append(request.correlation_id)
        group.counts.append(len(changes))
        group.changes += changes
        group.size += size
    for item in items:
        if type(item) is ConfigWrites:
            item.printable = printable(item.changes)
    return items


def printable(changes: Sequence[Change]) -> bool:
    """Return whether all texts consist of printable ASCII characters."""
    text = "".join([change[1] + (change[3] or "") for change in changes])
    text += "".join({change[2] for change in changes})
    # A text that JSON does not escape is printable except for one character; JSON is faster.
    return text.isascii() and (
        (len(_json(text)) == len(text) + 2 and "\x7f" not in text) or text.isprintable()
    )


def _is_plain(request: pb.ControllerRequest) -> bool:
    """Return whether a request may be in a group, judged by everything except its resources."""
    if request.WhichOneof("body") != KIND or request.timeout_ms < 0:
        return False
    if not 0 <= request.acks <= MAX_ACKS or request.traceparent or request.HasField("written"):
        return False
    if request.HasField("client"):
        known = {field.name for field, _ in request.client.ListFields()}
        if request.client.HasField("node_id") or not known <= _KNOWN_OF_CLIENT:
            return False
    return not request.incremental_alter_configs.validate_only


def _changes(request: pb.ControllerRequest) -> list[Change] | None:
    """Return the changes of a plain write, or None if the write is not plain."""
    if not _is_plain(request):
        return None
    body = request.incremental_alter_configs
    if len(body.resources) > MAX_CHANGES:
        return None
    changes: list[Change] = []
    for resource in body.resources:
        configs = resource.configs
        if len(configs) != 1 or resource.resource_type < 0:
            return None
        config = configs[0]
        if config.config_operation or config.HasField("expected"):
            return None
        changes.append((resource.resource_type, resource.resource_name, config.name, config.value))
    return changes or None


def request(write: ConfigWrite) -> bytes:
    """See ``codec.request``."""
    return write.request().SerializeToString()


def run(changes: Sequence[Change], begin: int, max_value_chars: int, max_name_chars: int) -> int:
    """Return the end of the run of changes, starting at ``begin``, with the same resource type and
    key and with values and names within the limits. No name may be empty, no value None.
    """
    type_, _, key, _ = changes[begin]
    for index in range(begin, len(changes)):
        resource_type, resource_name, name, value = changes[index]
        if (
            (name is not key and name != key)
            or resource_type != type_
            or value is None
            or len(value) > max_value_chars
            or not 0 < len(resource_name) <= max_name_chars
        ):
            return index
    return len(changes)


def replies(message: ConfigReplies) -> bytes:
    """Return the responses, each preceded by its tag and length in an envelope."""
    parts: list[bytes] = []
    for response in message.responses():
        data = response.SerializeToString()
        parts += (bytes((_ITEM_TAG,)), varint(len(data)), data)
    return b"".join(parts)


def ends(message: bytes, tag: int, most: int, part_items: int, part_bytes: int) -> list[int] | None:
    """Return the ends of the parts into which to split an envelope, or None if it has more than
    ``most`` items or anything but items.

    A part ends as soon as it has ``part_items`` items or ``part_bytes`` bytes.
    """
    position, end, count, begin, cuts = 0, len(message), 0, 0, list[int]()
    until = part_items
    try:
        while position < end:
            if message[position] != tag or count >= most:
                return None
            length = message[position + 1]
            position += 2
            if length > 0x7F:
                high = message[position]
                if high <= 0x7F:
                    length, position = length & 0x7F | high << 7, position + 1
                else:
                    length, position = varint_at(message, position - 1)
            position += length
            count += 1
            if count >= until or position - begin >= part_bytes:
                cuts.append(position)
                until, begin = count + part_items, position
    except IndexError:
        return None
    if position != end:
        return None
    if begin < end:
        cuts.append(end)
    return cuts


def varint_at(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it. Raises IndexError if the message
    ends before it does.
    """
    value = message[position]
    if value <= 0x7F:
        return value, position + 1
    value &= 0x7F
    for index in range(1, 10):
        byte = message[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte <= 0x7F:
            return value, position + index + 1
    raise IndexError


def varint(value: int) -> bytes:
    """Encode a non-negative number as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
