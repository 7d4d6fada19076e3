"""Asks the controllers what they know, all at once, and does not wait for those that hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from raftlog.client.quorum_queries import DESCRIBE_QUORUM, Call, Called, call, call_all
from raftlog.client.security import ClientSecurity
from raftlog.endpoint import endpoint_on, parse_endpoint
from raftlog.ops.evidence import About, NodeSeen, Reach, Survey
from raftlog.transport.api import Probe
from raftlog.transport.probe import host_failure, probe
from raftlog.transport.tls_look import NOTHING, TlsSeen, TlsTrouble, speaks_tls, tls_trouble
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

import grpc  # isort: skip

GRACE = 0.1
"""Once a leader has answered, the others have this share of the whole time: a node that hangs must
not make the one who looks for it wait."""
PAUSE = 0.5
"""Before a second look, as a share of the time: an election takes less."""
LOOK_S = 1.0
"""The time for a whole look, where nobody says otherwise."""
LEADERS_SHARE = 0.4
"""So much has a leader that answers, to describe the brokers."""
MAX_ADDRESSES = 100
MAX_BROKERS = 50
"""Of those that are asked about themselves."""
_PROBE_S = 0.05
_TLS_S = 0.1
_DESCRIBE_NODE = Call(
    "/raftlog.wire.node.v1.Node/DescribeNode",
    node_pb2.DescribeNodeRequest(),
    node_pb2.DescribeNodeResponse,
)
_DESCRIBE_BROKERS = "/raftlog.wire.controller.v1.Controller/DescribeBrokers"


async def gather(addresses: Sequence[str], timeout_s: float, security: ClientSecurity) -> Survey:
    """Ask these addresses and the voters that they name, and the leader for the brokers.

    Never raises for what nodes or the network do. Takes about a tenth of ``timeout_s`` if a leader
    answers, all of it if nobody does, and two and a half of it if controllers answer and none of
    them leads: a second look is to tell an outage from an election.
    """
    seen = await _Look(addresses, timeout_s, security).evidence()
    if seen.answers and seen.leader is None:
        await asyncio.sleep(PAUSE * timeout_s)
        seen = await _Look(addresses, timeout_s, security).evidence()
    return seen


class _Look:
    """One look at a cluster."""

    def __init__(
        self, addresses: Sequence[str], timeout_s: float, security: ClientSecurity
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._timeout_s, self._security = timeout_s, security
        self._until = self._begun + timeout_s
        self._asked: dict[str, asyncio.Task[NodeSeen]] = {}
        self._unresolved: set[str] = set()
        """Addresses whose host names are being looked up."""
        self._brokers: dict[tuple[str, int], asyncio.Task[Called]] = {}
        """By the cluster and the leader that is asked: addresses of two clusters have two."""
        for address in addresses:
            self._ask(address)

    async def evidence(self) -> Survey:
        """See ``gather``."""
        seen: dict[str, NodeSeen] = {}
        while len(seen) < len(self._asked) and (left := self._until - self._loop.time()) > 0:
            waiting = [task for address, task in self._asked.items() if address not in seen]
            done, _ = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                node = task.result()
                seen[node.endpoint] = node
                self._learn(node)
        waited_ms = round((self._loop.time() - self._begun) * 1000)
        for address, task in self._asked.items():
            if address not in seen:
                await _ended(task)
                failure = f"nothing came within {waited_ms} ms"
                reach = Reach.UNRESOLVED if address in self._unresolved else Reach.SILENT
                seen[address] = NodeSeen(address, reach, None, failure, waited_ms)
        nodes = _once_a_node(list(seen.values()))
        brokers = await self._brokers_seen(Survey(nodes).leader)
        told = await self._told_by(brokers.response)
        found = Survey(nodes, brokers.response, brokers.failure, _now_ms(), told)
        return replace(found, at_ms=found.at_ms + (found.ahead_ms or 0))

    def _ask(self, address: str) -> None:
        if address and address not in self._asked and len(self._asked) < MAX_ADDRESSES:
            self._unresolved.add(address)
            resolved = partial(self._unresolved.discard, address)
            self._asked[address] = asyncio.create_task(
                _look_at(address, self._timeout_s, self._security, resolved)
            )

    def _learn(self, node: NodeSeen) -> None:
        """Who answers names the voters; a leader ends the patience with those who do not."""
        if node.description is None:
            return
        for voter in node.description.voters:
            self._ask(voter.endpoint)
        leads = node.description.role == "leader"
        if leads:
            self._until = min(self._until, self._loop.time() + GRACE * self._timeout_s)
        if leads and _key(node.description) not in self._brokers:
            self._brokers[_key(node.description)] = asyncio.create_task(
                call(
                    node.endpoint,
                    _DESCRIBE_BROKERS,
                    controller_pb2.DescribeBrokersRequest(),
                    controller_pb2.DescribeBrokersResponse,
                    self._timeout_s,
                    self._security,
                )
            )

    async def _brokers_seen(self, leader: quorum_pb2.DescribeQuorumResponse | None) -> Called:
        """What this leader said of them."""
        asked = None if leader is None else self._brokers.pop(_key(leader), None)
        for other in self._brokers.values():
            await _ended(other)
        if asked is None:
            return Called(None)
        # It has just said that it leads: it does not hang, and what it says matters most.
        patience_s = max(self._until - self._loop.time(), LEADERS_SHARE * self._timeout_s)
        done, _ = await asyncio.wait([asked], timeout=patience_s)
        if done:
            return asked.result()
        await _ended(asked)
        return Called(None, f"nothing came within {round(patience_s * 1000)} ms")

    async def _told_by(
        self, found: controller_pb2.DescribeBrokersResponse | None
    ) -> tuple[About, ...]:
        """What brokers that serve say of themselves; no longer than others are waited for."""
        serving = [
            one
            for one in (found.brokers if found is not None else ())
            if one.state == controller_pb2.ACTIVE
        ]
        asked = [
            asyncio.create_task(
                _about(
                    f"broker {one.broker_id}",
                    endpoint_on(one.endpoint, "") or one.endpoint,
                    self._timeout_s,
                    self._security,
                )
            )
            for one in serving[:MAX_BROKERS]
        ]
        if not asked:
            return ()
        left_s = max(self._until - self._loop.time(), GRACE * self._timeout_s / 2)
        done, late = await asyncio.wait(asked, timeout=left_s)
        for task in late:
            await _ended(task)
        told = [task.result() for task in asked if task in done]
        return tuple(one for one in told if one is not None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _key(one: quorum_pb2.DescribeQuorumResponse) -> tuple[str, int]:
    return one.cluster_id, one.node_id


async def _ended(task: asyncio.Task[Any]) -> None:
    """End it, its connection too: nothing of it may be left when the event loop is closed."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _look_at(
    address: str, timeout_s: float, security: ClientSecurity, looked_up: Callable[[], None]
) -> NodeSeen:
    unknown = await host_failure(address, timeout_s)
    looked_up()
    if unknown:
        return NodeSeen(address, Reach.UNRESOLVED, None, unknown)
    begun_ms = _now_ms()
    quorum, node = await call_all(address, [DESCRIBE_QUORUM, _DESCRIBE_NODE], timeout_s, security)
    one = quorum.response
    if one is not None:
        about = _said(f"node {one.node_id}", node, begun_ms)
        return NodeSeen(address, Reach.ANSWERS, one, node_id=one.node_id, about=about)
    reach, tls = await _reach(address, quorum.status, security)
    waited_ms = round(timeout_s * 1000)
    return NodeSeen(address, reach, None, quorum.failure, waited_ms, tls=tls)


async def _about(
    name: str, address: str, timeout_s: float, security: ClientSecurity
) -> About | None:
    begun_ms = _now_ms()
    (node,) = await call_all(address, [_DESCRIBE_NODE], timeout_s, security)
    return _said(name, node, begun_ms)


def _said(name: str, called: Called, begun_ms: int) -> About | None:
    """A node of a build before this one says nothing, nor does one that does not let us."""
    if called.response is None:
        return None
    between_ms = (begun_ms + _now_ms()) // 2
    return About(name, called.response, called.response.now_ms - between_ms)


async def _reach(
    address: str, status: grpc.StatusCode | None, security: ClientSecurity
) -> tuple[Reach, TlsSeen]:
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Reach.SILENT, NOTHING
    if status is not grpc.StatusCode.UNAVAILABLE:
        return Reach.OTHER, NOTHING
    found = await probe(address, _PROBE_S)
    if found is Probe.ACCEPTED:
        return Reach.OTHER, await asyncio.to_thread(_look_at_tls, address, security)
    return (Reach.REFUSES if found is Probe.REFUSED else Reach.SILENT), NOTHING


def _look_at_tls(address: str, security: ClientSecurity) -> TlsSeen:
    host, port = parse_endpoint(address).socket_address
    if security.tls is not None:
        return tls_trouble(host, port, security.tls.files, _TLS_S)
    if speaks_tls(host, port, _TLS_S):
        return TlsSeen(TlsTrouble.WANTS_TLS, "speaks TLS, and this command does not")
    return NOTHING


def _once_a_node(seen: list[NodeSeen]) -> tuple[NodeSeen, ...]:
    """Each node once, under the address by which the others know it, with its id where anybody
    tells it.
    """
    ids = {
        voter.endpoint: voter.replica_id
        for node in seen
        if node.description is not None
        for voter in node.description.voters
        if voter.endpoint
    }
    found: dict[object, NodeSeen] = {}
    for node in sorted(seen, key=lambda one: (one.endpoint not in ids, one.endpoint)):
        node_id = node.node_id if node.description is not None else ids.get(node.endpoint, -1)
        key: object = node_id if node_id >= 0 else node.endpoint
        cluster = node.description.cluster_id if node.description is not None else ""
        known = found.get(key)
        if known is not None and known.description is not None:
            if cluster in ("", known.description.cluster_id):
                continue
            key = node.endpoint
        found[key] = replace(node, node_id=node_id)
    return tuple(
        sorted(found.values(), key=lambda one: (one.node_id < 0, one.node_id, one.endpoint))
    )
