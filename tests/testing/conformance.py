"""Behaviour of a cluster that a program can observe, as cases that run against real processes and
in the simulated cluster.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Protocol

from typing_extensions import Unpack

import raftlog
from raftlog.errors import ApiError
from raftlog.recipes import AsyncBarrier, AsyncElection, AsyncLock


class Cluster(Protocol):
    @property
    def brokers(self) -> Sequence[str]: ...

    @property
    def controllers(self) -> Sequence[str]: ...

    @property
    def leader(self) -> str | None: ...

    def connect_async(self, **options: Unpack[raftlog.ClientOptions]) -> raftlog.AsyncClient: ...

    def kill(self, name: str) -> None: ...

    def start(self, name: str) -> None: ...

    def pause(self, name: str) -> None: ...

    def resume(self, name: str) -> None: ...


Case = Callable[[raftlog.AsyncClient, Cluster], Awaitable[list[Any]]]
CASES: dict[str, Case] = {}
OFFSETS = frozenset(
    {"offset", "create_offset", "lease_id", "id", "token", "timestamp_ms", "key", "leader"}
)
"""Fields that differ from log to log."""


ACL = raftlog.Acl("User:alice", raftlog.AclOperation.READ, raftlog.AclResourceType.TOPIC, "orders")


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


async def said(call: Awaitable[Any]) -> Any:
    """The result of a call, or its error, without what differs between logs."""
    try:
        return plain(await call)
    except ApiError as error:
        message = re.sub(r"\d+", "N", error.message)
        flags = (error.retriable, error.outcome_unknown)
        return (type(error).__name__, error.code.name, error.field, *flags, message)
    except (raftlog.errors.RaftlogError, ValueError, TypeError) as error:
        return (type(error).__name__, re.sub(r"\d+", "N", str(error)))


def plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, raftlog.WriteResult):
        return ("written", value.token is not None)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: plain(getattr(value, one.name))
            for one in fields(value)
            if one.name not in OFFSETS
        }
    if isinstance(value, dict):
        return {name: plain(one) for name, one in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def shape(topic: raftlog.Topic) -> list[Any]:
    """Return partitions and replicas by number: broker ids differ."""
    return [topic.name, [(one.index, len(one.replicas)) for one in topic.partitions]]


@case
async def topics(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    create = client.topics.create
    return [
        await said(create("orders", partitions=3, acks="visible")),
        await said(create("orders")),
        await said(create("wide", replication_factor=9)),
        await said(create("empty", partitions=0)),
        await said(create("bad name!")),
        await said(create("x" * 300)),
        await said(create("dry", validate_only=True)),
        await said(create("strange", configs={"no.such.key": "1"})),
        shape(await client.topics.describe("orders")),
        await said(client.topics.describe("unknown")),
        (await client.topics.describe_all("unknown", "orders")).missing,
        await said(client.topics.create_partitions("orders", 2)),
        await said(client.topics.create_partitions("orders", 5, acks="visible")),
        [shape(one) for one in await client.topics.list()],
        [shape(one) for one in (await client.topics.page(partitions=1)).topics],
        await said(client.topics.create_all([raftlog.NewTopic("a"), raftlog.NewTopic("orders")])),
        sorted(one.name for one in await client.topics.list(read="strict")),
        await said(client.topics.delete("orders", "a", acks="visible")),
        await said(client.topics.delete("orders")),
        await client.topics.list(),
    ]


@case
async def configs(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    alter, describe = client.configs.alter, client.configs.describe
    await client.topics.create("t", acks="visible")
    return [
        await said(alter("topic", "t", set={"retention.ms": 5_000}, acks="visible")),
        plain((await describe("topic", "t"))["retention.ms"]),
        await said(alter("topic", "t", set={"retention.ms": 6_000}, expected={"retention.ms": 1})),
        await said(
            alter("topic", "t", set={"retention.ms": 7_000}, expected={"retention.ms": 5_000})
        ),
        await said(alter("topic", "t", set={"retention.ms": "soon"})),
        await said(alter("topic", "t", set={"no.such.key": "1"})),
        await said(alter("topic", "gone", set={"retention.ms": 1})),
        await said(alter("topic", "t", delete=["retention.ms"], acks="visible")),
        plain(await describe("topic", "t")),
        await said(describe("topic", "gone")),
        await said(alter("cluster", set={"log.retention.ms": 86_400_000}, acks="visible")),
        plain((await describe("topic", "t"))["retention.ms"]),
        await said(alter("client-metrics", "m", set={"metrics": "a,b"}, acks="visible")),
        await said(alter("client-metrics", "m", append={"metrics": ["c"]}, acks="visible")),
        plain(await describe("client-metrics", "m")),
    ]


@case
async def keys(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    kv = client.kv
    first = await kv.put("a/1", "one", expected=raftlog.ABSENT)
    second = await kv.put("a/2", b"\x00\xff")
    return [
        second.offset > first.offset,
        await said(kv.put("a/1", "other", expected=raftlog.ABSENT)),
        await said(kv.put("a/1", "two", expected=first.offset)),
        await said(kv.put("a/1", "three", expected=first.offset)),
        await said(kv.get("a/1", read="strict")),
        await said(kv.get("nothing")),
        await said(kv.list("a/")),
        await said(
            kv.alter(raftlog.Expect("a/1", expected=raftlog.ABSENT), raftlog.Put("a/3", "3"))
        ),
        await said(kv.get("a/3")),
        await said(kv.alter(raftlog.Put("b", "1"), raftlog.Delete("a/2"), acks="visible")),
        await said(kv.alter(raftlog.Put("twice", "1"), raftlog.Put("twice", "2"))),
        await said(kv.list("")),
        await said(kv.delete("a/1")),
        await said(kv.delete("a/1")),
        await said(kv.put("", "x")),
        await said(kv.put("k" * 2_000, "x")),
        await said(kv.put("big", "x" * 2_000_000)),
        await said(kv.put("of no lease", "x", lease_id=1)),
    ]


@case
async def leases(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    lease = await client.leases.grant(5.0, name="worker")
    await client.kv.put("live", "here", lease_id=lease.id, acks="visible")
    (listed,) = await client.leases.list()
    seen = [
        (listed.name, listed.ttl_s, listed.key_count, 0 < listed.remaining_s <= 5.0),
        lease.is_held,
        await said(client.leases.keep_alive(lease.id)),
        await said(client.leases.grant(0.05)),
        await said(client.leases.grant(1e7)),
        await said(client.leases.revoke(lease.id)),
        await said(client.kv.get("live", read="strict")),
        await said(client.leases.revoke(lease.id)),
        await said(client.leases.keep_alive(lease.id)),
    ]
    short = await client.leases.grant(1.0)
    await client.kv.put("short", "here", lease_id=short.id, acks="visible")
    short.abandon()
    found = await client.kv.get("short", read="strict")
    await asyncio.sleep(2.5)
    return [
        *seen,
        found is not None,
        await said(client.kv.get("short", read="strict")),
        await said(client.leases.keep_alive(short.id)),
        short.is_held,
        short.why_lost,
    ]


@case
async def watches(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    await client.kv.put("w/1", "before", acks="visible")
    told = []
    async with client.watch("kv/w/", "topics", initial=True) as changes:
        await client.kv.put("w/1", "after")
        await client.topics.create("seen")
        await client.kv.alter(raftlog.Put("w/2", "2"), raftlog.Delete("w/1"))
        await client.kv.put("elsewhere", "1")
        async for one in changes:
            told.append((one.kind, one.path, one.before is None, one.after is None, one.initial))
            if len(told) == 5:
                break
    with_error = client.watch("kv", "no such kind")
    return [*told, await said(with_error.started())]


@case
async def recipes(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    async with cluster.connect_async() as other:
        mine, theirs = AsyncLock(client, "job", ttl_s=5), AsyncLock(other, "job", ttl_s=5)
        seen = [await mine.acquire(), await theirs.acquire(timeout_s=0), mine.is_held]
        await client.kv.alter(mine.guard(), raftlog.Put("state", "mine"))
        await mine.release()
        seen += [await theirs.acquire(timeout_s=5), theirs.token > 0, mine.is_held]
        await theirs.release()
        seen.append(await said(other.kv.alter(theirs.guard(), raftlog.Put("state", "late"))))
        barrier = AsyncBarrier(client, "gate")
        await barrier.hold()
        seen.append(await AsyncBarrier(other, "gate").wait(timeout_s=0.1))
        await barrier.lift()
        seen.append(await AsyncBarrier(other, "gate").wait(timeout_s=5))
        async with AsyncElection(client, "chief", "me", ttl_s=5) as election:
            leader = await election.leader()
            seen.append(leader is not None and leader.value == "me")
    return seen


@case
async def records(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    impatient = cluster.connect_async(timeout_s=0.5)
    await client.topics.create("log", partitions=2, acks="visible")
    where = [
        await client.produce("log", f"value {n}", key=f"key {n % 3}", headers={"n": str(n)})
        for n in range(6)
    ]
    read = await client.consume("log", offset="earliest", idle_timeout_s=1.0)
    async with read:
        found = [(one.partition, one.offset, one.key, one.value, one.headers) async for one in read]
    return [
        [(one.partition, one.offset) for one in where],
        sorted(map(str, found)),
        await said(impatient.produce("unknown", "x")),
        await said(client.consume("unknown")),
        await said(client.consume("log", partition=7)),
    ]


@case
async def cluster_calls(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    brokers = await client.brokers.list()
    features = await client.features.describe()
    described = await client.cluster.describe()
    return [
        len(brokers) == len(cluster.brokers),
        [one.fenced for one in brokers],
        plain(features),
        len(described.brokers),
        [one.state.name for one in (await client.brokers.visibility()).brokers],
        [one.name for one in (await client.brokers.api_versions()).apis],
        await said(client.features.update({"metadata.version": 999})),
        await said(client.brokers.unregister(4_000)),
        await said(client.acls.list()),
        await said(client.acls.create(ACL)),
        await said(client.acls.delete(raftlog.AclFilter())),
        await said(client.export_cursors.set("nightly", 3)),
        [one.name for one in await client.export_cursors.list()],
        await said(client.export_cursors.delete("nightly")),
        await said(client.export_cursors.delete_all({"nightly": raftlog.UNCONDITIONAL})),
        await said(client.hostnames.set("host-9", 9)),
        "host-9" in [one.hostname for one in await client.hostnames.list()],
        await said(client.hostnames.delete("host-9")),
        await said(client.hostnames.delete_all({"host-9": raftlog.UNCONDITIONAL})),
        await said(client.quorum.describe()),
    ]


@case
async def partitions(client: raftlog.AsyncClient, _: Cluster) -> list[Any]:
    await client.topics.create("moved", partitions=1, replication_factor=1, acks="visible")
    (partition,) = (await client.topics.describe("moved")).partitions
    other = next(one.id for one in await client.brokers.list() if one.id != partition.leader)
    await client.partitions.reassign("moved", {0: [other]})
    while await client.partitions.reassignments("moved"):
        await asyncio.sleep(0.05)
    (now,) = await client.partitions.describe("moved")
    return [
        now.leader == other,
        await said(client.partitions.reassign("moved", {0: [4_000]})),
        await said(client.partitions.reassign("moved", {5: [other]})),
        await said(client.partitions.cancel_reassignment("moved", 0)),
        await said(client.partitions.describe("unknown")),
        await said(client.partitions.elect_leaders("moved")),
        await said(client.partitions.elect_all({"moved": [0]})),
        await said(client.partitions.reassign_all({"moved": {0: [4_000]}, "unknown": {0: None}})),
    ]


@case
async def options(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    token = (await client.kv.put("k", "1", acks="visible")).token
    assert token is not None
    async with cluster.connect_async() as other:
        await other.see(str(token))
        seen = [await said(other.kv.get("k"))]
        seen.append(other.token is not None and other.token.offset >= token.offset)
    return [
        *seen,
        await said(other.kv.get("k")),
        await said(client.kv.put("k", "2", acks="never")),  # type: ignore[arg-type]
        await said(client.kv.get("k", read="never")),  # type: ignore[arg-type]
        await said(client.kv.get("k", timeout_s=0)),
    ]


@case
async def dead_nodes(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    """A broker and the leader die: writes continue, and are visible on the other brokers."""
    cluster.kill(cluster.brokers[0])
    seen = [await said(client.kv.put("after", "1", acks="visible", timeout_s=30))]
    while sum(one.fenced for one in await client.brokers.list()) != 1:
        await asyncio.sleep(0.05)
    assert cluster.leader is not None
    cluster.kill(cluster.leader)
    seen.append(await said(client.kv.put("after", "2", acks="visible", timeout_s=30)))
    return [*seen, await said(client.kv.get("after"))]


@case
async def no_quorum(client: raftlog.AsyncClient, cluster: Cluster) -> list[Any]:
    """Without a majority nothing is committed; a sent request may be executed later."""
    await client.kv.put("k", "1")
    for name in cluster.controllers[1:]:
        cluster.pause(name)
    lost = await said(client.kv.put("k", "2", timeout_s=1))
    for name in cluster.controllers[1:]:
        cluster.resume(name)
    return [lost[:5], await said(client.kv.put("later", "3", timeout_s=30))]
