"""Deliberate breakages of the replicas' rules: each must be caught by the random schedules.

Edits as in ``simulation.mutants``.
"""

from __future__ import annotations

from typing import NamedTuple

from simulation.mutants.edits import Edit

ISR = "broker.partition.isr"
LEADER = "broker.partition.leader:Leader"
RETENTION = "broker.partition.leader"
LEADER_ISR = "broker.partition.isr:LeaderIsr"


class Breakage(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    retains: bool = False
    """Where topics do not keep everything."""


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
                "broker.partition.follower:LeaderLink._take",
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
                "self.replica.log.flushed_end",
                "self.replica.log.end",
            ),
        ),
    ),
    Breakage(
        "acknowledged before the high watermark",
        (
            Edit(
                "broker.partition.client_requests:Produces._append",
                "for_commit=acks == ALL",
                "for_commit=False",
            ),
        ),
    ),
    Breakage(
        "logs are not compared",
        (
            Edit(
                "raftlog.quorum.log_state:LogEnds.divergence",
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
                "broker.partition.manager:Roles.reconsider",
                "current = registration is not None and registration.epoch == host.broker_epoch",
                "current = registration is not None",
            ),
        ),
    ),
    Breakage(
        "a broker that takes itself for fenced takes records",
        (
            Edit(
                "broker.partition.client_requests:Produces._check",
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
    Breakage(
        "what is not committed is dropped",
        (
            Edit(
                f"{RETENTION}:start_to_keep",
                "whole = run.end_offset < high_watermark",
                "whole = run is not runs.runs[-1]",
            ),
        ),
        retains=True,
    ),
    Breakage(
        "more is dropped than the topic is too large by",
        (
            Edit(
                f"{RETENTION}:start_to_keep",
                "too_much = 0 <= kept.size <= size - run.size",
                "too_much = 0 <= kept.size <= size",
            ),
        ),
        retains=True,
    ),
    Breakage(
        "the newest batch is dropped",
        (
            Edit(
                f"{RETENTION}:start_to_keep",
                "            if too_old and start < runs.last_base < high_watermark:\n"
                "                return runs.last_base\n",
                "            if too_old and run.end_offset == high_watermark:\n"
                "                return run.end_offset\n",
            ),
        ),
        retains=True,
    ),
    Breakage(
        "a follower below the log start is sent what there is",
        (
            Edit(
                "broker.partition.sessions:Session._name",
                "if named.fetch_offset < log.start or (",
                "if (",
            ),
        ),
        retains=True,
    ),
    Breakage(
        "a follower begins anew whatever it has",
        (
            Edit(
                "broker.partition.follower:Follower.begin_at",
                "if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):",
                "if log_start_offset < 0:",
            ),
            Edit(
                "broker.partition.sessions:Session._name",
                "        if diverging is not None:\n",
                "        if diverging is not None:\n"
                "            self.is_out_of_range(key, log.start)\n            return\n",
            ),
        ),
        retains=True,
    ),
    Breakage(
        "a log that was cut keeps what it knew of the rest",
        (
            Edit(
                "broker.partition.host:Host.truncate",
                "            replica.runs.truncate(end_offset)\n",
                "            pass\n",
            ),
        ),
        retains=True,
    ),
)
