"""The rules by which replicas join and leave a led partition's ISR (KIP-903, KIP-497).

A follower is proposed only when its last valid fetch has all that is committed and all of the log
that this leader began with, and named the very broker epoch that the image shows for it, unfenced
and not shutting down. A member that was not caught up for ``replica.lag.time.max.ms`` is proposed
to leave. There is one proposal per partition at a time; ``isr.py`` has its outcomes.

Why: docs/decisions/014-broker-epochs-guard-isr-changes.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.partition.deadlines import Timer
from broker.partition.isr import FollowerState, IsrState, Kind, Proposal
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Partition
from raftlog.metadata.versions import supports_replica_epochs
from raftlog.wire.controller.v1 import controller_pb2 as rpc

if TYPE_CHECKING:
    from broker.partition.leader import Leader

NO_EPOCH = -1
RECOVERING = 1

# Errors after which nothing more is proposed in this leader epoch: it is over, or the proposal is
# invalid. The maximal ISR stays as it is.
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
    """The ISR of one leader in one leader epoch."""

    __slots__ = (
        "_host",
        "_lag_s",
        "_lag_timer",
        "_leader",
        "_not_before",
        "_refused_fetches",
        "_retry_timer",
        "began",
        "followers",
        "over",
        "recovering",
        "state",
    )

    def __init__(self, leader: Leader, partition: Partition) -> None:
        self._leader = leader
        self._host = leader.host
        self.state = IsrState(partition.isr, partition.partition_epoch)
        self.followers: dict[int, FollowerState] = {}
        self.began = self._host.now
        self.recovering = partition.leader_recovery_state == RECOVERING
        self.over = False
        """True once nothing more is proposed in this leader epoch."""
        self._not_before = self.began
        self._lag_s = self._host.settings.replica_lag_time_max_ms / 1000
        self._lag_timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self._refused_fetches = False
        """Whether this broker considered itself fenced at the last check: it refused fetches."""
        self.take_replicas(partition)

    def take_replicas(self, partition: Partition) -> None:
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
        """Return the end of what is known to be durable on a replica; -1: unknown."""
        if broker_id == self._host.broker_id:
            return self._leader.replica.log.flushed_end
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

    def _may_propose(self) -> bool:
        return self.state.proposal is None and not self.over and self._host.now >= self._not_before

    def _may_join(self, follower: FollowerState) -> bool:
        leader = self._leader
        return (
            follower.replica_id not in self.state.committed
            and leader.high_watermark >= 0
            and follower.end_offset >= leader.high_watermark
            and follower.end_offset >= leader.start_offset
            and self._is_eligible(follower)
        )

    def _is_eligible(self, follower: FollowerState) -> bool:
        """Return whether the image agrees that the fetches are of the present follower, and that it
        may be in an ISR.
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
        self._leader.isr_updates.queue(self._leader)
        key = self._leader.replica.key
        self._host.note(
            "isr change proposed", partition=_name(key), kind=kind.name.lower(), isr=list(isr)
        )

    def epoch_of(self, member: int) -> int:
        """Return the broker epoch to vouch for: of a follower that of its last fetch, never of the
        image.

        Of a member that has not fetched yet from this leader it is the image's: the member is in
        the committed ISR, and a registration removes it from there in the same batch, so that the
        partition epoch would refuse the proposal.
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
        now, end = self._host.now, self._leader.replica.log.end
        overslept = self._lag_timer is not None and now - self._lag_timer.when > self._lag_s / 4
        deaf, self._refused_fetches = self._refused_fetches, not self._host.serves
        self._lag_timer = None
        if overslept or deaf or self._refused_fetches:
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

    # --- what becomes of a proposal --------------------------------------------------------------

    def take_image(self, partition: Partition) -> None:
        """Process an image with a state of this leader epoch."""
        self.recovering = self.recovering and partition.leader_recovery_state == RECOVERING
        if self.state.commit(partition.isr, partition.partition_epoch):
            self._committed()

    def answered(self, proposal: Proposal, result: rpc.AlterPartitionResult) -> None:
        """Process the controller's result for a proposal that is still outstanding."""
        code = result.error_code
        if code:
            self._refused(proposal, code, result.error_message)
        elif result.leader_epoch != self._leader.epoch:
            self.over = proposal.waiting = True
        elif proposal.kind is Kind.WITHDRAW and result.partition_epoch == proposal.base_epoch:
            # An older controller answers that nothing changes: its partition epoch stays, and with
            # it the doubt.
            self._again_later(proposal)
        else:
            before = self.state.committed
            self.recovering = False
            if not self.state.commit(result.isr, result.partition_epoch):
                self.state.revert()
            self._count(before)
            self._committed()

    def failed(self, proposal: Proposal, *, outcome_unknown: bool) -> None:
        """Retry after the whole request has failed, and remember if it may have been executed."""
        proposal.uncertain = proposal.uncertain or outcome_unknown
        self._leader.isr_updates.queue(self._leader)

    def _refused(self, proposal: Proposal, code: int, message: str) -> None:
        self._host.counts["FailedIsrUpdates"] += 1
        key = self._leader.replica.key
        self._host.note(
            "isr change refused",
            partition=_name(key),
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
            self._leader.isr_updates.queue(self._leader)
        else:
            self.state.revert()
            self._pause()
            self._committed()

    def _again_later(self, proposal: Proposal) -> None:
        leader = self._leader

        def again() -> None:
            self._retry_timer = None
            if self.state.proposal is proposal and not self.over:
                leader.isr_updates.queue(leader)

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
        self._leader.isr_changed()


def _name(key: tuple[bytes, int]) -> str:
    return f"{key[0].hex()}-{key[1]}"
