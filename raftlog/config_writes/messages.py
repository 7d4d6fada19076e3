"""Several config writes as one object, and their replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_REQUESTS, MAX_BYTES = 128, 64 << 10
"""Most requests and bytes of a group, unless a single request is larger: connections take turns by
the group.
"""
MAX_CHANGES = 1_024
"""Most changes of a request in a group. [A request of 4 MB has 400,000: to take it apart and put it
together again, only to refuse it, takes a second.]
"""
KIND = "incremental_alter_configs"
"""Name of the body of each request in a group."""

Change = tuple[int, str, str, str | None]
"""Resource type, resource name, key, value; None deletes the key."""


class ConfigWrite(msgspec.Struct, eq=False):
    """An atomic write that a client sends: it sets keys of some resources, one key of each.

    Its bytes are those of an IncrementalAlterConfigsRequest of ``ConfigOperation.SET``.
    """

    changes: list[Change]
    """Changes, at least one; no value is None."""
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
    """A group of adjacent requests of one connection: each sets keys of some resources, one key of
    each, and they are equal in all else.

    Each is a write by itself: atomic, decided by itself, answered by itself.
    """

    correlation_ids: list[int]
    changes: list[Change]
    """Changes of all requests, one request after the other."""
    counts: list[int]
    """Number of changes of each request; at least 1."""
    timeout_ms: int
    acks: common_pb2.Acks
    cluster_id: str
    principal: str
    host: str
    size: int
    """Total size of the requests, in bytes."""
    printable: bool = False
    """True if all texts are known to consist of printable ASCII characters."""

    # As messages have them: a group takes the road of a single request.

    def ByteSize(self) -> int:  # noqa: N802
        """Return the size of the requests, in bytes."""
        return self.size

    def WhichOneof(self, _oneof: str) -> str:  # noqa: N802
        """Return the name of the body of each request."""
        return KIND

    def requests(self, begin: int = 0) -> Iterator[pb.ControllerRequest]:
        """Yield the requests from ``begin`` on, one by one, as messages."""
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
        """Return the client of the requests; None: they name none."""
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
    """Return the requests one by one, with groups taken apart."""
    if not any(type(item) is ConfigWrites for item in items):
        return items
    return [
        request
        for item in items
        for request in (item.requests() if type(item) is ConfigWrites else (item,))
    ]


class ConfigReplies(msgspec.Struct, eq=False):
    """The replies to a group of writes, of which each succeeded."""

    correlation_ids: list[int]
    counts: list[int]
    """Number of records that each write appended."""
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
    """The items of an envelope, each behind its tag and length."""

    items = 0
    """Number of items."""
