"""Many watchers on one stream: each side's requests, and the watches to which a message belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from raftlog.config_writes.writes import varint, varint_at
from raftlog.wire.broker.v1 import broker_pb2 as pb


class Shared(Protocol):
    """The requests and responses of many watches on one stream of one side."""

    def requests(self, first: int, requests: Sequence[bytes]) -> list[bytes]:
        """Return the messages that begin these watches, numbered from ``first``."""

    def told(self, message: bytes) -> Iterable[tuple[Iterable[int], bytes]]:
        """Return each value in a message, with the watches to which it belongs."""


class _Raftlog:
    """WatchMany: requests and responses share messages, and a response may be for several
    watches.
    """

    def requests(self, first: int, requests: Sequence[bytes]) -> list[bytes]:
        """See :class:`Shared`."""
        begun = [
            pb.WatchManyRequest(watch_id=watch_id, begin=pb.WatchRequest.FromString(request))
            for watch_id, request in enumerate(requests, first)
        ]
        return [pb.WatchManyRequests(requests=begun).SerializeToString()]

    def told(self, message: bytes) -> Iterator[tuple[Iterable[int], bytes]]:
        """See :class:`Shared`."""
        for one in pb.WatchManyResponses.FromString(message).responses:
            yield one.watch_ids, one.response.SerializeToString()


class _Etcd:
    """Watch: the server numbers the watches from 0, and each response is for one watch."""

    def requests(self, first: int, requests: Sequence[bytes]) -> list[bytes]:
        """See :class:`Shared`."""
        return list(requests)

    def told(self, message: bytes) -> Iterator[tuple[Iterable[int], bytes]]:
        """See :class:`Shared`."""
        # WatchResponse: the header (1), watch_id (2) unless it is 0, and the events.
        position = 0
        if message[0] == _HEADER:
            length, position = varint_at(message, 1)
            position += length
        watch_id = 0
        if message[position : position + 1] == _WATCH_ID:
            watch_id, _ = varint_at(message, position + 1)
        yield (watch_id,), message


_HEADER, _WATCH_ID = 1 << 3 | 2, varint(2 << 3)


SHARED: dict[str, Shared] = {"raftlog": _Raftlog(), "etcd": _Etcd()}
