"""A vote for the next epoch that is stored before anybody asks for it.

While a leader still leads, it says who is to succeed it, and each voter stores its vote for that
one in the next epoch. It stays in its epoch: it follows, acknowledges, or leads. What a disk holds
ahead of its node promises nothing to anybody. It only decides in which state the node would come
back from a crash: in the next epoch, with its vote given. A node that comes back so has left the
epoch in which it has acknowledged, and tells its vote only after a look at its log as it is then.

So a running node is as free as if nothing were stored: it may vote for another in the next epoch,
which is stored as ever before it is told. But when the successor asks, and its log is good enough
*now*, what would have to be stored is on the disk already, and the answer goes at once.

That holds only while the prepared vote is the last that was handed to the disk. Whatever is handed
out behind it takes its place.

Why: docs/decisions/031-prepared-vote.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raftlog.quorum.admission import MAX_EPOCH
from raftlog.quorum.events import PrepareVote
from raftlog.storage.api import VoteState

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


@dataclass(slots=True)
class PreparedVote:
    """The vote that was handed to the disk last, and is of the next epoch.

    ``number``: of the write; equal votes may be written twice.
    """

    vote: VoteState
    number: int
    durable: bool = False

    def covers(self, vote: VoteState) -> bool:
        """Whether a node that acts on ``vote`` need not store it: a crash brings it back in that
        epoch, with that vote given, or with this one where it had given none. Who leads is no
        promise.
        """
        prepared, told = self.vote, replace(vote, leader_id=-1)
        return self.durable and told in (prepared, VoteState(prepared.epoch))


def prepare(node: Node, candidate_id: int, directory_id: str) -> None:
    """Have the vote of the next epoch stored, for a voter on the disk that it is known to have.

    Nothing happens if that is not sound, or while another vote is on its way to the disk.
    """
    vote = VoteState(node.epoch + 1, candidate_id, directory_id)
    if node.prepared is not None and node.prepared.vote == vote:
        return
    given, durable = node.vote, node.durable_vote
    settled = (given.epoch, given.voted_id) == (durable.epoch, durable.voted_id)
    mine = candidate_id != node.config.node_id or directory_id == node.config.directory_id
    if (
        settled
        and mine
        and node.is_voter
        and directory_id
        and node.voters.includes(candidate_id, directory_id)
        and vote.epoch <= MAX_EPOCH
    ):
        node.prepared = PreparedVote(vote, node.next_correlation_id())
        node.out.append(PrepareVote(vote, node.prepared.number))


def is_about_to_open(node: Node, epoch: int) -> bool:
    """Whether the leader has said that this node is to succeed it, in this epoch."""
    prepared = node.prepared
    return (
        prepared is not None
        and prepared.vote.epoch == epoch
        and prepared.vote.voted_id == node.config.node_id
        and node.role.name in ("follower", "prospective")
    )


def is_stored_for(node: Node, candidate_id: int, directory_id: str) -> bool:
    """Whether the vote of the next epoch is durable, and for this one."""
    vote = VoteState(node.epoch + 1, candidate_id, directory_id)
    return node.prepared is not None and node.prepared.durable and node.prepared.vote == vote


def withdraw(node: Node) -> None:
    """The transfer is given up: store the vote of this epoch again, when the disk has time.

    A restart would open the next epoch otherwise, and cost the leader its office.
    """
    if node.prepared is not None:
        node.prepared, node.leader_unsaved = None, True


def stored(node: Node, number: int) -> None:
    """The write with this number is durable."""
    if node.prepared is not None and node.prepared.number == number:
        node.prepared.durable = True
