"""The in-sync replicas of one partition as its leader knows them: committed, and proposed without
an answer yet.

Between a proposal and its answer only the controller knows which of the two holds, so the high
watermark waits for the members of both: the *maximal* ISR. A proposal is a compare-and-set on the
partition epoch: it is void for good once the partition epoch has passed the one it was made at, and
not before. [Two attempts were sent because the first had no answer. The second is refused, since a
replica is fenced just now; the replica is unfenced, the first attempt arrives late and is accepted.
A leader that took the refusal for the end of both counts an ISR without that replica, and
acknowledges what it does not have.] So a refusal ends a proposal only if it was sent once; else the
leader *withdraws* it: it has the controller raise the partition epoch.

Why: docs/decisions/014-broker-epochs-guard-isr-changes.md
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """The purpose of a proposal."""

    EXPAND = auto()
    SHRINK = auto()
    RECOVER = auto()
    """The ISR stays: a leader elected uncleanly reports that it has recovered."""
    WITHDRAW = auto()
    """The ISR stays, the partition epoch grows: no earlier attempt can be accepted any more."""


@dataclass(slots=True, eq=False)
class Proposal:
    """One proposed change of the ISR.

    ``members``: (broker id, broker epoch), as known when it was made; it vouches for these epochs.
    """

    kind: Kind
    members: tuple[tuple[int, int], ...]
    base_epoch: int
    also: frozenset[int] = frozenset()
    """Member ids of the proposals that this one withdraws."""
    uncertain: bool = False
    """An attempt had no answer: it may be accepted as long as the partition epoch stays."""
    waiting: bool = False
    """Not to be sent again: the image will show the outcome."""

    @property
    def isr(self) -> tuple[int, ...]:
        """Ids of the members."""
        return tuple(member for member, _ in self.members)


class IsrState:
    """The ISR of one partition. ``committed``: in the controller's order. ``partition_epoch``: of
    ``committed``.
    """

    __slots__ = ("committed", "maximal", "partition_epoch", "proposal")

    def __init__(self, committed: Iterable[int], partition_epoch: int) -> None:
        self.committed = tuple(committed)
        self.partition_epoch = partition_epoch
        self.proposal: Proposal | None = None
        self.maximal = self.committed
        """The replicas that the high watermark waits for."""

    def propose(self, proposal: Proposal) -> None:
        """Record a proposal, and count its members too from now on."""
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
        """Drop the proposal, which was refused for good: the committed ISR holds."""
        self.proposal = None
        self._merge()

    def commit(self, isr: Iterable[int], partition_epoch: int) -> bool:
        """Take a later state from the image or an answer; return whether it is news.

        It voids an earlier proposal.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.committed, self.partition_epoch = tuple(isr), partition_epoch
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
    """A leader's knowledge of one follower in this leader epoch, from its valid fetches alone
    (KIP-903's ReplicaState).

    ``end_offset``: durable there, exclusive; -1: has not fetched. ``broker_epoch``: of its last
    fetch. Times: monotonic seconds.
    """

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "end_offset",
        "leader_end_at",
        "leader_end_then",
        "replica_id",
    )

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.end_offset = -1
        self.broker_epoch = -1
        self.caught_up_at: float | None = None
        self.leader_end_then = -1
        self.leader_end_at: float | None = None

    def fetched(self, end_offset: int, broker_epoch: int, leader_end: int, now: float) -> None:
        """Process a valid fetch: everything below ``end_offset`` is durable at the follower.

        Caught up means: has all that the leader had now, or had at the fetch before. Within one
        process of a follower and one leader epoch its end does not go back, so a lower one is an
        older message.
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
        """Note that the leader's log is about to grow beyond ``leader_end``: a follower that has
        all of it was caught up until now.
        """
        if self.end_offset >= leader_end:
            self.caught_up_at = now

    def lags_since(self, began: float) -> float:
        """Return since when it has not been caught up; ``began``: of this leader's epoch, for one
        that never was.
        """
        return began if self.caught_up_at is None else max(began, self.caught_up_at)
