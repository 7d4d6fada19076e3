"""The in-sync replicas of a led partition: what is committed, what is proposed, and the rules by
which replicas join and leave (KIP-903, KIP-497).

Between a proposal and its answer only the controller knows which of the two ISRs is valid, so the
high watermark waits for the members of both: the *maximal* ISR. A proposal is a compare-and-set on
the partition epoch: it becomes void only when the partition epoch passes the one at which it was
made. Counter-example: a proposal is sent twice because the first attempt had no answer. The second
is refused, since a replica has just been fenced. The replica is unfenced, and the first attempt
arrives late and is accepted. A leader that believed both void would count an ISR without that
replica, and acknowledge records that the replica lacks. So a refusal ends a proposal only if it was
sent once; otherwise the leader *withdraws* it by making the controller raise the partition epoch.

A follower is proposed for the ISR only when its last valid fetch covers everything committed and
all of the log with which this leader began, and names exactly the broker epoch that the image shows
for it, unfenced and not shutting down. The removal of a member is proposed if it was not caught up
for ``replica.lag.time.max.ms``, or at once if its disk has no space for the records it lacks. There
is one proposal per partition at a time.

Why: docs/decisions/014-broker-epochs-guard-isr-changes.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from broker.partition.events import AlterPartitionFailed, SendAlterPartition
from broker.partition.host import NO_EPOCH, Host, Replica, Timer
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import RECOVERING, Partition
from raftlog.metadata.versions import supports_replica_epochs
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2


class Kind(Enum):
    """The purpose of a proposal."""

    EXPAND = auto()
    SHRINK = auto()
    RECOVER = auto()
    """Keep the ISR: a leader elected uncleanly reports that it has recovered."""
    CLEAR_ELR = auto()
    """Keep the ISR, which is large enough: no replica outside it needs to be eligible."""
    WITHDRAW = auto()
    """Keep the ISR and raise the partition epoch, so that no earlier attempt can be accepted."""


@dataclass(slots=True, eq=False)
class Proposal:
    """One proposed change to the ISR.

    ``members``: (broker id, broker epoch) pairs, as known when the proposal was made.
    """

    kind: Kind
    members: tuple[tuple[int, int], ...]
    base_epoch: int
    also: frozenset[int] = frozenset()
    """Member ids of the proposals that this one withdraws."""
    uncertain: bool = False
    """Whether an attempt had no answer: it may be accepted until the partition epoch changes."""
    waiting: bool = False
    """Whether it must not be sent again: the image will show the outcome."""

    @property
    def isr(self) -> tuple[int, ...]:
        """Ids of the members."""
        return tuple(member for member, _ in self.members)


class IsrState:
    """The ISR of one partition.

    ``committed``: in the controller's order. ``partition_epoch``: the one at which ``committed``
    was set.
    """

    __slots__ = ("committed", "elr", "maximal", "partition_epoch", "proposal")

    def __init__(
        self, committed: Iterable[int], partition_epoch: int, elr: Iterable[int] = ()
    ) -> None:
        self.committed = tuple(committed)
        self.partition_epoch = partition_epoch
        self.elr = tuple(elr)
        """Eligible leader replicas next to ``committed``; while there are any, the high watermark
        does not move.
        """
        self.proposal: Proposal | None = None
        self.maximal = self.committed
        """The replicas that the high watermark waits for."""

    def propose(self, proposal: Proposal) -> None:
        """Record a proposal; from now on its members count, too."""
        self.proposal = proposal
        self._merge()

    def withdraw(self, members: tuple[tuple[int, int], ...]) -> Proposal:
        """Replace a refused proposal that may still be accepted by one that makes it void."""
        old = self.proposal
        assert old is not None
        also = old.also | set(old.isr)
        self.propose(Proposal(Kind.WITHDRAW, members, old.base_epoch, also=frozenset(also)))
        assert self.proposal is not None
        return self.proposal

    def revert(self) -> None:
        """Drop a refused proposal: the committed ISR is valid."""
        self.proposal = None
        self._merge()

    def commit(self, isr: Iterable[int], partition_epoch: int, elr: Iterable[int] = ()) -> bool:
        """Record a later state from the image or an answer; return whether it is news.

        It voids an earlier proposal.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.committed, self.partition_epoch = tuple(isr), partition_epoch
        self.elr = tuple(elr)
        if self.proposal is not None and self.proposal.base_epoch < partition_epoch:
            self.proposal = None
        self._merge()
        return True

    def _merge(self) -> None:
        maximal = dict.fromkeys(self.committed)
        if self.proposal is not None:
            maximal.update(dict.fromkeys(self.proposal.isr))
            maximal.update(dict.fromkeys(sorted(self.proposal.also)))
        self.maximal = tuple(maximal)


class FollowerState:
    """A leader's knowledge of one follower in this leader epoch, from the follower's valid fetches
    alone (KIP-903's ReplicaState).

    ``end_offset``: end of what is durable on the follower, exclusive; -1 if it has not fetched.
    ``broker_epoch``: the one in its last fetch. Times are monotonic seconds.
    """

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "end_offset",
        "leader_end_at",
        "leader_end_then",
        "low_on_space",
        "replica_id",
    )

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.end_offset = -1
        self.broker_epoch = -1
        self.caught_up_at: float | None = None
        self.leader_end_then = -1
        self.leader_end_at: float | None = None
        self.low_on_space = False
        """True if, by its last fetch, the follower stores no records for lack of space."""

    def fetched(self, end_offset: int, broker_epoch: int, leader_end: int, now: float) -> None:
        """Process a valid fetch: everything below ``end_offset`` is durable at the follower.

        A follower is caught up if it has all that the leader has now, or had at the previous fetch.
        Within one process of a follower and one leader epoch its end never decreases, so a lower
        one is an older message.
        """
        if broker_epoch == self.broker_epoch and end_offset < self.end_offset:
            return
        if end_offset >= leader_end:
            self.caught_up_at = now
        elif (
            self.leader_end_then != -1
            and end_offset >= self.leader_end_then
            and broker_epoch == self.broker_epoch
        ):
            self.caught_up_at = self.leader_end_at
        self.end_offset, self.broker_epoch = end_offset, broker_epoch
        self.leader_end_then, self.leader_end_at = leader_end, now

    def leader_moved(self, leader_end: int, now: float) -> None:
        """Record that the leader's log is about to grow beyond ``leader_end``: a follower that has
        all of it was caught up until now.
        """
        if self.end_offset >= leader_end:
            self.caught_up_at = now

    def lags_since(self, began: float) -> float:
        """Return since when the follower has not been caught up; ``began``, the start of this
        leader's epoch, if it never was.
        """
        return began if self.caught_up_at is None else max(began, self.caught_up_at)


# After these errors nothing more is proposed in this leader epoch: it is over, or the proposal is
# invalid. The maximal ISR does not change.
_OVER = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class LeaderIsr:
    """The ISR of one leader in one leader epoch.

    ``changed``: called when another ISR was committed, or a proposal was dropped.
    """

    __slots__ = (
        "_changed",
        "_host",
        "_lag_s",
        "_lag_timer",
        "_not_before",
        "_refused_fetches",
        "_retry_timer",
        "_updates",
        "began",
        "epoch",
        "followers",
        "high_watermark",
        "min_isr",
        "over",
        "recovering",
        "replica",
        "start_offset",
        "state",
    )

    def __init__(
        self,
        host: Host,
        replica: Replica,
        partition: Partition,
        updates: IsrUpdates,
        changed: Callable[[], None],
    ) -> None:
        self._host = host
        self._updates = updates
        self._changed = changed
        self.replica = replica
        self.epoch = partition.leader_epoch
        self.start_offset = replica.log.end
        self.high_watermark = -1
        self.min_isr = 1
        """``min.insync.replicas``, limited to the number of the partition's replicas."""
        self.state = IsrState(partition.isr, partition.partition_epoch, partition.elr)
        self.followers: dict[int, FollowerState] = {}
        self.began = self._host.now
        self.recovering = partition.leader_recovery_state == RECOVERING
        self.over = False
        """True once nothing more will be proposed in this leader epoch."""
        self._not_before = self.began
        self._lag_s = self._host.settings.replica_lag_time_max_ms / 1000
        self._lag_timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self._refused_fetches = False
        """True if, at the last check, this broker considered itself fenced and so refused
        fetches.
        """
        self.set_followers(partition)

    def set_followers(self, partition: Partition) -> None:
        """Make the other replicas the followers; keep the state of those that stay."""
        old = self.followers
        self.followers = {
            replica_id: old.get(replica_id) or FollowerState(replica_id)
            for replica_id in partition.replicas
            if replica_id != self._host.broker_id
        }

    def close(self) -> None:
        """Cancel the timers, at the end of the role."""
        self.over = True
        self._host.deadlines.cancel(self._lag_timer)
        self._host.deadlines.cancel(self._retry_timer)

    def end_offset_of(self, broker_id: int) -> int:
        """Return the end of what is known to be durable on a replica; -1 if unknown."""
        if broker_id == self._host.broker_id:
            return self.replica.log.flushed_end
        follower = self.followers.get(broker_id)
        return -1 if follower is None else follower.end_offset

    # --- proposing -------------------------------------------------------------------------------

    def consider(self) -> None:
        """Propose the change that is due, if no proposal is outstanding."""
        if self._may_propose():
            if self.recovering:
                self._propose(Kind.RECOVER, self.state.committed)
                return
            joining = tuple(
                id_ for id_, follower in self.followers.items() if self._may_join(follower)
            )
            if joining:
                self._propose(Kind.EXPAND, self.state.committed + joining)
            elif self.state.elr and self.enough_in_sync():
                self._propose(Kind.CLEAR_ELR, self.state.committed)

    def enough_in_sync(self) -> bool:
        """Return whether the committed ISR has at least ``min.insync.replicas`` members."""
        return len(self.state.committed) >= self.min_isr

    def holds_high_watermark(self) -> bool:
        """Return whether the high watermark must not move: too few replicas are in sync, or
        replicas outside the ISR are eligible because they have everything up to it (KIP-966).

        Both conditions are needed. (Suppose ``min.insync.replicas`` was raised to 2, but the leader
        does not know it yet. A follower leaves the ISR and stays eligible, the leader's high
        watermark advances, and the leader dies.)
        """
        return bool(self.state.elr) or not self.enough_in_sync()

    def _may_propose(self) -> bool:
        return self.state.proposal is None and not self.over and self._host.now >= self._not_before

    def _may_join(self, follower: FollowerState) -> bool:
        return (
            follower.replica_id not in self.state.committed
            and (self.high_watermark >= 0 or self.holds_high_watermark())
            and follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.start_offset
            and not (follower.low_on_space and follower.end_offset < self.replica.log.end)
            and self._is_eligible(follower)
        )

    def _is_eligible(self, follower: FollowerState) -> bool:
        """Return whether, according to the image, a follower's fetches are from its current
        registration and the follower may be in an ISR.
        """
        broker = self._host.broker(follower.replica_id)
        if broker is None or not broker.active:
            return False
        if follower.broker_epoch == NO_EPOCH:
            return not supports_replica_epochs(self._host.image.features)
        return follower.broker_epoch == broker.epoch

    def _propose(self, kind: Kind, isr: tuple[int, ...]) -> None:
        members = tuple((member, self.epoch_of(member)) for member in isr)
        self.state.propose(Proposal(kind, members, self.state.partition_epoch))
        self._updates.queue(self)
        self._host.note(
            "isr change proposed",
            partition=_name(self.replica.key),
            kind=kind.name.lower(),
            isr=list(isr),
        )

    def epoch_of(self, member: int) -> int:
        """Return the broker epoch to put in the ISR proposal for a member.

        For a follower that has fetched from this leader: the epoch in its last fetch, never the
        image's. For one that has not: the image's, which is safe because re-registering would
        remove it from the ISR, so that the partition epoch would reject this proposal.
        """
        if member == self._host.broker_id:
            return self._host.broker_epoch
        follower = self.followers.get(member)
        if follower is not None and follower.end_offset >= 0:
            return follower.broker_epoch
        broker = self._host.broker(member)
        return NO_EPOCH if broker is None else broker.epoch

    # --- members that fall behind ----------------------------------------------------------------

    def watch_lag(self) -> None:
        """Set a timer for the time when members will have lagged too long."""
        if self._lag_timer is None and not self.over and len(self.state.committed) > 1:
            self._watch_at(self._host.now + self._lag_s)

    def _watch_at(self, when: float) -> None:
        self._lag_timer = self._host.deadlines.at(when, self._look_for_lag)

    def _look_for_lag(self) -> None:
        now, end = self._host.now, self.replica.log.end
        is_late = self._lag_timer is not None and now - self._lag_timer.when > self._lag_s / 4
        refused_before, self._refused_fetches = self._refused_fetches, not self._host.serves
        self._lag_timer = None
        if is_late or refused_before or self._refused_fetches:
            # This process was paused, or refused all fetches: it must first process the fetches of
            # its followers.
            self._watch_at(now + self._lag_s / 4)
            return
        behind = [
            self.followers[member]
            for member in self.state.committed
            if member in self.followers and self.followers[member].end_offset < end
        ]
        late = {f.replica_id for f in behind if now - f.lags_since(self.began) >= self._lag_s}
        if late and self._may_propose():
            self._propose(
                Kind.SHRINK, tuple(member for member in self.state.committed if member not in late)
            )
        if behind:
            due = min(follower.lags_since(self.began) for follower in behind) + self._lag_s
            self._watch_at(due if due > now else now + self._lag_s / 4)

    def propose_removal(self, replica_id: int) -> None:
        """Propose the removal of a member whose disk has no space for the records that it lacks."""
        if self._may_propose():
            staying = [member for member in self.state.committed if member != replica_id]
            self._propose(Kind.SHRINK, tuple(staying))

    # --- what becomes of a proposal --------------------------------------------------------------

    def process_image(self, partition: Partition) -> None:
        """Process an image with a state of this leader epoch."""
        self.recovering = self.recovering and partition.leader_recovery_state == RECOVERING
        if self.state.commit(partition.isr, partition.partition_epoch, partition.elr):
            self._committed()

    def answered(self, proposal: Proposal, result: rpc.AlterPartitionResult) -> None:
        """Process the controller's result for an outstanding proposal."""
        code = result.error_code
        if code:
            self._refused(proposal, code, result.error_message)
        elif result.leader_epoch != self.epoch:
            self.over = proposal.waiting = True
        elif proposal.kind is Kind.WITHDRAW and result.partition_epoch == proposal.base_epoch:
            # An older controller answers that nothing changes: its partition epoch stays, so the
            # earlier attempt may still be accepted.
            self._again_later(proposal)
        else:
            before = self.state.committed
            self.recovering = False
            elr = result.eligible_leader_replicas
            if not self.state.commit(result.isr, result.partition_epoch, elr):
                self.state.revert()
                if proposal.kind is Kind.CLEAR_ELR:
                    # The controller knows a larger min.insync.replicas, which the image will show.
                    self._pause()
            self._count(before)
            self._committed()

    def failed(self, proposal: Proposal, *, outcome_unknown: bool) -> None:
        """Retry after the whole request has failed, and record whether it may have been
        executed.
        """
        proposal.uncertain = proposal.uncertain or outcome_unknown
        self._updates.queue(self)

    def _refused(self, proposal: Proposal, code: int, message: str) -> None:
        self._host.counts["FailedIsrUpdates"] += 1
        self._host.note(
            "isr change refused",
            partition=_name(self.replica.key),
            isr=list(proposal.isr),
            code=code,
            why=message,
        )
        if code == ErrorCode.INELIGIBLE_REPLICA:
            self._ineligible(proposal)
        elif code == ErrorCode.INVALID_UPDATE_VERSION:
            proposal.waiting = True
        elif code in _OVER:
            self.over = proposal.waiting = True
        else:
            self._again_later(proposal)

    def _ineligible(self, proposal: Proposal) -> None:
        if proposal.kind is Kind.WITHDRAW:
            self._again_later(proposal)
        elif proposal.uncertain:
            members = tuple((member, self.epoch_of(member)) for member in self.state.committed)
            self.state.withdraw(members)
            self._updates.queue(self)
        else:
            self.state.revert()
            self._pause()
            self._committed()

    def _again_later(self, proposal: Proposal) -> None:
        def again() -> None:
            self._retry_timer = None
            if self.state.proposal is proposal and not self.over:
                self._updates.queue(self)

        self._wait(again)

    def _pause(self) -> None:
        self._not_before = self._host.now + self._host.settings.ineligible_backoff_ms / 1000

        def look_again() -> None:
            self._retry_timer = None
            self.consider()

        self._wait(look_again)

    def _wait(self, run: Callable[[], None]) -> None:
        deadlines = self._host.deadlines
        deadlines.cancel(self._retry_timer)
        self._retry_timer = deadlines.at(
            self._host.now + self._host.settings.ineligible_backoff_ms / 1000, run
        )

    def _count(self, before: tuple[int, ...]) -> None:
        after = self.state.committed
        self._host.counts["IsrShrinks"] += not set(before) <= set(after)
        self._host.counts["IsrExpands"] += not set(after) <= set(before)

    def _committed(self) -> None:
        self.watch_lag()
        self._changed()


def _name(key: tuple[bytes, int]) -> str:
    return f"{key[0].hex()}-{key[1]}"


RECOVERED = 0


class IsrUpdates:
    """The queued and outstanding proposals of one broker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._queue: dict[PartitionKey, LeaderIsr] = {}
        self._under_way: dict[PartitionKey, tuple[LeaderIsr, Proposal]] | None = None
        self._not_before = float("-inf")
        self._timer: Timer | None = None

    def queue(self, isr: LeaderIsr) -> None:
        """Queue a leader's proposal."""
        self._queue[isr.replica.key] = isr

    def pump(self) -> None:
        """Send the queued proposals at the end of a step, if no request is under way."""
        host = self._host
        if not self._queue or self._under_way is not None:
            return
        if host.now < self._not_before:
            if self._timer is None:
                self._timer = host.deadlines.at(self._not_before, self._end_pause)
            return
        under_way: dict[PartitionKey, tuple[LeaderIsr, Proposal]] = {}
        topics: dict[bytes, rpc.AlterPartitionTopic] = {}
        while self._queue and len(under_way) < host.settings.max_partitions_per_message:
            key = next(iter(self._queue))
            isr = self._queue.pop(key)
            proposal = isr.state.proposal
            if proposal is not None and not proposal.waiting and not isr.over:
                under_way[key] = isr, proposal
                topic = topics.setdefault(key[0], rpc.AlterPartitionTopic(topic_id=key[0]))
                topic.partitions.append(_data(isr, proposal, key[1]))
        if not under_way:
            return
        self._under_way = under_way
        request = rpc.AlterPartitionRequest(
            broker_id=host.broker_id, broker_epoch=host.broker_epoch, topics=list(topics.values())
        )
        host.out.append(SendAlterPartition(request))

    def _end_pause(self) -> None:
        self._timer = None

    def answered(self, response: rpc.AlterPartitionResponse) -> None:
        """Process each partition's result. A partition without a result was not tried."""
        under_way, self._under_way = self._under_way or {}, None
        results = {
            (topic.topic_id, result.partition_index): result
            for topic in response.topics
            for result in topic.partitions
        }
        for key, (isr, proposal) in under_way.items():
            if isr.state.proposal is proposal and not isr.over:
                result = results.get(key)
                if result is None:
                    result = rpc.AlterPartitionResult(error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
                isr.answered(proposal, result)

    def failed(self, event: AlterPartitionFailed) -> None:
        """Retry shortly, as the whole request failed. Proposals queued meanwhile are sent with
        it.
        """
        under_way, self._under_way = self._under_way or {}, None
        self._not_before = self._host.now + self._host.settings.isr_retry_ms / 1000
        for isr, proposal in under_way.values():
            if isr.state.proposal is proposal and not isr.over:
                isr.failed(proposal, outcome_unknown=event.outcome_unknown)


def _data(isr: LeaderIsr, proposal: Proposal, index: int) -> rpc.AlterPartitionData:
    return rpc.AlterPartitionData(
        partition_index=index,
        leader_epoch=isr.epoch,
        new_isr_with_epochs=[
            records_pb2.BrokerState(broker_id=member, broker_epoch=epoch)
            for member, epoch in proposal.members
        ],
        # The loss of an unclean election is final: there is nothing to recover.
        leader_recovery_state=RECOVERED,
        partition_epoch=proposal.base_epoch,
        advance_partition_epoch=proposal.kind is Kind.WITHDRAW,
    )
