"""Asks the controllers what they know, all at once, and does not wait for those that hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from raftlog.cli.client_security import ClientSecurity
from raftlog.cli.quorum_queries import Answer, Called, ask_node, call
from raftlog.doctor.evidence import Evidence, NodeSeen, Reach
from raftlog.transport.api import Probe
from raftlog.transport.probe import probe
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

import grpc  # isort: skip

GRACE = 0.15
"""Once somebody has answered, the others have this share of the whole time: a node that hangs must
not make the one who looks for it wait."""
MAX_ADDRESSES = 100
_PROBE_S = 0.05
_DESCRIBE_BROKERS = "/raftlog.wire.controller.v1.Controller/DescribeBrokers"


async def gather(addresses: Sequence[str], timeout_s: float, security: ClientSecurity) -> Evidence:
    """Ask these addresses and the voters that they name, and the leader for the brokers.

    Never raises for what nodes or the network do. Takes ``timeout_s`` if nobody answers, else
    about a sixth of it.
    """
    return await _Look(addresses, timeout_s, security).evidence()


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
        self._brokers: dict[tuple[str, int], asyncio.Task[Called]] = {}
        """By the cluster and the leader that is asked: addresses of two clusters have two."""
        for address in addresses:
            self._ask(address)

    async def evidence(self) -> Evidence:
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
                seen[address] = NodeSeen(address, Reach.SILENT, None, failure, waited_ms)
        nodes = _once_a_node(list(seen.values()))
        brokers = await self._brokers_seen(Evidence(nodes).leader)
        at_ms = time.time_ns() // 1_000_000
        return Evidence(nodes, brokers.response, brokers.failure, at_ms)

    def _ask(self, address: str) -> None:
        if address and address not in self._asked and len(self._asked) < MAX_ADDRESSES:
            self._asked[address] = asyncio.create_task(
                _look_at(address, self._timeout_s, self._security)
            )

    def _learn(self, node: NodeSeen) -> None:
        """Who answers names the voters, and ends the patience with those who do not."""
        if node.description is None:
            return
        self._until = min(self._until, self._loop.time() + GRACE * self._timeout_s)
        for voter in node.description.voters:
            self._ask(voter.endpoint)
        leads = node.description.role == "leader"
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
        patience_s = max(self._until - self._loop.time(), GRACE * self._timeout_s)
        done, _ = await asyncio.wait([asked], timeout=patience_s)
        if done:
            return asked.result()
        await _ended(asked)
        return Called(None, f"nothing came within {round(patience_s * 1000)} ms")


def _key(one: quorum_pb2.DescribeQuorumResponse) -> tuple[str, int]:
    return one.cluster_id, one.node_id


async def _ended(task: asyncio.Task[Any]) -> None:
    """End it, its connection too: nothing of it may be left when the event loop is closed."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _look_at(address: str, timeout_s: float, security: ClientSecurity) -> NodeSeen:
    answer = await ask_node(address, timeout_s, security)
    one = answer.description
    if one is not None:
        return NodeSeen(address, Reach.ANSWERS, one, node_id=one.node_id)
    return NodeSeen(
        address, await _reach(answer), None, answer.failure, waited_ms=round(timeout_s * 1000)
    )


async def _reach(answer: Answer) -> Reach:
    if answer.status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Reach.SILENT
    if answer.status is not grpc.StatusCode.UNAVAILABLE:
        return Reach.OTHER
    found = await probe(answer.address, _PROBE_S)
    return {
        Probe.REFUSED: Reach.REFUSES,
        Probe.SILENT: Reach.SILENT,
        Probe.ACCEPTED: Reach.OTHER,
    }[found]


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
        found[key] = NodeSeen(
            node.endpoint, node.reach, node.description, node.failure, node.waited_ms, node_id
        )
    return tuple(
        sorted(found.values(), key=lambda one: (one.node_id < 0, one.node_id, one.endpoint))
    )
