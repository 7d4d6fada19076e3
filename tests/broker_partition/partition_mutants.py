"""Deliberate breakages of the replicas' rules: each must be caught by the random schedules.

Edits as in ``simulation.mutants``.
"""

from __future__ import annotations

from typing import NamedTuple

from simulation.mutants.edits import Edit

ISR = "broker.partition.isr"
LEADER = "broker.partition.leader:Leader"
LEADER_ISR = "broker.partition.leader_isr:LeaderIsr"


class Breakage(NamedTuple):
    name: str
    edits: tuple[Edit, ...]


BREAKAGES = (
    Breakage(
        "a refused proposal is never reverted",
        (
            Edit(
                f"{LEADER_ISR}._ineligible",
                "            self.state.revert()\n",
                "            proposal.waiting = True\n",
            ),
        ),
    ),
    Breakage(
        "a follower acknowledges what is not flushed",
        (
            Edit(
                "broker.partition.follower:Follower.named",
                "replica.log.flushed_end",
                "replica.log.end",
            ),
            Edit(
                "broker.partition.leader_link:LeaderLink._take",
                "if not replica.durable:",
                "if False:",
            ),
        ),
    ),
    Breakage(
        "the leader counts itself at its log end",
        (
            Edit(
                f"{LEADER_ISR}.end_offset_of",
                "self._leader.replica.log.flushed_end",
                "self._leader.replica.log.end",
            ),
        ),
    ),
    Breakage(
        "acknowledged before the high watermark",
        (
            Edit(
                "broker.partition.produces:Produces._append",
                "for_commit=acks == ALL",
                "for_commit=False",
            ),
        ),
    ),
    Breakage(
        "logs are not compared",
        (
            Edit(
                "raftlog.quorum.log_ends:LogEnds.divergence",
                "return None if epoch == last_epoch and offset <= end else (epoch, end)",
                "return None",
            ),
        ),
    ),
    Breakage(
        "a follower does not truncate",
        (
            Edit(
                "broker.partition.follower:Follower._truncate",
                "self.host.truncate(replica, max(target, log.start))",
                "pass",
            ),
        ),
    ),
    Breakage(
        "roles are taken from an image of a former life",
        (
            Edit(
                "broker.partition.roles:Roles.reconsider",
                "current = registration is not None and registration.epoch == host.broker_epoch",
                "current = registration is not None",
            ),
        ),
    ),
    Breakage(
        "a broker that takes itself for fenced takes records",
        (
            Edit(
                "broker.partition.produces:Produces._check",
                "if not self.host.serves:",
                "if False:",
            ),
        ),
    ),
    Breakage(
        "a replica that leaves the ISR is not waited for until that is committed",
        (
            Edit(
                f"{ISR}:IsrState._merge",
                "maximal = dict.fromkeys(self.committed)",
                "maximal = dict.fromkeys(self.committed if self.proposal is None else ())",
            ),
        ),
    ),
)
