"""The roles of a node, and the transitions between them.

Theory of operation
-------------------

Time is divided into epochs, each with at most one leader. A voter grants one vote in an epoch and
never forgets it, so two leaders of one epoch would need two majorities without a common voter. A
vote goes only to a candidate whose log is at least as complete as the voter's (Raft 5.4.1), so a
leader has everything that a majority made durable before it was elected: everything committed.

Before a node campaigns in a new epoch, it asks whether it could win (pre-vote, KIP-996). It is then
Prospective: it changes nothing durable and does not disturb nodes that hear a leader. If a majority
would vote for it, it becomes a Candidate in the next epoch. It counts its own vote, like any other,
once the vote is durable. The leader starts its epoch with a record of its own (LeaderChange). Its
high watermark advances only when a majority has flushed that record, which commits everything
before it, too (Raft 5.4.2).

Followers fetch. The offset of a Fetch is the acknowledgement, so a follower sends it after the
flush. The leader also counts its own log only up to its flushed offset, although it sends records
before it flushes them. Where the logs differ, the leader answers with (epoch, end offset) and the
follower truncates, epoch by epoch, never below its high watermark.

A leader from which no majority fetches resigns (check-quorum), as it cannot commit and should not
seem to lead. A node that has durably voted for itself does not participate in that epoch after a
restart (Resigned): it may have sent records that it then lost in the crash, and must not write
other records at their (offset, epoch).

The epoch and the vote are durable before any message that follows from them is sent, except a
candidate's requests for votes, which promise nothing. The table of transitions below is complete;
``enter`` refuses any other.

The current voter set is the last one in the log, from the moment it is appended until it is
truncated (KIP-853). A set differs from its predecessor by at most one replica, and is appended only
when the predecessor is committed, so every majority of one set intersects every majority of the
other. A node that is not a voter is an Observer in every epoch. A removed voter is an exception: it
participates, without counting itself, until it knows that its removal is committed, because it may
be the only node that can still commit it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from raftlog.errors import ErrorCode, FatalError
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.quorum.admission import MAX_EPOCH, Refusal
from raftlog.quorum.campaign import Candidate, Prospective
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.election_state import CampaignReason
from raftlog.quorum.events import PersistVote
from raftlog.quorum.follower import Follower, Observer, Resigned, Unattached
from raftlog.quorum.leader import Leader
from raftlog.quorum.node import Node, Role
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

SAME, HIGHER = "same epoch", "higher epoch"

TRANSITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    # Knows no leader. Leaves the role when the election timer expires, or when it learns of a
    # leader or a higher epoch.
    "unattached": {
        "prospective": (SAME,),
        "follower": (SAME, HIGHER),
        "unattached": (HIGHER,),
        "observer": (SAME,),
    },
    # Requests pre-votes. If refused, it returns to its earlier role. If it votes for another node,
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
    # Never follows another node in its own epoch.
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
    # Follows any leader that it learns of, until it becomes a voter.
    "observer": {
        "observer": (SAME, HIGHER),
        "follower": (SAME,),
        "unattached": (SAME,),
        "resigned": (SAME,),
    },
}


class RaftNode(Node):
    """A node that moves through the roles of ``TRANSITIONS``."""

    def __init__(
        self, config: QuorumConfig, recovered: RecoveredLog, rng: random.Random, now: float
    ) -> None:
        super().__init__(config, recovered, rng, now)
        highest = max(self.vote.epoch, self.log.last_epoch)
        if highest > MAX_EPOCH:
            raise FatalError(
                f"epoch {highest} is above {MAX_EPOCH}, the highest allowed epoch: no node can be"
                " elected after it. If no other directory of the quorum is better, `raftlog"
                " storage recover` makes one that begins at a lower epoch"
            )
        if self.log.last_epoch > self.vote.epoch:
            # A crash occurred after the records were written and before the epoch was. This node
            # granted no vote in that epoch: it would be durable.
            self.set_vote(VoteState(self.log.last_epoch))
        self.role: Role = self._first_role()
        self.role_stale = False
        self.announce_leader()
        self.role.enter()

    def _first_role(self) -> Role:
        """Return the role at startup, from the durable vote.

        A node that voted for itself is Resigned, even if nothing shows that it won.
        """
        me, vote = self.config.node_id, self.vote
        alone = len(self.voters) == 1 and self.is_voter
        timer = self.now if alone else self.election_deadline()
        if me not in (vote.voted_id, vote.leader_id) and vote.leader_id in self.voters:
            self.leader_id = vote.leader_id
        if not self.participates:
            return Observer(self)
        if me in (vote.voted_id, vote.leader_id):
            return Resigned(self, timer)
        if self.leader_id != -1:
            return Follower(self)
        if self.is_voter:
            self.start_fast_election()
        return Unattached(self, timer)

    @override
    def settle_role(self) -> None:
        self.role_stale = False
        self.announce_peers()
        name, me = self.role.name, self.config.node_id
        if self.participates and name == "observer":
            if self.leader_id != -1:
                self.enter(Follower(self))
            elif me in (self.vote.voted_id, self.vote.leader_id):
                self.enter(Resigned(self, self.election_deadline()))
            else:
                self.enter(Unattached(self, self.election_deadline()))
        elif not self.participates and name not in ("observer", "leader", "resigned"):
            self.enter(Observer(self))
        else:
            self.role.on_voters_changed()

    def enter(self, role: Role) -> None:
        """Enter a role if the table of transitions allows it. Raises FatalError if it does not."""
        old = self.role
        kind = SAME if role.epoch == old.epoch else HIGHER
        if role.epoch < old.epoch or kind not in TRANSITIONS[old.name].get(role.name, ()):
            raise FatalError(
                f"no transition is allowed from {old.name} in epoch {old.epoch} to {role.name} in"
                f" epoch {role.epoch}"
            )
        old.leave()
        self.role = role
        self.announce_leader()
        role.enter()

    @override
    def become_unattached(self, epoch: int) -> None:
        timer = self.role.election_timer
        if epoch > self.epoch:
            self.set_vote(VoteState(epoch))
            if self.fast_election:
                timer = self.now + self.backoff_s()
        else:
            timer = None
        self.leader_id = -1
        if not self.participates:
            self.enter(Observer(self))
        else:
            self.enter(Unattached(self, self.election_deadline() if timer is None else timer))

    @override
    def become_prospective(self) -> None:
        if self.epoch >= MAX_EPOCH:
            refusal = Refusal(
                ErrorCode.INVALID_REQUEST,
                "epoch",
                f"epoch {self.epoch} is the last one: no election is possible until the quorum is"
                " recovered",
            )
            self.refuse("Election", refusal)
            self.role.postpone_election(self.election_deadline())
            return
        until = self.election_backoff_until()
        if until > self.now:
            self.role.postpone_election(until)
        else:
            self.campaign_reason = self._next_campaign_reason()
            self.enter(Prospective(self))

    def _next_campaign_reason(self) -> CampaignReason:
        before = self.campaign_reason
        if isinstance(self.role, Follower):
            if self.fast_election:
                gone = self.lost_leader == self.leader_id
                return CampaignReason.LEADER_GONE if gone else CampaignReason.LEADER_RESIGNED
            timer = self.role.election_timer
            timed_out = timer is None or self.now >= timer
            return CampaignReason.FETCH_TIMEOUT if timed_out else CampaignReason.ASKED_BY_ANOTHER
        if before:
            # An election was lost: keep the first reason.
            return before
        return CampaignReason.ELECTION_TIMEOUT if self.knew_leader else CampaignReason.COLD_START

    @override
    def become_candidate(self) -> None:
        # The vote requests leave while this node's own vote is being written: a request is not a
        # vote.
        silent_id, self.leader_id = self.leader_id, -1
        vote = VoteState(self.epoch + 1, self.config.node_id, self.config.directory_id)
        self.adopt_vote(vote)
        self.enter(Candidate(self, silent_id))
        self.out.append(PersistVote(vote))

    @override
    def become_leader(
        self, granting_voters: tuple[int, ...], early: Sequence[tuple[pb.FetchRequest, Any]] = ()
    ) -> None:
        self.set_leader(self.config.node_id)
        self.election_deferred_at = None
        self.end_fast_election()
        self.enter(Leader(self, granting_voters, early))

    @override
    def become_resigned(self, preferred: tuple[int, ...]) -> None:
        self.leader_id = -1
        self.knew_leader, self.campaign_reason = True, CampaignReason.NONE
        self.enter(Resigned(self, self.election_deadline(), preferred))

    @override
    def become_follower(
        self, leader_id: int, epoch: int, endpoint: str = "", *, doubts: bool = False
    ) -> None:
        if epoch > self.epoch or leader_id != self.leader_id:
            self.end_fast_election()
        self.knew_leader = True
        before, early = self.role, None
        if epoch == self.epoch and isinstance(before, Unattached):
            early = before.fetcher_of(leader_id)
        if not doubts:
            self.campaign_reason = CampaignReason.NONE
        if epoch > self.epoch:
            self.set_vote(VoteState(epoch, leader_id=leader_id))
        self.set_leader(
            leader_id, endpoint or (self.leader_endpoint if leader_id == self.leader_id else "")
        )
        self.enter(
            Follower(self, doubts=doubts, early=early) if self.participates else Observer(self)
        )
