"""Deliberate breakages of the replicas' rules: each must be caught by the random schedules.

Edits as in ``simulation.mutants``.
"""

from __future__ import annotations

from typing import NamedTuple

from simulation.mutants.edits import Edit


class Breakage(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    retains: bool = False
    """Where topics do not keep everything."""


def breakage(name: str, *edits: tuple[str, str, str], retains: bool = False) -> Breakage:
    """Return a breakage of one or several edits: target, old and new text."""
    return Breakage(name, tuple(Edit(*one) for one in edits), retains)


# fmt: off
BREAKAGES = (
    breakage("a refused proposal is never reverted",
        ("broker.partition.isr:LeaderIsr._ineligible", "            self.state.revert()\n", "            proposal.waiting = True\n")),
    breakage("a follower acknowledges what is not flushed",
        ("broker.partition.follower:Follower.named", "replica.log.flushed_end", "replica.log.end"),
        ("broker.partition.follower:LeaderLink._take", "if not replica.durable:", "if False:")),
    breakage("the leader counts itself at its log end",
        ("broker.partition.isr:LeaderIsr.end_offset_of", "self.replica.log.flushed_end", "self.replica.log.end")),
    breakage("acknowledged before the high watermark",
        ("broker.partition.client_requests:Produces._append", "for_commit=acks == ALL", "for_commit=False")),
    breakage("logs are not compared",
        ("raftlog.quorum.log_state:LogEnds.divergence",
         "return None if epoch == last_epoch and offset <= end else (epoch, end)", "return None")),
    breakage("a follower does not truncate",
        ("broker.partition.follower:Follower._truncate", "self.host.truncate(replica, max(target, log.start))", "pass")),
    breakage("roles are taken from an image of a former life",
        ("broker.partition.manager:Roles.reconsider",
         "current = registration is not None and registration.epoch == host.broker_epoch", "current = registration is not None")),
    breakage("a broker that takes itself for fenced takes records",
        ("broker.partition.client_requests:Produces._check", "if not self.host.serves:", "if False:")),
    breakage("a replica that leaves the ISR is not waited for until that is committed",
        ("broker.partition.isr:IsrState._merge",
         "maximal = dict.fromkeys(self.committed)", "maximal = dict.fromkeys(self.committed if self.proposal is None else ())")),
    breakage("what is not committed is dropped",
        ("broker.partition.leader:start_to_keep", "whole = run.end_offset < high_watermark", "whole = run is not runs.runs[-1]"),
        retains=True),
    breakage("more is dropped than the topic is too large by",
        ("broker.partition.leader:start_to_keep", "too_much = 0 <= kept.size <= size - run.size", "too_much = 0 <= kept.size <= size"),
        retains=True),
    breakage("the newest batch is dropped",
        ("broker.partition.leader:start_to_keep",
         "            if too_old and start < runs.last_base < high_watermark:\n                return runs.last_base\n",
         "            if too_old and run.end_offset == high_watermark:\n                return run.end_offset\n"), retains=True),
    breakage("a follower below the log start is sent what there is",
        ("broker.partition.sessions:Session._name", "if named.fetch_offset < log.start or (", "if ("), retains=True),
    breakage("a follower begins anew whatever it has",
        ("broker.partition.follower:Follower.begin_at",
         "if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):", "if log_start_offset < 0:"),
        ("broker.partition.sessions:Session._name",
         "        if diverging is not None:\n",
         "        if diverging is not None:\n            self.is_out_of_range(key, log.start)\n            return\n"), retains=True),
    breakage("a log that was cut keeps what it knew of the rest",
        ("broker.partition.host:Host.truncate", "            replica.runs.truncate(end_offset)\n", "            pass\n"), retains=True),
)
# fmt: on
