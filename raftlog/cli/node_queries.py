"""Asking each node of a cluster about itself, controllers and brokers, whoever leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from raftlog.cli.doctor_evidence import gather
from raftlog.client.quorum_queries import Called, call, cluster_of
from raftlog.client.security import ClientSecurity
from raftlog.endpoint import endpoint_on
from raftlog.observability.journal import NodeEvent, typed_details
from raftlog.ops.evidence import NodeTold
from raftlog.ops.evidence import Survey as Seen
from raftlog.ops.node_findings import CLOCKS_MS
from raftlog.wire.node.v1 import node_pb2 as pb

_SERVICE = "/raftlog.wire.node.v1.Node/"
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


async def find_nodes(
    controllers: Sequence[str],
    timeout_s: float,
    security: ClientSecurity,
    brokers: Sequence[str] = (),
) -> list[NodeAt]:
    """All voters that anybody names, and all brokers that the leader names.

    ``brokers``: addresses that are asked, too: without a leader nobody names them.
    """
    seen = await gather(controllers, timeout_s, security)
    return nodes_of(seen, [NodeAt("broker", -1, one) for one in brokers])


def nodes_of(seen: Seen, brokers: Iterable[NodeAt] = ()) -> list[NodeAt]:
    """The nodes of a cluster that was looked at, each once: controllers first.

    ``brokers``: others that may be brokers.
    """
    found = {one.endpoint: NodeAt("controller", one.node_id, one.endpoint) for one in seen.nodes}
    for broker in seen.brokers.brokers if seen.brokers is not None else ():
        endpoint = endpoint_on(broker.endpoint, "") or broker.endpoint
        found[endpoint] = NodeAt("broker", broker.broker_id, endpoint)
    for one in brokers:
        found.setdefault(one.endpoint, one)
    named = {(one.role, one.node_id) for one in found.values() if one.node_id >= 0}
    cluster_id = cluster_of(seen.answers)
    return sorted(
        (
            replace(one, cluster_id=cluster_id)
            for one in found.values()
            if one.node_id >= 0 or (one.role, one.node_id) not in named
        ),
        key=lambda one: (one.role != "controller", one.node_id, one.endpoint),
    )


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


async def journals(
    seen: Seen,
    nodes: Sequence[NodeAt],
    max_age_ms: int,
    timeout_s: float,
    security: ClientSecurity,
) -> list[NodeTold]:
    """The journal of each node, as far back as that by the node's own clock.

    Times are set to the clock of the cluster that was looked at, where a node's clock differs now.
    """
    found = await asyncio.gather(
        *(_journal(one, max_age_ms, seen.ahead_ms or 0, timeout_s, security) for one in nodes)
    )
    # An address whose node has a name by now is one node, however it was called.
    by_name: dict[str, NodeTold] = {}
    for one in found:
        if one.name not in by_name or by_name[one.name].failure:
            by_name[one.name] = one
    return list(by_name.values())


async def _journal(
    node: NodeAt, max_age_ms: int, ahead_ms: int, timeout_s: float, security: ClientSecurity
) -> NodeTold:
    """``ahead_ms``: of the cluster's clock, against the clock here."""
    events: list[NodeEvent] = []
    failure = ""
    for _ in range(PAGES_MAX):
        request = pb.DescribeNodeEventsRequest(
            cluster_id=node.cluster_id,
            max_age_ms=max_age_ms,
            after_seq=events[-1].seq if events else 0,
        )
        begun_ms = _now_ms()
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
        differs_ms = found.time_ms - (begun_ms + _now_ms()) // 2 - ahead_ms
        shift_ms = differs_ms if abs(differs_ms) > CLOCKS_MS else 0
        events += [_event(found, one, shift_ms) for one in found.events]
        if not found.more:
            break
    return NodeTold(node.name, node.role, node.node_id, tuple(events), failure)


def _event(of: pb.DescribeNodeEventsResponse, one: pb.NodeEvent, shift_ms: int) -> NodeEvent:
    return NodeEvent(
        one.seq,
        one.at_ms - shift_ms,
        of.node_id,
        of.role,
        one.kind,
        typed_details(one.kind, {each.name: each.value for each in one.details}),
        one.repeats,
        one.left_out,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
