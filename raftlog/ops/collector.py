"""The collector of evidence from a cluster's nodes: one connection per node, concurrently, within a
time limit.

No failure of a node or the network is raised: every missing answer has a reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import Message

from raftlog.client.quorum_queries import DESCRIBE_QUORUM, Call, Called, call_all, once_a_node
from raftlog.client.security import ClientSecurity
from raftlog.endpoint import endpoint_on, parse_endpoint
from raftlog.errors import ErrorCode
from raftlog.node.observability.journal import NodeEvent, typed_details
from raftlog.node.recovery.mending import DAMAGED_LOG
from raftlog.ops.evidence import (
    AskedNode,
    BrokersAnswer,
    BrokerState,
    NodeAnswer,
    NodeEvents,
    NodeReport,
    QuorumAnswer,
    Reach,
    Survey,
)
from raftlog.ops.node_findings import CLOCKS_MS
from raftlog.transport.api import Probe
from raftlog.transport.probe import (
    NOTHING,
    TlsSeen,
    TlsTrouble,
    host_failure,
    probe,
    speaks_tls,
    tls_trouble,
)
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2

import grpc  # isort: skip

T = TypeVar("T")
LOOK_S = 1.0
"""Default duration of a whole survey, in seconds."""
GRACE = 0.1
"""Share of the time for the other nodes once a leader has answered, as a hanging node must not
delay the survey that detects it.
"""
PAUSE = 0.5
"""Pause before a second look, as a share of the time; an election takes less."""
LEADERS_SHARE = 0.4
"""Share of the time for an answering leader to describe the brokers."""
MAX_ADDRESSES, MAX_BROKERS = 100, 50
MAX_AT_ONCE = 100
"""Maximum number of open connections."""
PAGES_MAX = 20
"""Maximum number of pages of a journal, a thousand events each: more than a node keeps."""
_PROBE_S, _TLS_S = 0.05, 0.1


def _of_node(method: str, request: Message, response: type[Message]) -> Call:
    return Call(f"/raftlog.wire.node.v1.Node/{method}", request, response)


_DESCRIBE_NODE = _of_node(
    "DescribeNode", node_pb2.DescribeNodeRequest(), node_pb2.DescribeNodeResponse
)
_DESCRIBE_BROKERS = Call(
    "/raftlog.wire.controller.v1.Controller/DescribeBrokers",
    controller_pb2.DescribeBrokersRequest(),
    controller_pb2.DescribeBrokersResponse,
)


class NodeAt(msgspec.Struct, frozen=True):
    """A node and its address.

    ``node_id``: -1 if unknown. ``cluster_id``: answers from other clusters are ignored; empty for
    any cluster.
    """

    role: str
    node_id: int
    endpoint: str
    cluster_id: str = ""

    @property
    def name(self) -> str:
        """Name such as ``broker-4``, or the address of a node whose id is unknown."""
        return f"{self.role}-{self.node_id}" if self.node_id >= 0 else self.endpoint


class Diagnosis(NamedTuple):
    """A node's report about its process.

    ``described`` and ``diagnosed``: fields by name; empty if it has not answered, and ``failure``
    is the reason.
    """

    node: NodeAt
    described: dict[str, Any]
    diagnosed: dict[str, Any]
    failure: str


class LogLevelAnswer(NamedTuple):
    """The log level of one node. ``level``: empty if the node has not answered, and ``failure`` is
    the reason.
    """

    node: NodeAt
    level: str = ""
    until_ms: int = 0
    failure: str = ""


class Collector:
    """A collector that uses one client's credentials."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def survey(
        self, addresses: Sequence[str], timeout_s: float = LOOK_S, *, looks: int = 2
    ) -> Survey:
        """Query these addresses and the voters that they name, and the leader for the brokers.

        Takes about a tenth of ``timeout_s`` if a leader answers, all of it if no node answers, and
        two and a half times as long if controllers answer but none leads: a second look
        distinguishes an outage from an election (``looks=1`` omits it). Raises ConfigError for
        unusable TLS files.
        """
        found = await _Look(self, addresses, timeout_s).survey()
        if looks > 1 and found.answers and found.leader is None:
            await asyncio.sleep(PAUSE * timeout_s)
            found = await _Look(self, addresses, timeout_s).survey()
        return found

    async def journals(
        self, survey: Survey, nodes: Iterable[NodeAt], max_age_ms: int, timeout_s: float
    ) -> list[NodeEvents]:
        """Read the journal of each node, up to ``max_age_ms`` back by the node's own clock. Times
        are converted to the surveyed cluster's clock if the node's clock differs from it now.
        """
        ahead_ms = survey.ahead_ms or 0
        found = await asyncio.gather(
            *(self._journal(one, max_age_ms, ahead_ms, timeout_s) for one in nodes)
        )
        # A node whose id was unknown is the same as the node whose name it reports.
        by_name: dict[str, NodeEvents] = {}
        for one in found:
            if one.name not in by_name or by_name[one.name].failure:
                by_name[one.name] = one
        return list(by_name.values())

    async def diagnoses(
        self, nodes: Iterable[NodeAt], timeout_s: float, *, log_lines: int, disk: bool
    ) -> list[Diagnosis]:
        """Read each node's configuration, metrics and log and, with ``disk``, measure its disk."""
        request = node_pb2.DiagnoseNodeRequest(log_lines=log_lines, probe_disk=disk)
        diagnose = _of_node("DiagnoseNode", request, node_pb2.DiagnoseNodeResponse)

        async def ask(node: NodeAt) -> Diagnosis:
            found = await self.call(node.endpoint, [_DESCRIBE_NODE, diagnose], timeout_s)
            described, diagnosed = (
                {} if one.response is None else plain(one.response) for one in found
            )
            if described and described["node_id"] >= 0:
                node = NodeAt(described["role"], described["node_id"], node.endpoint)
            return Diagnosis(node, described, diagnosed, found[0].failure or found[1].failure)

        return list(await asyncio.gather(*map(ask, nodes)))

    async def log_levels(
        self, nodes: Iterable[NodeAt], timeout_s: float, level: str | None, for_ms: int = 0
    ) -> list[LogLevelAnswer]:
        """Set the log level of each node for ``for_ms`` milliseconds, and return it.

        ``level``: empty for the configured level; None to leave it unchanged.
        """
        call = _DESCRIBE_NODE
        if level is not None:
            request = node_pb2.AlterLogLevelRequest(level=level, for_ms=for_ms)
            call = _of_node("AlterLogLevel", request, node_pb2.AlterLogLevelResponse)

        async def ask(node: NodeAt) -> LogLevelAnswer:
            (found,) = await self.call(node.endpoint, [call], timeout_s)
            one = found.response
            if one is None:
                return LogLevelAnswer(node, failure=found.failure)
            if level is not None:
                return LogLevelAnswer(node, one.level, one.until_ms)
            return LogLevelAnswer(node, one.log_level, one.log_level_until_ms)

        return list(await asyncio.gather(*map(ask, nodes)))

    async def versions(self, addresses: Iterable[str], timeout_s: float) -> dict[str, str]:
        """Return the builds of the nodes that report theirs, by address."""
        timeout_s, there = min(timeout_s, LOOK_S), list(dict.fromkeys(addresses))
        found = await asyncio.gather(*(self.report(one, one, timeout_s) for one in there))
        return {one.name: one.node.version for one in found if one and one.node.version}

    async def config_of(self, address: str, timeout_s: float) -> dict[str, str] | None:
        """Return a node's configuration by key, as JSON, or None if it does not answer."""
        (found,) = await self.call(address, [_DESCRIBE_NODE], timeout_s)
        return found.response and {one.name: one.value for one in found.response.config}

    async def call(self, address: str, calls: Sequence[Call], timeout_s: float) -> list[Called]:
        """Make unary calls concurrently, over one separate connection."""
        async with self._places:
            return await call_all(address, calls, timeout_s, self._security)

    async def look_at(
        self, address: str, timeout_s: float, resolved: Callable[[], None]
    ) -> AskedNode:
        """Query one address as a controller. ``resolved`` is called once its host name is
        resolved.
        """
        unknown = await host_failure(address, timeout_s)
        resolved()
        if unknown:
            return AskedNode(address, Reach.UNRESOLVED, None, unknown)
        begun_ms = _now_ms()
        quorum, node = await self.call(address, [DESCRIBE_QUORUM, _DESCRIBE_NODE], timeout_s)
        if quorum.response is not None:
            one = _struct(quorum.response, QuorumAnswer)
            report = _report(f"node {one.node_id}", node, begun_ms)
            return AskedNode(address, Reach.ANSWERS, one, node_id=one.node_id, report=report)
        if quorum.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            lacks = quorum.failure.partition(f"{DAMAGED_LOG}; ")[2]
            return AskedNode(address, Reach.DAMAGED, None, lacks)
        reach, tls = await self._reach(address, quorum.status)
        return AskedNode(address, reach, None, quorum.failure, round(timeout_s * 1000), tls=tls)

    async def report(self, name: str, address: str, timeout_s: float) -> NodeReport | None:
        """Return a node's report about itself, or None if it does not answer or refuses this
        client.
        """
        begun_ms = _now_ms()
        (found,) = await self.call(address, [_DESCRIBE_NODE], timeout_s)
        return _report(name, found, begun_ms)

    async def brokers(self, address: str, timeout_s: float) -> Called:
        """Query the active controller for the brokers."""
        (found,) = await self.call(address, [_DESCRIBE_BROKERS], timeout_s)
        if found.response is None:
            return found
        return Called(_struct(found.response, BrokersAnswer))

    async def _reach(self, address: str, status: grpc.StatusCode | None) -> tuple[Reach, TlsSeen]:
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Reach.SILENT, NOTHING
        if status is not grpc.StatusCode.UNAVAILABLE:
            return Reach.OTHER, NOTHING
        found = await probe(address, _PROBE_S)
        if found is Probe.ACCEPTED:
            return Reach.OTHER, await asyncio.to_thread(self._look_at_tls, address)
        return (Reach.REFUSES if found is Probe.REFUSED else Reach.SILENT), NOTHING

    def _look_at_tls(self, address: str) -> TlsSeen:
        host, port = parse_endpoint(address).socket_address
        if self._security.tls is not None:
            return tls_trouble(host, port, self._security.tls.files, _TLS_S)
        if speaks_tls(host, port, _TLS_S):
            return TlsSeen(TlsTrouble.WANTS_TLS, "requires TLS, and this command does not use it")
        return NOTHING

    async def _journal(
        self, node: NodeAt, max_age_ms: int, ahead_ms: int, timeout_s: float
    ) -> NodeEvents:
        """Read one node's journal. ``ahead_ms``: lead of the cluster's clock over the local one."""
        events: list[NodeEvent] = []
        failure = ""
        for _ in range(PAGES_MAX):
            request = node_pb2.DescribeNodeEventsRequest(
                cluster_id=node.cluster_id,
                max_age_ms=max_age_ms,
                after_seq=events[-1].seq if events else 0,
            )
            call = _of_node("DescribeNodeEvents", request, node_pb2.DescribeNodeEventsResponse)
            begun_ms = _now_ms()
            (called,) = await self.call(node.endpoint, [call], timeout_s)
            found = called.response
            if found is None:
                failure = called.failure
                break
            node = msgspec.structs.replace(node, role=found.role, node_id=found.node_id)
            differs_ms = found.time_ms - (begun_ms + _now_ms()) // 2 - ahead_ms
            shift_ms = differs_ms if abs(differs_ms) > CLOCKS_MS else 0
            events += [_event(found, one, shift_ms) for one in found.events]
            if not found.more:
                break
        return NodeEvents(node.name, node.role, node.node_id, tuple(events), failure, node.endpoint)


class _Look:
    """One survey of a cluster."""

    def __init__(self, collector: Collector, addresses: Sequence[str], timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._timeout_s, self._collector = timeout_s, collector
        self._until = self._begun + timeout_s
        self._asked: dict[str, asyncio.Task[AskedNode]] = {}
        self._unresolved: set[str] = set()
        """Addresses whose host names are being resolved."""
        self._brokers: dict[tuple[str, int], asyncio.Task[Called]] = {}
        """Brokers' answers by cluster and leader: addresses in two clusters lead to two leaders."""
        for address in addresses:
            self._ask(address)

    async def survey(self) -> Survey:
        """See ``Collector.survey``."""
        try:
            return await self._survey()
        finally:
            for task in (*self._asked.values(), *self._brokers.values()):
                await _end(task)

    async def _survey(self) -> Survey:
        seen: dict[str, AskedNode] = {}
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
                await _end(task)
                failure = f"no answer within {waited_ms} ms"
                reach = Reach.UNRESOLVED if address in self._unresolved else Reach.SILENT
                seen[address] = AskedNode(address, reach, None, failure, waited_ms)
        nodes = tuple(
            msgspec.structs.replace(node, node_id=node_id)
            for node_id, node in once_a_node(seen.values())
        )
        brokers = await self._brokers_of(Survey(nodes).leader)
        reports = await self._reports_of(brokers.response)
        found = Survey(nodes, brokers.response, brokers.failure, _now_ms(), reports)
        return msgspec.structs.replace(found, at_ms=found.at_ms + (found.ahead_ms or 0))

    def _ask(self, address: str) -> None:
        if address and address not in self._asked and len(self._asked) < MAX_ADDRESSES:
            self._unresolved.add(address)
            resolved = partial(self._unresolved.discard, address)
            self._asked[address] = asyncio.create_task(
                self._collector.look_at(address, self._timeout_s, resolved)
            )

    def _learn(self, node: AskedNode) -> None:
        """Query the voters that a node names, and a leader for the brokers. Once a leader has
        answered, the wait for silent nodes is shortened.
        """
        one = node.description
        if one is None:
            return
        for voter in one.voters:
            self._ask(voter.endpoint)
        if one.role == "leader":
            self._until = min(self._until, self._loop.time() + GRACE * self._timeout_s)
            if (key := (one.cluster_id, one.node_id)) not in self._brokers:
                self._brokers[key] = asyncio.create_task(
                    self._collector.brokers(node.endpoint, self._timeout_s)
                )

    async def _brokers_of(self, leader: QuorumAnswer | None) -> Called:
        """Return this leader's answer, and cancel the calls to others."""
        asked = None
        if leader is not None:
            asked = self._brokers.pop((leader.cluster_id, leader.node_id), None)
        for other in self._brokers.values():
            await _end(other)
        if asked is None:
            return Called(None)
        # The leader has just answered, so it does not hang, and its answer matters most.
        patience_s = max(self._until - self._loop.time(), LEADERS_SHARE * self._timeout_s)
        (called,) = await _within(patience_s, [asked])
        return called or Called(None, f"no answer within {round(patience_s * 1000)} ms")

    async def _reports_of(self, found: BrokersAnswer | None) -> tuple[NodeReport, ...]:
        """Return the reports of serving brokers, without extending the survey."""
        serving = [
            one
            for one in (found.brokers if found is not None else ())
            if one.state == BrokerState.ACTIVE
        ]
        asked = [
            asyncio.create_task(
                self._collector.report(
                    f"broker {one.broker_id}",
                    endpoint_on(one.endpoint, "") or one.endpoint,
                    self._timeout_s,
                )
            )
            for one in serving[:MAX_BROKERS]
        ]
        left_s = max(self._until - self._loop.time(), GRACE * self._timeout_s / 2)
        return tuple(one for one in await _within(left_s, asked) if one is not None)


def nodes_of(survey: Survey, brokers: Iterable[str] = ()) -> list[NodeAt]:
    """Return the nodes of a surveyed cluster, each once, controllers first.

    ``brokers``: further addresses of brokers, which no node names while there is no leader.
    """
    found = {one.endpoint: NodeAt("controller", one.node_id, one.endpoint) for one in survey.nodes}
    for broker in survey.brokers.brokers if survey.brokers is not None else ():
        endpoint = endpoint_on(broker.endpoint, "") or broker.endpoint
        found[endpoint] = NodeAt("broker", broker.broker_id, endpoint)
    for address in brokers:
        found.setdefault(address, NodeAt("broker", -1, address))
    named = {(one.role, one.node_id) for one in found.values() if one.node_id >= 0}
    cluster_id = survey.cluster_id
    return sorted(
        (
            msgspec.structs.replace(one, cluster_id=cluster_id)
            for one in found.values()
            if one.node_id >= 0 or (one.role, one.node_id) not in named
        ),
        key=lambda one: (one.role != "controller", one.node_id, one.endpoint),
    )


def plain(message: Message) -> dict[str, Any]:
    """Return a message as plain containers, with all its fields."""
    return {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    return value if isinstance(value, str | bytes | int) else [_plain(one) for one in value]


def _struct(message: Message, type_: type[T]) -> T:
    return msgspec.convert(plain(message), type_)


def _report(name: str, called: Called, begun_ms: int) -> NodeReport | None:
    if called.response is None:
        return None
    node = _struct(called.response, NodeAnswer)
    return NodeReport(name, node, node.now_ms - (begun_ms + _now_ms()) // 2)


def _event(of: Any, one: Any, shift_ms: int) -> NodeEvent:
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


async def _within(seconds: float, asked: Sequence[asyncio.Task[T]]) -> list[T | None]:
    """Return the results of tasks; None for those that do not finish in time, which are
    cancelled.
    """
    if not asked:
        return []
    done, late = await asyncio.wait(asked, timeout=seconds)
    for task in late:
        await _end(task)
    return [task.result() if task in done else None for task in asked]


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait until it has finished, as no connection may outlive the event
    loop.
    """
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
