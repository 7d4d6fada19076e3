"""Mutants of votes that are stored ahead of a transfer."""

from __future__ import annotations

from simulation.mutants.configs import HANDED_OVER, WAITED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "prepared-vote-not-durable",
        "a vote that is being stored ahead is given before it is on the disk",
        (
            Edit(
                "raftlog.quorum.prepared_vote:PreparedVote.covers",
                "self.durable and told in",
                "told in",
            ),
        ),
        HANDED_OVER,
        "transfers, and disks that are slow",
        known=4,
    ),
    Mutant(
        "prepared-vote-for-nobody",
        "what is stored ahead is the next epoch without the vote: a node that comes back has it still",
        (
            Edit(
                "raftlog.quorum.prepared_vote:prepare",
                "PrepareVote(vote, node.prepared.number)",
                "PrepareVote(VoteState(vote.epoch), node.prepared.number)",
            ),
        ),
        HANDED_OVER,
        "transfers",
    ),
    Mutant(
        "prepared-vote-without-a-look-at-the-log",
        "a vote that is stored ahead is given to its candidate, however short its log is",
        (
            Edit(
                "raftlog.quorum.requests:_grants",
                "if node.vote.leader_id != -1 or not up_to_date:",
                "if node.vote.leader_id != -1 or not (up_to_date or node.prepared is not None):",
            ),
            Edit(
                "raftlog.quorum.requests:_grants",
                "return up_to_date and node.role.grants_pre_vote()",
                "return (up_to_date or node.prepared is not None) and node.role.grants_pre_vote()",
            ),
        ),
        HANDED_OVER,
        "leaders that die in a transfer",
        known=29,
    ),
    Mutant(
        "prepared-vote-outlives-another",
        "a vote that is stored ahead counts although it was withdrawn, and another stored behind it",
        (
            Edit(
                "raftlog.quorum.node_state:NodeState.finish_step",
                "isinstance(one, VOTES)",
                "isinstance(one, ())",
            ),
            Edit(
                "raftlog.quorum.prepared_vote:withdraw",
                "node.prepared, node.leader_unsaved = None, True",
                "node.leader_unsaved = True",
            ),
        ),
        HANDED_OVER,
        "transfers that are given up, and others that campaign meanwhile",
        known=29,
    ),
    Mutant(
        "given-vote-counts-in-every-epoch",
        "the vote that a leader gives its successor unasked is counted in later elections, too",
        (
            Edit(
                "raftlog.quorum.candidate:Candidate._count_given",
                "response.leader_epoch == self.epoch and peer_id",
                "peer_id",
            ),
        ),
        HANDED_OVER,
        "transfers, and leaders that die after them",
    ),
    Mutant(
        "leader-saved-over-prepared-vote",
        "who leads is saved behind a vote that is stored ahead, and takes its place",
        (
            Edit(
                "raftlog.replica.replica:Replica._prepare_vote",
                "self._forget_leader_save()",
                "pass",
            ),
        ),
        HANDED_OVER,
        "transfers soon after elections",
    ),
    Mutant(
        "wait-ends-with-the-leadership",
        "a committed write that waits for brokers is answered for good when its leader resigns",
        (
            Edit(
                "raftlog.client.controller_client:_wait_on",
                "if not response.write.leadership_lost:",
                "if response.write.leadership_lost or True:",
            ),
        ),
        WAITED,
        "transfers, and writes that wait for brokers",
        known=1,
    ),
    Mutant(
        "continued-wait-executes-again",
        "a request to continue the wait of a committed write executes that write a second time",
        (
            Edit(
                "controller.decider:Decider.decide",
                "if continues_wait:",
                "if continues_wait and False:",
            ),
            Edit(
                "controller.decider:Decider.decide",
                "and not continues_wait",
                "",
            ),
        ),
        WAITED,
        "transfers, and writes that wait for brokers",
        known=1,
    ),
)
