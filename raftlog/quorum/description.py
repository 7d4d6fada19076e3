"""A picture of one node's quorum state, for operators and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftlog.quorum.leader import Leader
from raftlog.quorum.progress import ReplicaProgress
from raftlog.voter import Voter

if TYPE_CHECKING:
    from raftlog.quorum.transitions import Node


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
    """One node. Offsets of ends are exclusive, -1 is unknown or none; replicas are known to a leader alone, itself included.

    ``voters`` and ``observers`` are their progress; ``voter_set`` is the set in force here, since ``voters_offset`` (as in
    VotersAt; -1: the configured set).
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


def describe(node: Node, now: float) -> QuorumDescription:
    """See :meth:`raftlog.quorum.core.QuorumCore.describe`."""
    role, log = node.role, node.log
    voters: tuple[ReplicaDescription, ...] = ()
    observers: tuple[ReplicaDescription, ...] = ()
    if isinstance(role, Leader):
        me = ReplicaDescription(node.config.node_id, node.config.directory_id, log.flushed_end, 0, 0)
        others = [_replica(replica, now) for replica in role.progress.voters.values()]
        voters = tuple(sorted([me, *others], key=lambda replica: replica.node_id))
        observers = tuple(_replica(replica, now) for _, replica in sorted(role.progress.observers.items()))
    return QuorumDescription(
        role=role.name,
        epoch=node.epoch,
        leader_id=node.leader_id,
        voted_id=node.vote.voted_id,
        log_start_offset=log.start,
        log_end_offset=log.end,
        flushed_end_offset=log.flushed_end,
        high_watermark=node.high_watermark,
        epoch_start_offset=role.start_offset if isinstance(role, Leader) else -1,
        voters=voters,
        observers=observers,
        voter_set=node.config.voters,
    )


def _replica(replica: ReplicaProgress, now: float) -> ReplicaDescription:
    return ReplicaDescription(
        replica.node_id,
        replica.directory_id or "",
        replica.end_offset,
        _age_ms(replica.fetched_at, now),
        _age_ms(replica.caught_up_at, now),
    )


def _age_ms(then: float | None, now: float) -> int:
    return -1 if then is None else max(0, round((now - then) * 1000))
