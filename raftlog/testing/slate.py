"""The reset of a cluster to its first image, whatever a test has written.

The log has all changes, so it is read from where the previous test ended, and the resulting image
is compared with the first one. So no name needs a prefix, and a test can use its program's own
names.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import raftlog
from raftlog.client.async_client import AsyncClient
from raftlog.client.client import Client
from raftlog.client.log_reader import CommittedImage, LogReader
from raftlog.client.values import AclFilter
from raftlog.errors import ApiError, RaftlogError, ResourceNotFoundError
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.image import Image
from raftlog.transport.grpc_transport import GrpcTransport

TIMEOUT_S = 30.0
_LAST = "raftlog-testing/last"
_AT_ONCE = 500
"""Number of keys in one write."""
ROUNDS = 3
"""Number of attempts, as a request from the previous test may take effect only now."""


class LeftoverError(RaftlogError):
    """A test made a change that no write restores, so the next test needs a new cluster."""


class Slate:
    """The first image of a cluster, and the writes that restore it."""

    def __init__(self, brokers: str, controllers: str) -> None:
        """Read the first image. Raises RaftlogError."""
        self._controllers = controllers.split(",")
        self._client = Client(brokers, timeout_s=TIMEOUT_S, principal="User:clean-slate")
        self._transport: GrpcTransport | None = None
        self._reader: LogReader | None = None
        self._image: CommittedImage | None = None
        thread, self._twin = self._client.parts
        self._call = thread.call
        try:
            self._first = self._call(self._read)
        except BaseException:
            self.close()
            raise

    def clean(self) -> None:
        """Undo the changes since the first image; on return, the result is visible on every broker.
        Raises LeftoverError.
        """
        try:
            self._call(self._clean)
        except ApiError as error:
            raise LeftoverError(f"the cluster could not be reset: {error}") from error

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._reader is not None:
            self._call(self._close)
        self._client.close()

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if self._transport is not None:
            await self._transport.close()

    async def _read(self) -> Image:
        if self._image is None:
            self._transport = GrpcTransport()
            self._reader = LogReader(self._transport, self._controllers, rng=random.Random())
            self._image = CommittedImage(self._reader)
        return await self._image.read()

    async def _clean(self) -> None:
        for _ in range(ROUNDS):
            image = await self._read()
            left = leftovers(self._first, image)
            if not left:
                return
            await _undo(self._twin, self._first, image)
        raise LeftoverError(f"a test has left changes behind: {', '.join(left)}")


def leftovers(first: Image, image: Image) -> list[str]:
    """Return the names of the parts of an image that differ from the first one."""
    parts: Mapping[str, tuple[Any, Any]] = {
        "topics": ({*first.topic_ids}, {*image.topic_ids}),
        "configs": (_configs(first), _configs(image)),
        "keys": ({*first.key_values}, {*image.key_values}),
        "leases": ({*first.leases}, {*image.leases}),
        "access control entries": ({*first.acls}, {*image.acls}),
        "export cursors": ({*first.export_cursors}, {*image.export_cursors}),
        "host names": (_broker_of_host(first), _broker_of_host(image)),
        "feature levels": (dict(first.features.items()), dict(image.features.items())),
        "other brokers": ({*first.brokers}, {*image.brokers}),
        "another voter set": (_voter_ids(first), _voter_ids(image)),
    }
    return [name for name, (before, now) in parts.items() if before != now]


def _configs(image: Image) -> dict[Any, dict[str, str]]:
    return {resource: dict(keys) for resource, keys in image.configs.items() if keys}


def _broker_of_host(image: Image) -> dict[str, int]:
    return {name: one.broker_id for name, one in image.hostnames.items()}


def _voter_ids(image: Image) -> set[int]:
    return {voter.id for voter in image.voters.voters} if image.voters is not None else set()


async def _undo(client: AsyncClient, first: Image, image: Image) -> None:
    """Delete what an image has in addition to the first one, and restore the rest."""
    writes: list[Callable[..., Awaitable[Any]]] = []
    topics = {*image.topic_ids} - {*first.topic_ids}
    if topics:
        writes.append(partial(client.topics.delete, *topics))
    before = _configs(first)
    for (kind, name), keys in _configs(image).items():
        wanted = before.get((kind, name), {})
        if keys != wanted and not (kind == ResourceType.TOPIC and name in topics):
            extra = keys.keys() - wanted.keys()
            alter = client.configs.alter
            writes.append(partial(alter, ResourceType(kind), name, set=wanted, delete=extra))
    if len(image.acls) != len(first.acls):
        writes.append(partial(client.acls.delete, AclFilter()))
    cursors = {*image.export_cursors} - {*first.export_cursors}
    writes += [partial(client.export_cursors.delete, cursor) for cursor in cursors]
    hosts, now = _broker_of_host(first), _broker_of_host(image)
    writes += [partial(client.hostnames.delete, host) for host in now.keys() - hosts.keys()]
    lost = [host for host in hosts if now.get(host) != hosts[host]]
    writes += [partial(client.hostnames.set, host, hosts[host]) for host in lost]
    for lease in await client.leases.list():
        # A lease that expires meanwhile need not be revoked.
        with contextlib.suppress(ResourceNotFoundError):
            await client.leases.revoke(lease.id)
    gone = [raftlog.Delete(key) for key in {*image.key_values} - {*first.key_values}]
    parts = [gone[at : at + _AT_ONCE] for at in range(0, len(gone), _AT_ONCE)]
    writes += [partial(client.kv.alter, *part) for part in parts]
    await asyncio.gather(*(write() for write in writes))
    # Once the last write is visible on every broker, all earlier ones are.
    await client.kv.put(_LAST, "")
    await client.kv.delete(_LAST, acks="visible")
