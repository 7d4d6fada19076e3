"""Compare traces of the quorum's cores with the specification: ``QuorumTrace.tla`` follows what
``spec/quorum_trace.py`` records.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import following
import tlc
from lao_trace import TraceEndedError
from quorum_trace import QuorumTrace, Seen

from raftlog.quorum.core import Invariants
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant
from simulation.outcome import Outcome
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig, draw

ACTIONS: Mapping[str, str] = {
    "learn": "Learn", "follow": "Follow", "time_out": "TimeOut", "fall_back": "FallBack",
    "campaign": "Campaign", "persist": "Persist", "win": "Win", "resign": "Resign",
    "doubt": "Doubt", "granted_pre": "GrantPreVote", "granted": "Grant", "write": "Write",
    "voters": "ChangeVoters", "flush": "Flush", "acked": "Fetch", "fetched": "Answer",
    "truncated": "Truncate", "commit": "Commit", "freeze": "Freeze", "drop": "DropLog",
    "installing": "FetchSnapshot", "stored": "SnapshotStored", "restart": "Restart",
}  # fmt: skip
"""Kind of event -> the action of Quorum.tla that it is a step of."""
MANY = 1_000_000


@dataclass
class Trace:
    """A recorded trace, and how far TLC has followed it."""

    name: str
    recorder: QuorumTrace
    followed: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the trace."""
        return self.recorder.actions

    @property
    def rejected(self) -> bool:
        """True if the specification cannot do one of its events."""
        return self.followed < len(self.events)

    @property
    def taken(self) -> Counter[str]:
        """Number of times that each action is taken."""
        kinds = Counter(str(one["t"]) for one in self.events[: self.followed])
        kinds["voters"] = sum(bool(one.get("sets")) for one in self.events[: self.followed])
        return Counter({ACTIONS[kind]: count for kind, count in kinds.items() if kind in ACTIONS})


def record(seed: int, config: SwarmConfig, *, most: int = MANY) -> Trace:
    """Run a cluster, and return its trace.

    Left out: what a recovery of the log changes, and a fault that has a node break the rules.
    """
    faults = {name: rate for name, rate in config.faults.items() if name != "removed_campaigns"}
    config = replace(config, recovery=False, faults=faults)
    recorder = QuorumTrace(most)
    outcome: Outcome = run_swarm(seed, config, [recorder])
    if outcome.failure is not None and not isinstance(outcome.failure, TraceEndedError):
        recorder.ended = f"the run failed: {outcome.failure}"[:200]
    return Trace(f"seed {seed}", recorder)


def literal(value: object) -> str:
    """Return a value in TLA+."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Seen):
        return literal(value._asdict())
    if isinstance(value, tuple):
        return f"<<{', '.join(map(literal, value))}>>"
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(literal, sorted(value)))}}}"
    if isinstance(value, dict):
        fields = (
            f"{name} |-> {'{' + literal(one)[2:-2] + '}' if name == 'sets' else literal(one)}"
            for name, one in value.items()
        )
        return f"[{', '.join(fields)}]"
    return str(value)


def config_of(traces: Sequence[Trace]) -> str:
    """Return the configuration with which TLC follows traces of one configured voter set."""
    nodes = frozenset().union(*(one.recorder.nodes for one in traces))
    highest = max(one["after"].e for trace in traces for one in trace.events if "after" in one)
    limits = {name: MANY for name in tlc.QUORUM.bounds if name.startswith("Max")}
    bounds: dict[str, object] = {
        **tlc.QUORUM.bounds, **limits,
        "Nodes": literal(nodes), "Configured": literal(traces[0].recorder.configured),
        "Nobody": 0, "MaxEpoch": highest + 1, "PreVotes": True, "SlowVotes": True,
    }  # fmt: skip
    return following.configuration(bounds)


def follow(traces: Sequence[Trace]) -> None:
    """Have TLC follow the traces, those of one configured voter set together, and note how far it
    came. Raises SpecError.
    """
    for configured in sorted({tuple(sorted(one.recorder.configured)) for one in traces}):
        some = [one for one in traces if tuple(sorted(one.recorder.configured)) == configured]
        module = following.module_of("QuorumTraces", (map(literal, one.events) for one in some))
        for kind, index, place in following.follow("Quorum", module, config_of(some)):
            if kind == "followed":
                some[index].followed = max(some[index].followed, place)


SHOWN = 6
"""Last accepted events that are shown before a rejected one."""


def report(trace: Trace) -> str:
    """Return the result of a trace in one line; for a rejected one, with its last events."""
    recorder = trace.recorder
    if not trace.rejected:
        count = f"{len(trace.events)} events of {recorder.steps} steps"
        return following.accepted(trace.name, count, recorder.ended)
    return following.rejected(trace, trace.events, "is no step of the specification", SHOWN)


def recorded(seeds: Iterable[int], most: int) -> Iterator[Trace]:
    """Yield the traces of seeds."""
    for seed in seeds:
        yield record(seed, draw(seed), most=most)


def _nothing(_self: Invariants) -> None:
    pass


def broken(mutants: Iterable[SeedMutant], most: int, seeds: int) -> Iterator[Trace]:
    """Yield traces of cores that are broken on purpose, and do not check themselves."""
    unchecked = patch.multiple(Invariants, check=_nothing, check_constant=_nothing)
    for mutant in mutants:
        for seed in range(mutant.known, mutant.known + seeds):
            with edited(mutant.edits), unchecked:
                trace = record(seed, mutant.config, most=most)
            trace.name = f"{mutant.name}, seed {seed}"
            yield trace


def _steps(done: list[Trace]) -> str:
    return f" {sum(one.recorder.steps for one in done):,} steps of cores,"


def check_all(traces: Iterable[Trace]) -> list[Trace]:
    """Follow traces, and print what became of them. Raises SpecError."""
    return following.check_all(traces, follow, report, ACTIONS.values(), _steps)


def main(arguments: argparse.Namespace) -> int:
    """Follow traces of seeds, or of mutants: see :func:`following.main`."""
    return following.main(arguments, recorded, broken, check_all)
