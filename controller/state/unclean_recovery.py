"""Unclean recovery (KIP-966) of partitions without an ISR and without eligible leader replicas: the
replica that has lost least is elected.

In their heartbeats, brokers report the log ends of their replicas of leaderless partitions. The
reports are soft state of one controller epoch. The replica with the longest log of the newest
leader epoch is elected. The topic's ``unclean.recovery.strategy`` determines how long the
controller waits for other reports:

* *balanced*: until every registered replica has reported, or the last known leader has reported a
  nonempty log, which then contains every committed record. No election while a replica is eligible,
  or while only replicas that are being added have reported.
* *aggressive*: as balanced, but for at most ``unclean.recovery.timeout.ms``, even if an eligible
  replica is offline.
* *none*: an administrator elects (``raftlog partitions elect --unclean``).

An empty log proves nothing. (If the last member of the ISR returned from a crash with an empty disk
and were elected, the other replicas would truncate every acknowledged record.) A report counts only
in the broker epoch and leader epoch in which it was made: a broker that restarts reports again.

Why: docs/decisions/037-the-replica-that-has-lost-least.md
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from controller.decision import Write
from controller.rules.partition_change import Brokers, assignment_of, elect_recovered
from controller.settings import ControllerSettings
from raftlog.metadata.config_keys import UNCLEAN_RECOVERY, topic_value
from raftlog.metadata.entities import NO_LEADER, Broker, Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.records import record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

AGGRESSIVE, BALANCED, REQUESTED = "aggressive", "balanced", "requested"
CHECK_EVERY_S = 0.5
"""Interval in seconds at which waiting partitions are examined without a new report."""
MAX_LOOKS = 1_000
"""Maximum number of partitions examined in one step, and per interval without a new report; this
takes 20 ms.
"""


class LogEnd(NamedTuple):
    """The reported end of a replica's log. The greater one has lost less."""

    last_epoch: int
    """Leader epoch of the last record, or -1 if the log is empty."""
    end_offset: int
    broker_epoch: int


class Verdict(NamedTuple):
    """Conclusions from the reports about a leaderless partition."""

    leader: int
    """Replica to elect, or NO_LEADER if the election must wait."""
    ranked: tuple[int, ...]
    """Replicas that have reported, the one that has lost least first."""
    silent: tuple[int, ...]
    """Registered replicas that have not reported."""


def judge(
    brokers: Brokers,
    partition: Partition,
    ends: dict[int, LogEnd],
    registered: Collection[int],
    *,
    strategy: str,
    in_time: bool,
) -> Verdict:
    """Return the verdict on a leaderless partition according to its replicas' reports.

    ``in_time``: ``unclean.recovery.timeout.ms`` has not passed since the first report.
    """
    last = partition.last_known_elr
    order = {replica: place for place, replica in enumerate(partition.replicas)}

    def rank(id_: int) -> tuple[int, int, bool, int]:
        return -ends[id_].last_epoch, -ends[id_].end_offset, id_ not in last, order[id_]

    ranked = tuple(sorted(ends, key=rank))
    # A replica that is being added was never in the ISR: its report alone proves nothing.
    original = assignment_of(partition).original
    silent = tuple(id_ for id_ in original if id_ in registered and id_ not in ends)
    complete = not silent and any(id_ in ends for id_ in original)
    complete = complete or any(id_ in ends and ends[id_].last_epoch >= 0 for id_ in last)
    leader = NO_LEADER
    if ranked and complete and not partition.elr and brokers.active(ranked[0]):
        leader = ranked[0]
    elif strategy != BALANCED and not in_time:
        leader = next(filter(brokers.active, ranked), NO_LEADER)
    return Verdict(leader, ranked, silent)


def describe_loss(partition: Partition, ends: dict[int, LogEnd], verdict: Verdict) -> str:
    """Describe what the election of this leader may lose; "" if nothing."""
    said = []
    best = ends[verdict.leader]
    last = partition.last_known_elr[0] if partition.last_known_elr else NO_LEADER
    if partition.elr:
        said.append(f"eligible leader replicas {list(partition.elr)} were not waited for")
    elif last == NO_LEADER:
        said.append("the disk of the last leader is lost")
    elif last not in ends:
        said.append(f"broker {last}, the last leader, did not report")
    elif ends[last].last_epoch < 0 and (verdict.silent or best.last_epoch >= 0):
        said.append(f"the log of broker {last}, the last leader, is empty")
    longer = [id_ for id_ in verdict.ranked if ends[id_][:2] > best[:2]]
    if longer:
        said.append(f"brokers {longer} have lost less, but are not live")
    if said and verdict.silent:
        said.append(f"brokers {list(verdict.silent)} did not report")
    return "; ".join(said)


class _Survey:
    """Reports about one partition."""

    __slots__ = ("began_at", "ends", "leader_epoch")

    def __init__(self, leader_epoch: int, now: float) -> None:
        self.leader_epoch = leader_epoch
        self.began_at = now
        self.ends: dict[int, LogEnd] = {}


class UncleanRecovery:
    """The reports received in one controller epoch, and the elections that they allow."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._timeout_s = settings.unclean_recovery_timeout_ms / 1000
        self._surveys: dict[PartitionKey, _Survey] = {}
        self._to_examine: dict[PartitionKey, None] = {}
        self._next_round = math.inf

    def report(
        self,
        view: ImageView,
        broker: Broker,
        reports: Iterable[rpc.ReplicaLogReport],
        now: float,
    ) -> None:
        """Record a broker's reports on leaderless partitions.

        Reports on another state of a partition than the current one are ignored; the broker repeats
        them.
        """
        for one in reports:
            key = one.topic_id, one.partition_index
            partition = view.partitions.get(key)
            if (
                partition is None
                or partition.leader != NO_LEADER
                or partition.leader_epoch != one.leader_epoch
                or partition.isr
                or broker.id not in partition.replicas
            ):
                continue
            survey = self._surveys.get(key)
            if survey is None or survey.leader_epoch != one.leader_epoch:
                survey = self._surveys[key] = _Survey(one.leader_epoch, now)
            end = LogEnd(one.last_epoch, one.log_end_offset, broker.epoch)
            if survey.ends.get(broker.id) != end:
                survey.ends[broker.id] = end
                self._to_examine[key] = None
        if self._surveys:
            self._next_round = min(self._next_round, now + CHECK_EVERY_S)

    def look_again(self) -> None:
        """Examine all reported partitions again: a broker was unfenced or unregistered."""
        self._to_examine.update(dict.fromkeys(self._surveys))

    def next_deadline(self) -> float:
        """Return when ``due`` next has a partition to examine."""
        return -math.inf if self._to_examine else self._next_round

    def due(self, view: ImageView, now: float) -> Write | None:
        """Return the next elections, or None if every partition still waits."""
        if now >= self._next_round:
            # Round robin: the least recently examined partitions first.
            for key in list(islice(self._surveys, MAX_LOOKS)):
                self._surveys[key] = self._surveys.pop(key)
                self._to_examine[key] = None
            self._next_round = now + CHECK_EVERY_S
        records = []
        for key in list(islice(self._to_examine, MAX_LOOKS)):
            del self._to_examine[key]
            change = self._elect(view, key, now)
            if change is not None:
                records.append(record(change))
        if not self._surveys:
            self._next_round = math.inf
        return Write(records) if records else None

    def elect_now(self, view: ImageView, key: PartitionKey) -> pb.PartitionChangeRecord | None:
        """Return the election of the live replica that has lost least by the reports so far, or
        None if no live replica has reported.
        """
        found = self._valid(view, key)
        if found is None:
            return None
        partition, survey = found
        return self._decide(view, partition, survey, strategy=REQUESTED, in_time=False)

    def _valid(self, view: ImageView, key: PartitionKey) -> tuple[Partition, _Survey] | None:
        """Return a partition that still waits, with its valid reports.

        Returns None, and drops the reports, if the partition no longer waits.
        """
        survey, partition = self._surveys.get(key), view.partitions.get(key)
        if survey is None:
            return None
        if (
            partition is None
            or partition.leader != NO_LEADER
            or partition.isr
            or partition.leader_epoch != survey.leader_epoch
        ):
            del self._surveys[key]
            return None
        for broker_id, end in list(survey.ends.items()):
            broker = view.brokers.get(broker_id)
            present = broker is not None and broker.epoch == end.broker_epoch
            if not present or broker_id not in partition.replicas:
                del survey.ends[broker_id]
        return partition, survey

    def _elect(
        self, view: ImageView, key: PartitionKey, now: float
    ) -> pb.PartitionChangeRecord | None:
        found = self._valid(view, key)
        if found is None:
            return None
        partition, survey = found
        strategy = topic_value(view, partition.topic_id, UNCLEAN_RECOVERY)
        if strategy not in (BALANCED, AGGRESSIVE):
            return None
        in_time = now < survey.began_at + self._timeout_s
        return self._decide(view, partition, survey, strategy=strategy, in_time=in_time)

    def _decide(
        self,
        view: ImageView,
        partition: Partition,
        survey: _Survey,
        *,
        strategy: str,
        in_time: bool,
    ) -> pb.PartitionChangeRecord | None:
        registered = [id_ for id_ in partition.replicas if id_ in view.brokers]
        ends = survey.ends
        verdict = judge(
            Brokers(view), partition, ends, registered, strategy=strategy, in_time=in_time
        )
        if verdict.leader == NO_LEADER:
            return None
        last = partition.last_known_elr[0] if partition.last_known_elr else NO_LEADER
        others = [id_ for id_ in verdict.ranked if id_ != verdict.leader]
        recovery = pb.UncleanRecovery(
            strategy=strategy,
            logs=[_logged(id_, ends[id_]) for id_ in (verdict.leader, *others)],
            silent=verdict.silent,
            last_known_leader=last,
            loss=describe_loss(partition, ends, verdict),
        )
        return elect_recovered(partition, verdict.leader, recovery)


def _logged(broker_id: int, end: LogEnd) -> pb.ReplicaLog:
    return pb.ReplicaLog(
        broker_id=broker_id,
        broker_epoch=end.broker_epoch,
        last_epoch=end.last_epoch,
        log_end_offset=end.end_offset,
    )
