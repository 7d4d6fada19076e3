"""Asking each node of a cluster about itself, controllers and brokers, whoever leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from raftlog.cli.client_security import ClientSecurity
from raftlog.cli.quorum_queries import Called, ask_quorum, call
from raftlog.endpoint import endpoint_on
from raftlog.journal.event import NodeEvent, typed_details
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

if TYPE_CHECKING:
    from raftlog.incident.evidence import NodeTold

_SERVICE = "/raftlog.wire.node.v1.Node/"
_DESCRIBE_BROKERS = "/raftlog.wire.controller.v1.Controller/DescribeBrokers"
VERSION_TIMEOUT_S = 1.0
PAGES_MAX = 20
"""Of a thousand events: more than a node keeps."""


@dataclass(frozen=True, slots=True)
class NodeAt:
    """A node, and where it is reached. ``node_id`` -1: nobody has said yet.

    ``cluster_id``: of the others; a node of another cluster tells nothing of this one. Empty: any.
    """

    role: str
    node_id: int
    endpoint: str
    cluster_id: str = ""

    @property
    def name(self) -> str:
        """As people call it: ``broker-4``."""
        return f"{self.role}-{self.node_id}" if self.node_id >= 0 else self.endpoint


@dataclass(frozen=True, slots=True)
class NodeEvents:
    """What one node tells of itself. ``failure``: why it says nothing, or not all."""

    node: NodeAt
    events: list[NodeEvent] = field(default_factory=list)
    failure: str = ""

    def told(self) -> NodeTold:
        """As evidence of an incident."""
        from raftlog.incident.evidence import NodeTold

        node = self.node
        return NodeTold(node.name, node.role, node.node_id, tuple(self.events), self.failure)


async def find_nodes(
    controllers: Sequence[str],
    timeout_s: float,
    security: ClientSecurity,
    brokers: Sequence[str] = (),
) -> list[NodeAt]:
    """All voters that anybody names, and all brokers that the leader names.

    ``brokers``: addresses that are asked, too: without a leader nobody names them.
    """
    quorum = await ask_quorum(controllers, timeout_s, security)
    found: dict[str, NodeAt] = {}
    for one in quorum.descriptions:
        for voter in one.voters:
            if voter.endpoint:
                found[voter.endpoint] = NodeAt("controller", voter.replica_id, voter.endpoint)
    for answer in quorum.answers:
        node_id = -1 if answer.description is None else answer.description.node_id
        found.setdefault(answer.address, NodeAt("controller", node_id, answer.address))
    leader = quorum.leader
    if leader is not None:
        address = next(one.address for one in quorum.answers if one.description is leader)
        described = await call(
            address,
            _DESCRIBE_BROKERS,
            controller_pb2.DescribeBrokersRequest(),
            controller_pb2.DescribeBrokersResponse,
            timeout_s,
            security,
        )
        for broker in described.response.brokers if described.response else ():
            endpoint = endpoint_on(broker.endpoint, "") or broker.endpoint
            found[endpoint] = NodeAt("broker", broker.broker_id, endpoint)
    for address in brokers:
        found.setdefault(address, NodeAt("broker", -1, address))
    named = {(one.role, one.node_id) for one in found.values() if one.node_id >= 0}
    cluster_id = cluster_of(quorum.descriptions)
    return sorted(
        (
            replace(one, cluster_id=cluster_id)
            for one in found.values()
            if one.node_id >= 0 or (one.role, one.node_id) not in named
        ),
        key=lambda one: (one.role != "controller", one.node_id, one.endpoint),
    )


def cluster_of(descriptions: Sequence[quorum_pb2.DescribeQuorumResponse]) -> str:
    """The cluster of the leader, or of most of those who answer; empty: nobody can say."""
    leads = next((one.cluster_id for one in descriptions if one.role == "leader"), "")
    counts = Counter(one.cluster_id for one in descriptions).most_common(2)
    if leads or not counts:
        return leads
    return "" if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


async def ask_all(
    nodes: Sequence[NodeAt],
    method: str,
    request: Message,
    response_type: type[Message],
    timeout_s: float,
    security: ClientSecurity,
) -> list[Called]:
    """The same question of the Node service to each, all at once, in their order."""
    return list(
        await asyncio.gather(
            *(
                call(one.endpoint, _SERVICE + method, request, response_type, timeout_s, security)
                for one in nodes
            )
        )
    )


async def versions_of(
    addresses: Sequence[str], timeout_s: float, security: ClientSecurity
) -> dict[str, str]:
    """The build of each node that says it, by address; a build before this one does not."""
    nodes = [NodeAt("", -1, address) for address in addresses]
    request, response = pb.DescribeNodeRequest(), pb.DescribeNodeResponse
    found = await ask_all(
        nodes, "DescribeNode", request, response, min(timeout_s, VERSION_TIMEOUT_S), security
    )
    return {
        one.endpoint: called.response.version
        for one, called in zip(nodes, found, strict=True)
        if called.response is not None and called.response.version
    }


async def events_of_all(
    nodes: Sequence[NodeAt], since_ms: int, timeout_s: float, security: ClientSecurity
) -> list[NodeEvents]:
    """The journal of each from then on, in their order."""
    return list(
        await asyncio.gather(*(_events_of(one, since_ms, timeout_s, security) for one in nodes))
    )


async def _events_of(
    node: NodeAt, since_ms: int, timeout_s: float, security: ClientSecurity
) -> NodeEvents:
    events: list[NodeEvent] = []
    failure = ""
    for _ in range(PAGES_MAX):
        request = pb.DescribeNodeEventsRequest(
            cluster_id=node.cluster_id,
            since_ms=since_ms,
            after_seq=events[-1].seq if events else 0,
        )
        called = await call(
            node.endpoint,
            _SERVICE + "DescribeNodeEvents",
            request,
            pb.DescribeNodeEventsResponse,
            timeout_s,
            security,
        )
        found: pb.DescribeNodeEventsResponse | None = called.response
        if found is None:
            failure = called.failure
            break
        node = replace(node, role=found.role, node_id=found.node_id)
        events += [_event(found, one) for one in found.events]
        if not found.more:
            break
    return NodeEvents(node, events, failure)


def _event(of: pb.DescribeNodeEventsResponse, one: pb.NodeEvent) -> NodeEvent:
    return NodeEvent(
        one.seq,
        one.at_ms,
        of.node_id,
        of.role,
        one.kind,
        typed_details(one.kind, {each.name: each.value for each in one.details}),
        one.repeats,
        one.left_out,
    )
