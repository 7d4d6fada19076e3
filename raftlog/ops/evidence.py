"""Evidence about a cluster: its nodes at one time, and a period, from its journals and log. Plain
data, for rules without I/O.

Fields of answers are named as in ``raftlog.wire``, which documents them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from statistics import median_low
from typing import Any

import msgspec

from raftlog.metadata.changes import Changed
from raftlog.node.observability.journal import Kind, NodeEvent
from raftlog.transport.probe import NOTHING, TlsSeen, TlsTrouble


class Reach(StrEnum):
    """The result of querying one address."""

    ANSWERS = "answers"
    REFUSES = "refuses connections"
    """No process listens there."""
    SILENT = "does not answer"
    """No answer arrived in time: the process hangs, or the host or the network is down."""
    UNRESOLVED = "does not resolve"
    """Name servers know no address for the host."""
    DAMAGED = "is repairing its log"
    """A controller that neither votes nor leads until its damaged log is repaired."""
    OTHER = "gives an unexpected answer"
    """A program that is not a node of a quorum answers, or the node refuses this client."""


class BrokerState(IntEnum):
    """A broker's state: ``BrokerLifecycleState`` of controller.proto."""

    INITIAL = 0
    INACTIVE = 1
    ACTIVE = 2
    STOPPING = 3


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot of one node."""

    end_offset: int = 0
    epoch: int = 0


class Feature(msgspec.Struct, frozen=True):
    """A feature's level, and the levels that a node's build supports."""

    name: str = ""
    finalized_level: int = 0
    min_supported_version: int = 0
    max_supported_version: int = 0


class Replica(msgspec.Struct, frozen=True):
    """A voter or observer, as the answering node sees it."""

    replica_id: int = 0
    replica_directory_id: str = ""
    endpoint: str = ""
    log_end_offset: int = 0
    last_fetch_age_ms: int = 0
    last_caught_up_age_ms: int = 0
    max_metadata_version: int = 0
    low_on_space: bool = False
    endpoints: str = ""
    unreachable_ms: int = 0
    unreachable_reason: str = ""
    connected_from: str = ""


class AutopilotReplica(msgspec.Struct, frozen=True):
    """A replica as autopilot sees it."""

    replica_id: int = 0
    replica_directory_id: str = ""
    is_voter: bool = False
    condition: str = ""
    for_ms: int = 0


class AutopilotAnswer(msgspec.Struct, frozen=True):
    """The replacement of dead voters, as the leader decides it. ``after_ms``: 0 if autopilot is
    off.
    """

    after_ms: int = 0
    seats: int = 0
    step: str = ""
    node_id: int = -1
    directory_id: str = ""
    reason: str = ""
    replicas: list[AutopilotReplica] = []

    @property
    def is_replacing(self) -> bool:
        """Whether a replacement has started and is not complete."""
        return self.seats not in (0, sum(one.is_voter for one in self.replicas))


class QuorumAnswer(msgspec.Struct, frozen=True):
    """A controller's response to ``DescribeQuorum``."""

    cluster_id: str = ""
    generation: int = 0
    node_id: int = 0
    directory_id: str = ""
    role: str = ""
    leader_id: int = 0
    leader_epoch: int = 0
    voted_id: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    durable_end_offset: int = 0
    high_watermark: int = 0
    voters: list[Replica] = []
    observers: list[Replica] = []
    voters_offset: int = 0
    snapshots: list[Snapshot] = []
    features: list[Feature] = []
    lowest_acknowledged_offset: int = 0
    lao_unknown_reason: str = ""
    image_offset: int = 0
    image_epoch: int = 0
    state_hash: bytes = b""
    log_hash: bytes = b""
    writes_refused: str = ""
    votes_needed: int = 0
    autopilot: AutopilotAnswer | None = None


class Partitions(msgspec.Struct, frozen=True):
    """Counts of partitions by state."""

    total: int = 0
    offline: int = 0
    recovering: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    reassigning: int = 0


class Broker(msgspec.Struct, frozen=True):
    """A registered broker, as the active controller sees it."""

    broker_id: int = 0
    state: int = BrokerState.INITIAL
    endpoint: str = ""
    rack: str = ""
    applied_offset: int = 0
    last_contact_age_ms: int = 0
    reason: str = ""
    cause: int = 0
    leader_count: int = 0
    replica_count: int = 0
    state_age_ms: int = 0
    state_age_is_at_least: bool = False

    @property
    def state_name(self) -> str:
        """Name such as ``active``, or the number of a state that this build does not support."""
        known = self.state in tuple(BrokerState)
        return BrokerState(self.state).name.lower() if known else str(self.state)


class BrokersAnswer(msgspec.Struct, frozen=True):
    """The active controller's response to ``DescribeBrokers``."""

    brokers: list[Broker] = []
    lowest_acknowledged_offset: int = 0
    lao_unknown_reason: str = ""
    high_watermark: int = 0
    held_back_by: list[int] = []
    held_back_ms: int = 0
    partitions: Partitions = Partitions()
    broker_session_timeout_ms: int = 0
    unregistered_replica_ids: list[int] = []
    throttled_brokers: list[str] = []


class NodeAnswer(msgspec.Struct, frozen=True):
    """A node's response to ``DescribeNode``."""

    cluster_id: str = ""
    node_id: int = 0
    role: str = ""
    version: str = ""
    now_ms: int = 0
    time_ms: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    certificate_ends_at_ms: int = 0
    low_on_space: bool = False
    log_level: str = ""
    log_level_until_ms: int = 0
    log_contradiction: str = ""


class NodeReport(msgspec.Struct, frozen=True):
    """The report of a controller or broker about its machine.

    ``ahead_ms``: lead of its clock over the local one, accurate to half the response time.
    """

    name: str
    node: NodeAnswer
    ahead_ms: int = 0

    @property
    def room(self) -> str:
        """Free space as text, such as ``12 of 200 MiB are free``."""
        free, total = self.node.disk_free_bytes >> 20, self.node.disk_total_bytes >> 20
        return f"{free} of {total} MiB are free"


class AskedNode(msgspec.Struct, frozen=True):
    """An address that was queried. ``failure``: why there is no description."""

    endpoint: str
    reach: Reach
    description: QuorumAnswer | None = None
    failure: str = ""
    waited_ms: int = 0
    node_id: int = -1
    """Id by which the other nodes know the node, or which it reports itself; -1 if unknown."""
    report: NodeReport | None = None
    """The node's report about its machine, or None if it gave none or was not queried."""
    tls: TlsSeen = NOTHING
    """The TLS obstacle to a connection, if any."""

    @property
    def fails_for_tls(self) -> bool:
        """Whether TLS prevents the connection, which a separate finding reports."""
        return self.tls.trouble is not TlsTrouble.NONE


class Survey(msgspec.Struct, frozen=True):
    """The answers from all nodes at ``at_ms`` (milliseconds since 1970, by the cluster's clock).

    ``brokers``: None if no active controller described them, and ``brokers_failure`` is the reason.
    """

    nodes: tuple[AskedNode, ...]
    brokers: BrokersAnswer | None = None
    brokers_failure: str = ""
    at_ms: int = 0
    broker_reports: tuple[NodeReport, ...] = ()
    """Reports from brokers; from only some of them if there are many."""

    @property
    def reports(self) -> list[NodeReport]:
        """Reports from the nodes of this cluster."""
        best = self.best
        every = (*(one.report for one in self.nodes if one.report), *self.broker_reports)
        return [one for one in every if best is None or one.node.cluster_id == best.cluster_id]

    @property
    def unreported(self) -> list[str]:
        """Names of serving nodes whose report is late or refused, or was omitted because there are
        too many brokers. Their disks, clocks, certificates and builds are unknown.
        """
        serving = [
            f"broker {one.broker_id}"
            for one in (self.brokers.brokers if self.brokers is not None else ())
            if one.state == BrokerState.ACTIVE
        ]
        reported = {one.name for one in self.broker_reports}
        silent = [one for one in self.nodes if one.description is not None and one.report is None]
        return [
            *(f"node {one.node_id}" for one in silent),
            *(name for name in serving if name not in reported),
        ]

    @property
    def ahead_ms(self) -> int | None:
        """Lead of the cluster's clock over the local one in ms: by the leader's time, or the median
        of the nodes' times; None if no node reports its time.
        """
        # A node uses its own clock only as far as the voters' clocks agree with it.
        told = {
            one.name: one.ahead_ms + one.node.time_ms - one.node.now_ms
            for one in self.reports
            if one.node.time_ms
        }
        leader = self.leader
        leads = told.get(f"node {leader.node_id}") if leader is not None else None
        return leads if leads is not None else median_low(told.values()) if told else None

    @property
    def answers(self) -> list[QuorumAnswer]:
        """The controllers' answers."""
        return [node.description for node in self.nodes if node.description is not None]

    @property
    def leader(self) -> QuorumAnswer | None:
        """The node that claims to lead; if several do, the one with the highest epoch."""
        leaders = [one for one in self.answers if one.role == "leader"]
        return max(leaders, key=lambda one: one.leader_epoch, default=None)

    @property
    def heard_leader(self) -> tuple[int, list[int]]:
        """Return (leader, its followers) for a leader that does not answer here but that other
        nodes follow and reach; the leader is -1 if none. Of several, the one with the highest
        epoch.
        """
        if self.leader is not None:
            return -1, []
        hears = [
            one
            for one in self.answers
            if one.role == "follower"
            and any(
                voter.replica_id == one.leader_id and not voter.unreachable_reason
                for voter in one.voters
            )
        ]
        epoch = max((one.leader_epoch for one in hears), default=-1)
        hears = [one for one in hears if one.leader_epoch == epoch]
        return (hears[0].leader_id, [one.node_id for one in hears]) if hears else (-1, [])

    @property
    def cluster_id(self) -> str:
        """Cluster id of the leader, or of most answering nodes, or "" if no cluster has most of
        them.
        """
        if self.leader is not None:
            return self.leader.cluster_id
        counts = Counter(one.cluster_id for one in self.answers).most_common(2)
        tied = not counts or (len(counts) > 1 and counts[0][1] == counts[1][1])
        return "" if tied else counts[0][0]

    @property
    def best(self) -> QuorumAnswer | None:
        """The answer with the newest voter set: the leader's, or that of the node with the newest
        log.
        """
        return self.leader or max(
            self.answers,
            key=lambda one: (one.voters_offset, one.leader_epoch, one.log_end_offset),
            default=None,
        )

    def voters(self) -> Iterator[tuple[Replica, AskedNode | None]]:
        """Yield each voter in ``best``'s voter set, with the answer from its address; None if it
        was not queried, or another cluster answers there.
        """
        best = self.best
        if best is None:
            return
        by_id = {
            node.node_id: node
            for node in self.nodes
            if node.node_id >= 0
            and (node.description is None or node.description.cluster_id == best.cluster_id)
        }
        for voter in best.voters:
            yield voter, by_id.get(voter.replica_id)

    @property
    def strays(self) -> dict[str, int]:
        """Return the addresses of voters at which a node of another cluster answers, with the
        voter's id.
        """
        best = self.best
        if best is None:
            return {}
        ids = {voter.endpoint: voter.replica_id for voter in best.voters}
        return {
            node.endpoint: ids[node.endpoint]
            for node in self.nodes
            if node.endpoint in ids
            and node.description is not None
            and node.description.cluster_id != best.cluster_id
        }

    @property
    def replaced(self) -> dict[int, Replica]:
        """Return the voters whose node runs with a different data directory."""
        return {
            voter.replica_id: voter
            for voter, node in self.voters()
            if node is not None
            and node.description is not None
            and node.description.directory_id
            and voter.replica_directory_id not in ("", node.description.directory_id)
        }

    @property
    def low_on_space(self) -> list[int]:
        """Return the voters whose disks are below their reserve."""
        return sorted(
            {
                voter.replica_id
                for one in self.answers
                for voter in one.voters
                if voter.low_on_space and (one.role == "leader" or voter.replica_id == one.node_id)
            }
        )

    def unreachable_ms(self, node_id: int) -> int:
        """Return the longest time in ms for which another node has had no answer from a voter; 0 if
        all get answers.
        """
        return max(
            (
                voter.unreachable_ms
                for one in self.answers
                for voter in one.voters
                if voter.replica_id == node_id and voter.unreachable_reason
            ),
            default=0,
        )


class NodeEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """The journal of one node.

    ``failure``: why some or all of it is missing, or "" if it is complete. ``endpoint``: empty if
    it was read from a directory.
    """

    name: str
    role: str
    node_id: int
    events: tuple[NodeEvent, ...] = ()
    failure: str = ""
    endpoint: str = ""


class LogPeriod(msgspec.Struct, frozen=True):
    """A period of the log.

    ``writes_ms``: append times of clients' writes, ascending. ``failure``: why the log could not be
    read. ``late``: description of the gap at its start.
    """

    changes: tuple[Changed, ...] = ()
    writes_ms: tuple[int, ...] = ()
    failure: str = ""
    late: str = ""


NO_LOG = LogPeriod()


@dataclass(frozen=True)
class Timeline:
    """A period.

    Times are milliseconds since 1970. Events use the cluster's clock, if the difference to their
    node's clock is known; changes use the clock of the leader at the time.
    """

    from_ms: int
    to_ms: int
    nodes: tuple[NodeEvents, ...] = ()
    log: LogPeriod = NO_LOG

    @classmethod
    def until_now(
        cls, from_ms: int, now_ms: int, nodes: tuple[NodeEvents, ...], log: LogPeriod = NO_LOG
    ) -> Timeline:
        """Return a period that ends now, or later if a clock is ahead."""
        newest = [event.at_ms for node in nodes for event in node.events]
        newest += [one.timestamp_ms for one in log.changes]
        return cls(from_ms, max([now_ms, *newest]), nodes, log)

    def events(self, *kinds: Kind) -> Iterator[NodeEvent]:
        """Yield the events of all nodes in order of time: of these kinds, or all events if none is
        given.
        """
        return (one for one in self._events if not kinds or one.kind in kinds)

    def of_node(self, node_id: int, *kinds: Kind) -> list[NodeEvent]:
        """Return one node's events."""
        return [one for one in self.events(*kinds) if one.node_id == node_id]

    @cached_property
    def _events(self) -> list[NodeEvent]:
        found = [
            event
            for node in self.nodes
            for event in node.events
            if self.from_ms <= event.at_ms <= self.to_ms
        ]
        return sorted(found, key=lambda one: (one.at_ms, one.node_id, one.seq))

    def changes(self, kind: str) -> list[Changed]:
        """Return the changes to one kind of entity, in the order of the log."""
        return [one for one in self.log.changes if one.kind == kind]


def decoded(value: str | None) -> dict[str, Any]:
    """Return a change's value as an object, or an empty one if there is no value."""
    found = msgspec.json.decode(value) if value else {}
    return found if isinstance(found, dict) else {}
