"""What a cluster says of itself: its nodes at one time, and a period by its journals and log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import median_low
from typing import Any

import msgspec

from raftlog.metadata.changes import Changed
from raftlog.observability.journal import Kind, NodeEvent
from raftlog.transport.tls_look import NOTHING, TlsSeen, TlsTrouble
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class Reach(StrEnum):
    """What asking one node came to."""

    ANSWERS = "answers"
    REFUSES = "refuses connections"
    """No process listens there."""
    SILENT = "does not answer"
    """Nothing came in time: the process hangs, or the host or the network is gone."""
    UNRESOLVED = "does not resolve"
    """Name servers know no address of the host."""
    OTHER = "gives another answer"
    """Something answers that is not a node of a quorum, or that does not let us in."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One address that was asked. ``failure``: why there is no description."""

    endpoint: str
    reach: Reach
    description: pb.DescribeQuorumResponse | None = None
    failure: str = ""
    waited_ms: int = 0
    node_id: int = -1
    """As the others know it, or as it says itself; -1: nobody says."""
    about: About | None = None
    """What it says of its machine; None: nothing, or it was not asked."""
    tls: TlsSeen = NOTHING
    """What is in the way of a connection, as far as it is TLS."""

    @property
    def fails_for_tls(self) -> bool:
        """Whether TLS is in the way: a finding of its own says so."""
        return self.tls.trouble is not TlsTrouble.NONE


@dataclass(frozen=True, slots=True)
class About:
    """What a node, controller or broker, says of itself. ``ahead_ms``: of its clock, against the
    clock here; as exact as half of the time that the answer took.
    """

    name: str
    node: node_pb2.DescribeNodeResponse
    ahead_ms: int = 0

    @property
    def room(self) -> str:
        """``12 of 200 MiB are free``."""
        free, total = self.node.disk_free_bytes >> 20, self.node.disk_total_bytes >> 20
        return f"{free} of {total} MiB are free"


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was found at ``at_ms`` (milliseconds since 1970, by the cluster's clock).

    ``brokers``: as the active controller sees them; None: nobody could be asked, and
    ``brokers_failure`` says why.
    """

    nodes: tuple[NodeSeen, ...]
    brokers: controller_pb2.DescribeBrokersResponse | None = None
    brokers_failure: str = ""
    at_ms: int = 0
    broker_nodes: tuple[About, ...] = ()
    """What brokers say of themselves: some of them, if there are many."""

    @property
    def told(self) -> list[About]:
        """What nodes say of themselves: of one cluster."""
        best = self.best
        every = (*(node.about for node in self.nodes if node.about is not None), *self.broker_nodes)
        return [one for one in every if best is None or one.node.cluster_id == best.cluster_id]

    @property
    def ahead_ms(self) -> int | None:
        """How far the cluster's time is ahead of the clock here: the leader's, or the middle one
        of those that are told; None: no node tells its time.
        """
        # A node goes by its own clock only as far as the voters' agree with it.
        told = {
            one.name: one.ahead_ms + one.node.time_ms - one.node.now_ms
            for one in self.told
            if one.node.time_ms
        }
        leader = self.leader
        leads = told.get(f"node {leader.node_id}") if leader is not None else None
        return leads if leads is not None else median_low(told.values()) if told else None

    @property
    def answers(self) -> list[pb.DescribeQuorumResponse]:
        """Of the nodes that answered."""
        return [node.description for node in self.nodes if node.description is not None]

    @property
    def leader(self) -> pb.DescribeQuorumResponse | None:
        """The node that says it leads; of several the one with the highest epoch."""
        leaders = [one for one in self.answers if one.role == "leader"]
        return max(leaders, key=lambda one: one.leader_epoch, default=None)

    @property
    def heard_leader(self) -> tuple[int, list[int]]:
        """The leader that does not answer here, and the nodes that follow and reach it; -1: none.

        Of several the one with the highest epoch.
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
    def best(self) -> pb.DescribeQuorumResponse | None:
        """Who knows most of the voter set: the leader, or the node with the newest log."""
        return self.leader or max(
            self.answers,
            key=lambda one: (one.voters_offset, one.leader_epoch, one.log_end_offset),
            default=None,
        )

    def voters(self) -> Iterator[tuple[pb.ReplicaState, NodeSeen | None]]:
        """Each voter of the voter set that ``best`` has, with what asking it came to; None: it was
        not asked, or its address is another cluster's.
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
        """Addresses of voters at which a node of another cluster answers, with the voter's id."""
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
    def replaced(self) -> dict[int, pb.ReplicaState]:
        """Voters as whom a node runs with another data directory than the voter's: an observer."""
        return {
            voter.replica_id: voter
            for voter, node in self.voters()
            if node is not None
            and node.description is not None
            and node.description.role == "observer"
            and node.description.directory_id
            and voter.replica_directory_id not in ("", node.description.directory_id)
        }

    @property
    def low_on_space(self) -> list[int]:
        """The voters whose disks are below their reserve."""
        return sorted(
            {
                voter.replica_id
                for one in self.answers
                for voter in one.voters
                if voter.low_on_space and (one.role == "leader" or voter.replica_id == one.node_id)
            }
        )

    def unreachable_ms(self, node_id: int) -> int:
        """For how long other nodes have had no answer from a voter: the longest; 0: they have
        one.
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


@dataclass(frozen=True)
class NodeTold:
    """One node. ``failure``: why it told nothing, or not all; empty: it told all that it knows."""

    name: str
    role: str
    node_id: int
    events: tuple[NodeEvent, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class LogTold:
    """The part of the log. ``writes_ms``: when clients' writes were appended, ascending;
    ``failure``: why it could not be read; ``late``: what is missing at its beginning.
    """

    changes: tuple[Changed, ...] = ()
    writes_ms: tuple[int, ...] = ()
    failure: str = ""
    late: str = ""


@dataclass(frozen=True)
class Timeline:
    """All of it. Times are milliseconds since 1970: of events by the cluster's clock, as far as it
    is known how their node's differs, of changes by that of the leader of then.
    """

    from_ms: int
    to_ms: int
    nodes: tuple[NodeTold, ...] = ()
    log: LogTold = LogTold()

    @classmethod
    def until_now(
        cls, from_ms: int, now_ms: int, nodes: tuple[NodeTold, ...], log: LogTold | None = None
    ) -> Timeline:
        """All from then on: up to now, and beyond where a clock is ahead."""
        log = log or LogTold()
        newest = [event.at_ms for node in nodes for event in node.events]
        newest += [one.timestamp_ms for one in log.changes]
        return cls(from_ms, max([now_ms, *newest]), nodes, log)

    def events(self, *kinds: Kind) -> Iterator[NodeEvent]:
        """Of all nodes, in the order of time; without kinds: all."""
        return (one for one in self._events if not kinds or one.kind in kinds)

    def of_node(self, node_id: int, *kinds: Kind) -> list[NodeEvent]:
        """Of one node."""
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
        """Of one kind of entity, in the order of the log."""
        return [one for one in self.log.changes if one.kind == kind]


def decoded(value: str | None) -> dict[str, Any]:
    """A value of a change as an object; empty: there is none."""
    found = msgspec.json.decode(value) if value else {}
    return found if isinstance(found, dict) else {}
