"""The roles of a node, and the transitions between them.

Theory of operation
-------------------

Time is cut into epochs; each has at most one leader. A voter gives one vote in an epoch and never
forgets it, so two leaders of one epoch would need two majorities without a common voter. A vote
goes only to a candidate whose log is at least as complete as the voter's (Raft 5.4.1), so a leader
holds whatever a majority made durable before it was elected: what is committed.

Before a node campaigns in a new epoch, it asks whether it could win (pre-vote, KIP-996). It is then
Prospective: it changes nothing durable and does not disturb nodes that hear a leader. If a majority
would vote for it, it becomes a Candidate in the next epoch. It counts its own vote, like any other,
once the vote is durable. The leader starts its epoch with a record of its own (LeaderChange). Its
high watermark moves only when a majority has flushed that record, which commits everything before
it, too (Raft 5.4.2).

Followers pull. The offset of a Fetch is the acknowledgement, so a follower sends it after the
flush. The leader counts itself at its flushed offset, too, although it sends records before it
flushes them. Where the logs differ the leader answers with (epoch, end offset) and the follower
truncates, epoch by epoch, never below its high watermark.

A leader that a majority does not fetch from resigns (check-quorum): it cannot commit, and should
not seem to lead. A node that has durably voted for itself takes no part in that epoch after a
restart (Resigned): it may have sent records that it then lost in the crash, and must not write
other records at their (offset, epoch).

The epoch and the vote are durable before any message that follows from them is sent, except a
candidate's requests for votes, which promise nothing. The table of
transitions below is complete; ``enter`` refuses any other.

The voter set in force is the last one in the log, from the moment it is appended until it is
truncated (KIP-853). A set differs from its predecessor by at most one replica, and is appended only
when the predecessor is committed, so every majority of one set meets every majority of the other. A
node that is not a voter is an Observer in every epoch. A removed voter is an exception: it takes
part, without counting itself, until it knows that its removal is committed, because it may be the
only node that can still commit it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from raftlog.errors import ErrorCode, FatalError
from raftlog.quorum.admission import MAX_EPOCH, Refusal, epoch_refusal, is_endpoint
from raftlog.quorum.campaign_reason import CampaignReason, campaign_reason
from raftlog.quorum.candidate import Candidate
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.events import PersistVote
from raftlog.quorum.follower import Follower
from raftlog.quorum.leader import Leader
from raftlog.quorum.node_state import NodeState
from raftlog.quorum.observer import Observer
from raftlog.quorum.prospective import Prospective
from raftlog.quorum.resigned import Resigned
from raftlog.quorum.role import Role
from raftlog.quorum.unattached import Unattached
from raftlog.storage.api import RecoveredLog, VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

SAME, HIGHER = "same epoch", "higher epoch"

TRANSITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    # Knows no leader. Leaves the role when the election timer ends, or when it learns of a leader
    # or a higher epoch.
    "unattached": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME,),
    },
    # Asks for pre-votes. If refused, it returns to its earlier role. If it votes for another node,
    # it becomes unattached.
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
    # Led or campaigned in this epoch, but no longer does. If it only campaigned, another node may
    # lead this epoch.
    "resigned": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME, HIGHER),
    },
    # Follows one leader for the whole epoch. A leader known only by a claim gives way to a proven
    # one.
    "follower": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME,),
    },
    # Follows any leader that it finds, until it becomes a voter.
    "observer": {
        "observer": (SAME, HIGHER),
        "follower": (SAME,),
        "unattached": (SAME,),
        "resigned": (SAME,),
    },
}


class LeaderHint(Protocol):
    """The fields that every response has: the error, and the epoch and leader that the responder
    knows.
    """

    error_code: int
    leader_id: int
    leader_epoch: int


class Node(NodeState):
    """A quorum node: its state, and the role that it has now."""

    role: Role

    def __init__(
        self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float
    ) -> None:
        super().__init__(config, recovered, rng, now)
        highest = max(self.vote.epoch, self.log.last_epoch)
        if highest > MAX_EPOCH:
            raise FatalError(
                f"epoch {highest} is above {MAX_EPOCH}, the highest there may be: nobody can be"
                " elected after it. If no other directory of the quorum is better, `raftlog"
                " storage recover` makes one that begins at a lower epoch"
            )
        if self.log.last_epoch > self.vote.epoch:
            # A crash came between the records and the epoch. This node cast no vote in that epoch:
            # it would be durable.
            self.set_vote(VoteState(self.log.last_epoch))
        self.role = self._first_role()
        self.role_stale = False
        self.announce_leader()
        self.role.enter()

    def _first_role(self) -> Role:
        """The role at startup, from the durable vote.

        A node that voted for itself is Resigned, even if nothing says that it won.
        """
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
        """Take the role that fits the new voter set."""
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
        """Take a role, if the table of transitions allows it. Raises FatalError if it does not."""
        old = self.role
        kind = SAME if role.epoch == old.epoch else HIGHER
        if role.epoch < old.epoch or kind not in TRANSITIONS[old.name].get(role.name, ()):
            raise FatalError(
                f"no way from {old.name} of epoch {old.epoch} to {role.name} of epoch {role.epoch}"
            )
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
        """Ask for pre-votes; or wait first, if another node should campaign before this one."""
        if self.epoch >= MAX_EPOCH:
            refusal = Refusal(
                ErrorCode.INVALID_REQUEST,
                "epoch",
                f"no epoch is left above {self.epoch}: recover the quorum",
            )
            self.refuse("Election", refusal)
            self.role.postpone_election(self.election_deadline())
            return
        until = self.stands_back_until()
        if until > self.now:
            self.role.postpone_election(until)
        else:
            self.campaign_reason = campaign_reason(self)
            self.enter(Prospective(self))

    def become_candidate(self) -> None:
        """Begin the next epoch with a vote for this node.

        It asks for the others' votes while its own is on the way to the disk: to ask is no vote.
        """
        silent_id, self.leader_id = self.leader_id, -1
        vote = VoteState(self.epoch + 1, self.config.node_id, self.config.directory_id)
        self.take_vote(vote)
        self.enter(Candidate(self, silent_id))
        self.out.append(PersistVote(vote))

    def become_leader(
        self, granting_voters: tuple[int, ...], early: Sequence[tuple[pb.FetchRequest, Any]] = ()
    ) -> None:
        """Lead: a majority has voted for this node, its own durable vote included.

        ``early``: the Fetches that have come meanwhile.
        """
        self.set_leader(self.config.node_id)
        self.wished_at = None
        self.end_hurry()
        self.enter(Leader(self, granting_voters, early))

    def become_resigned(self, preferred: tuple[int, ...]) -> None:
        """Stop leading, and tell the other voters, the ``preferred`` candidates first."""
        self.leader_id = -1
        self.knew_leader, self.campaign_reason = True, CampaignReason.NONE
        self.enter(Resigned(self, self.election_deadline(), preferred))

    def become_follower(
        self, leader_id: int, epoch: int, endpoint: str = "", *, doubts: bool = False
    ) -> None:
        """Follow the leader of ``epoch``, which is this one or a higher one; it listens at
        ``endpoint``, if that is known.

        ``doubts``: the leader was silent for the fetch timeout, and this node follows it only
        because it knows no other.
        """
        if epoch > self.epoch or leader_id != self.leader_id:
            self.end_hurry()
        self.knew_leader = True
        early = self.role.early_fetcher(leader_id) if epoch == self.epoch else None
        if not doubts:
            self.campaign_reason = CampaignReason.NONE
        if epoch > self.epoch:
            self.set_vote(VoteState(epoch, leader_id=leader_id))
        self.set_leader(
            leader_id, endpoint or (self.leader_endpoint if leader_id == self.leader_id else "")
        )
        self.enter(
            Follower(self, doubts=doubts, early=early) if self.takes_part else Observer(self)
        )

    def grant_vote(self, candidate_id: int, directory_id: str) -> None:
        """Give the vote of this epoch."""
        self.set_vote(replace(self.vote, voted_id=candidate_id, voted_directory_id=directory_id))
        self.role.on_vote_granted()

    def admit(self, epoch: int, field: str, *, proven: bool) -> Refusal | None:
        """Why this node refuses to enter ``epoch``, a higher one; None if it may.

        An unproven epoch uses up part of the allowance.
        """
        refusal = epoch_refusal(epoch, field)
        if refusal is None and not proven and not self.allowance.take(epoch - self.epoch, self.now):
            reason = f"epoch {epoch} is too far above {self.epoch} for an unproven claim"
            refusal = Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, field, reason)
        return refusal

    def learn(
        self, epoch: int, leader_id: int, endpoint: str = "", *, proven: bool = False
    ) -> Refusal | None:
        """Take the claim of another node that ``leader_id`` (-1: it knows none) leads ``epoch`` and
        listens at ``endpoint``, if not empty.

        The leader may be outside of this node's voter set: this log may lag behind. ``proven``: as
        in ``admission``. A refused claim changes nothing.
        """
        known = leader_id != self.config.node_id and (
            leader_id in self.voters or (leader_id >= 0 and endpoint != "")
        )
        if leader_id in self.lost and not self.takes_part:
            # An observer does not follow a leader that it knows to be dead; it goes on asking other
            # nodes.
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
            if self.vote.leader_id not in (-1, leader_id) and not (
                proven and self._leader_is_claimed()
            ):
                reason = f"two leaders in epoch {epoch}: {self.vote.leader_id} and {leader_id}"
                return Refusal(ErrorCode.INVALID_REQUEST, "leader_id", reason, contradiction=True)
            self.become_follower(leader_id, epoch, endpoint)
        return None

    def _knows_leader(self) -> bool:
        """Whether this node has led this epoch, or the leader of it has answered a Fetch."""
        return self.leader_confirmed or self.vote.leader_id == self.config.node_id

    def _leader_is_claimed(self) -> bool:
        """Whether this node knows the leader of this epoch only by a claim, which gives way to
        proof.
        """
        return not self.leader_confirmed and self.vote.leader_id != self.config.node_id

    def heed(self, response: LeaderHint, peer_id: int) -> bool:
        """Learn from a response who leads.

        False if that caused a transition: the caller then ignores the rest of the response.
        """
        if response.leader_epoch == self.epoch and response.leader_id == self.leader_id:
            # What it says is known. So it is with nearly every answer of a leader.
            return not self.halted
        before = self.role
        if response.leader_id == -1 and not self.takes_part:
            # An observer has nothing to do in an epoch that has no leader. [One of the peers that
            # it asks was removed, does not know it, and campaigns on, far ahead of everybody: an
            # observer that took its epoch would be refused by each leader.]
            return not self.halted
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
                if refusal.contradiction and self.is_proven(peer_id) and self._knows_leader():
                    self.log_conflict = (
                        f"{refusal.reason}: the directory of one of them was put back or copied,"
                        " and committed records may be lost"
                    )
        return self.role is before and not self.halted
