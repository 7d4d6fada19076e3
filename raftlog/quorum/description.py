"""A picture of one node's quorum state, for operators and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftlog.quorum.leader import Leader
from raftlog.quorum.progress import ReplicaProgress
from raftlog.voter import Voter

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica as the leader knows it. -1: unknown, or never. ``directory_id`` empty: not known.

    ``max_metadata_version`` 0: unknown, or a program that does not say.
    """

    node_id: int
    directory_id: str
    log_end_offset: int
    last_fetch_age_ms: int
    last_caught_up_age_ms: int
    max_metadata_version: int = 0
    low_on_space: bool = False


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """One node.

    Offsets of ends are exclusive, -1 is unknown or none; replicas are known to a leader alone,
    itself included.

    ``voters`` and ``observers`` are their progress; ``voter_set`` is the set in force here, since
    ``voters_offset`` (as in VotersAt; -1: the configured set).

    ``hears_leader``: the leader of this epoch has answered a Fetch lately, so this node would deny
    a pre-vote; false on the leader itself. ``parked_fetches``: those that wait for news on the
    leader. ``votes_needed``: those that elect this node.
    """

    role: str
    epoch: int
    leader_id: int
    voted_id: int
    log_start_offset: int
    log_end_offset: int
    flushed_end_offset: int
    high_watermark: int
    epoch_start_offset: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]
    voter_set: tuple[Voter, ...] = ()
    voters_offset: int = -1
    hears_leader: bool = False
    parked_fetches: int = 0
    votes_needed: int = 0


def describe(node: Node, now: float) -> QuorumDescription:
    """See :meth:`raftlog.quorum.core.QuorumCore.describe`."""
    role, log = node.role, node.log
    voters: tuple[ReplicaDescription, ...] = ()
    observers: tuple[ReplicaDescription, ...] = ()
    parked_fetches = 0
    if isinstance(role, Leader):
        progress = role.progress
        voters = tuple(_replica(replica, now) for replica in progress.voters.values())
        observers = tuple(
            _replica(replica, now) for _, replica in sorted(progress.observers.items())
        )
        if progress.counts_leader:
            voters = tuple(sorted([_myself(node), *voters], key=lambda replica: replica.node_id))
        else:
            observers = (_myself(node), *observers)
        parked_fetches = role.parked_fetches
    return QuorumDescription(
        role=role.name,
        epoch=node.epoch,
        leader_id=node.leader_id,
        voted_id=node.vote.voted_id,
        log_start_offset=log.start,
        log_end_offset=log.end,
        flushed_end_offset=log.flushed_end,
        high_watermark=node.high_watermark,
        epoch_start_offset=role.start_offset,
        voters=voters,
        observers=observers,
        voter_set=node.voters.all,
        voters_offset=node.history.offset,
        hears_leader=role.hears_leader,
        parked_fetches=parked_fetches,
        votes_needed=node.votes_needed,
    )


def _myself(node: Node) -> ReplicaDescription:
    config = node.config
    return ReplicaDescription(
        config.node_id,
        config.directory_id,
        node.log.flushed_end,
        0,
        0,
        config.max_metadata_version,
        node.low_on_space,
    )


def _replica(replica: ReplicaProgress, now: float) -> ReplicaDescription:
    return ReplicaDescription(
        replica.node_id,
        replica.directory_id or "",
        replica.end_offset,
        _age_ms(replica.fetched_at, now),
        _age_ms(replica.caught_up_at, now),
        replica.max_metadata_version,
        replica.low_on_space,
    )


def _age_ms(then: float | None, now: float) -> int:
    return -1 if then is None else max(0, round((now - then) * 1000))
