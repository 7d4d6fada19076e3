"""The roles of a node, and how it gets from one to another.

Theory of operation
-------------------

Time is cut into epochs; each has at most one leader. A voter gives one vote in an epoch and never forgets it, so two leaders of
one epoch would need two majorities without a common voter. A vote goes only to a candidate whose log is at least as complete as
the voter's (Raft 5.4.1), so a leader holds whatever a majority made durable before it was elected: what is committed.

Before it takes a new epoch a node asks whether it would win it (pre-vote, KIP-996): it is Prospective, changes nothing durable,
and disturbs nobody who hears a leader. With a majority behind it, it is a Candidate in the next epoch, and counts its own vote
when that is durable, like everybody else's. The leader starts its epoch with a record of its own (LeaderChange); only
when a majority has flushed that one does its high watermark move, and all before it is committed with it (Raft 5.4.2).

Followers pull. The offset of a Fetch is the acknowledgement, so it is sent after the flush. The leader counts itself where it
has flushed too, although it hands out records before. Where the logs differ the leader answers with (epoch, end offset) and
the follower truncates, epoch by epoch, never below its high watermark.

A leader that a majority does not fetch from resigns (check-quorum): it cannot commit, and should not seem to lead. A node
whose durable vote of an epoch is its own takes no part in that epoch after a restart (Resigned): it may have sent records
which it lost in the crash, and must not give their (offset, epoch) to others.

Which epoch, whose vote: that is durable before anything that follows from it is sent. The table below is complete; ``enter`` refuses
any other step.

The voter set in force is the last one in the log, from the moment it is appended until it is truncated (KIP-853). A set differs from
the one before by one replica at most and follows only when that one is committed, so every majority of the one meets every
majority of the other. A node that is no voter is an Observer in every epoch; but one that is removed takes part until it
knows that the removal is committed, and does not count itself: it may be the only one that can still commit it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Protocol

from raftlog.errors import ErrorCode, FatalError
from raftlog.quorum.admission import MAX_EPOCH, Refusal, epoch_refusal, is_endpoint
from raftlog.quorum.candidate import Candidate
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.follower import Follower
from raftlog.quorum.leader import Leader
from raftlog.quorum.node_state import NodeState
from raftlog.quorum.observer import Observer
from raftlog.quorum.prospective import Prospective
from raftlog.quorum.resigned import Resigned
from raftlog.quorum.role import Role
from raftlog.quorum.unattached import Unattached
from raftlog.storage.api import RecoveredLog, VoteState

SAME, HIGHER = "same epoch", "higher epoch"

TRANSITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    # No leader known. Left when the election timer ends, or a leader or a higher epoch shows.
    "unattached": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME,),
    },
    # Asks for pre-votes. Refused: back to where it came from. Gives its vote to another: unattached.
    "prospective": {
        "candidate": (HIGHER,),
        "follower": (SAME, HIGHER),
        "unattached": (SAME, HIGHER),
        "observer": (SAME,),
    },
    # Has voted for itself. Only a candidate becomes a leader.
    "candidate": {
        "leader": (SAME,),
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
    },
    # Never follows anybody in its own epoch.
    "leader": {"resigned": (SAME,), "follower": (HIGHER,), "unattached": (HIGHER,)},
    # Led or campaigned in this epoch, and does so no more. Another may lead it if this node only campaigned.
    "resigned": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME, HIGHER),
    },
    # One leader for as long as the epoch lasts; but one that was only claimed gives way to proof.
    "follower": {"prospective": (SAME,), "follower": (SAME, HIGHER), "unattached": (HIGHER,), "observer": (SAME,)},
    # Finds and forgets leaders, until it becomes a voter.
    "observer": {
        "observer": (SAME, HIGHER),
        "follower": (SAME,),
        "unattached": (SAME,),
        "resigned": (SAME,),
    },
}


class LeaderHint(Protocol):
    """What every response says about the one who answers: its error, its epoch, and the leader it knows."""

    error_code: int
    leader_id: int
    leader_epoch: int


class Node(NodeState):
    """A node and its role."""

    role: Role

    def __init__(self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float) -> None:
        super().__init__(config, recovered, rng, now)
        highest = max(self.vote.epoch, self.log.last_epoch)
        if highest > MAX_EPOCH:
            raise FatalError(
                f"epoch {highest} is above {MAX_EPOCH}, the highest there may be: nobody can be elected after it. If no other"
                " directory of the quorum is better, `raftlog storage recover` makes one that begins at a lower epoch"
            )
        if self.log.last_epoch > self.vote.epoch:
            # The crash came between the records and the epoch. Had this node voted in that epoch, the vote would be here.
            self.set_vote(VoteState(self.log.last_epoch))
        self.role = self._first_role()
        self.role_stale = False
        self.announce_leader()
        self.role.enter()

    def _first_role(self) -> Role:
        """At startup: what the vote says; but one's own vote makes a Resigned, even if nothing says that it won."""
        me, vote = self.config.node_id, self.vote
        alone = len(self.voters) == 1 and self.is_voter
        timer = self.now if alone else self.election_deadline()
        if me not in (vote.voted_id, vote.leader_id) and vote.leader_id in self.voters:
            self.leader_id = vote.leader_id
        if not self.takes_part:
            return Observer(self)
        if me in (vote.voted_id, vote.leader_id):
            return Resigned(self, timer)
        if self.leader_id != -1:
            return Follower(self)
        if self.is_voter:
            self.begin_hurry()
        return Unattached(self, timer)

    def settle_role(self) -> None:
        """The voter set has changed: take the role that goes with it."""
        self.role_stale = False
        self.announce_peers()
        name, me = self.role.name, self.config.node_id
        if self.takes_part and name == "observer":
            if self.leader_id != -1:
                self.enter(Follower(self))
            elif me in (self.vote.voted_id, self.vote.leader_id):
                self.enter(Resigned(self, self.election_deadline()))
            else:
                self.enter(Unattached(self, self.election_deadline()))
        elif not self.takes_part and name not in ("observer", "leader", "resigned"):
            self.enter(Observer(self))
        else:
            self.role.on_voters_changed()

    def enter(self, role: Role) -> None:
        """Take a role, if the table allows it. Raises FatalError if it does not."""
        old = self.role
        kind = SAME if role.epoch == old.epoch else HIGHER
        if role.epoch < old.epoch or kind not in TRANSITIONS[old.name].get(role.name, ()):
            raise FatalError(f"no way from {old.name} of epoch {old.epoch} to {role.name} of epoch {role.epoch}")
        old.leave()
        self.role = role
        self.announce_leader()
        role.enter()

    def become_unattached(self, epoch: int) -> None:
        """No leader is known in ``epoch``, which is this one or a higher one."""
        timer = self.role.election_timer
        if epoch > self.epoch:
            self.set_vote(VoteState(epoch))
            if self.hurry:
                timer = self.now + self.backoff_s()
        else:
            timer = None
        self.leader_id = -1
        if not self.takes_part:
            self.enter(Observer(self))
        else:
            self.enter(Unattached(self, self.election_deadline() if timer is None else timer))

    def become_prospective(self) -> None:
        """Ask whether an election could be won; later, if another node is better fit to lead."""
        if self.epoch >= MAX_EPOCH:
            refusal = Refusal(
                ErrorCode.INVALID_REQUEST, "epoch", f"no epoch is left above {self.epoch}: recover the quorum"
            )
            self.refuse("Election", refusal)
            self.role.postpone_election(self.election_deadline())
            return
        until = self.stands_back_until()
        if until > self.now:
            self.role.postpone_election(until)
        else:
            self.enter(Prospective(self))

    def become_candidate(self) -> None:
        """Open the next epoch with a vote for oneself."""
        silent_id, self.leader_id = self.leader_id, -1
        self.set_vote(VoteState(self.epoch + 1, self.config.node_id, self.config.directory_id))
        self.enter(Candidate(self, silent_id))

    def become_leader(self, granting_voters: tuple[int, ...]) -> None:
        """A majority, this node's durable vote included, has voted for it."""
        self.set_leader(self.config.node_id)
        self.wished_at = None
        self.end_hurry()
        self.enter(Leader(self, granting_voters))

    def become_resigned(self, preferred: tuple[int, ...]) -> None:
        """Lead no more, and say so to the others, the ``preferred`` candidates first."""
        self.leader_id = -1
        self.enter(Resigned(self, self.election_deadline(), preferred))

    def become_follower(self, leader_id: int, epoch: int, endpoint: str = "", *, doubts: bool = False) -> None:
        """Follow the leader of ``epoch``, which is this one or a higher one; it listens at ``endpoint``, if that is known.

        ``doubts``: it was silent for the fetch timeout, and is followed for want of another.
        """
        if epoch > self.epoch or leader_id != self.leader_id:
            self.end_hurry()
        if epoch > self.epoch:
            self.set_vote(VoteState(epoch, leader_id=leader_id))
        self.set_leader(leader_id, endpoint or (self.leader_endpoint if leader_id == self.leader_id else ""))
        self.enter(Follower(self, doubts=doubts) if self.takes_part else Observer(self))

    def grant_vote(self, candidate_id: int, directory_id: str) -> None:
        """Give the vote of this epoch."""
        self.set_vote(replace(self.vote, voted_id=candidate_id, voted_directory_id=directory_id))
        self.role.on_vote_granted()

    def admit(self, epoch: int, field: str, *, proven: bool) -> Refusal | None:
        """Why this node does not enter ``epoch``, a higher one; None if it does now."""
        refusal = epoch_refusal(epoch, field)
        if refusal is None and not proven and not self.allowance.take(epoch - self.epoch, self.now):
            reason = f"epoch {epoch} is too far above {self.epoch} for an unproven claim"
            refusal = Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, field, reason)
        return refusal

    def learn(self, epoch: int, leader_id: int, endpoint: str = "", *, proven: bool = False) -> Refusal | None:
        """Somebody says that ``leader_id`` (-1: nobody it knows of) leads ``epoch``, and listens at ``endpoint``, if not empty.

        The leader need not be of this node's voter set: this log may lag behind. ``proven``: as in ``admission``. If it is refused
        nothing has changed.
        """
        known = leader_id != self.config.node_id and (leader_id in self.voters or (leader_id >= 0 and endpoint != ""))
        if leader_id in self.lost and not self.takes_part:
            # An observer has nothing to gain from a leader that it knows to be dead; it asks on.
            known = False
        if epoch > self.epoch:
            refusal = self.admit(epoch, "leader_epoch", proven=proven)
            if refusal is not None:
                return refusal
            if known:
                self.become_follower(leader_id, epoch, endpoint)
            else:
                self.become_unattached(epoch)
        elif epoch == self.epoch and known and leader_id != self.leader_id:
            if self.vote.leader_id not in (-1, leader_id) and not (proven and self._leader_is_claimed()):
                reason = f"two leaders in epoch {epoch}: {self.vote.leader_id} and {leader_id}"
                return Refusal(ErrorCode.INVALID_REQUEST, "leader_id", reason, contradiction=True)
            self.become_follower(leader_id, epoch, endpoint)
        return None

    def _leader_is_claimed(self) -> bool:
        """Whether what is known of this epoch's leader is a claim, which gives way to proof."""
        return not self.leader_confirmed and self.vote.leader_id != self.config.node_id

    def heed(self, response: LeaderHint, peer_id: int) -> bool:
        """The rule for every response: take from it who leads. False if that made a transition: nothing else counts then."""
        before = self.role
        if response.error_code != ErrorCode.INCONSISTENT_CLUSTER_ID:
            endpoint = getattr(response, "leader_endpoint", "")
            refusal = self.learn(
                response.leader_epoch,
                response.leader_id,
                endpoint if is_endpoint(endpoint) else "",
                proven=self.is_proven(peer_id),
            )
            if refusal is not None:
                self.refuse(type(response).__name__, refusal)
        return self.role is before and not self.halted
