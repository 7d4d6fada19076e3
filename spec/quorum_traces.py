"""Compare traces of the quorum's cores with the specification: ``QuorumTrace.tla`` follows what
``spec/quorum_trace.py`` records.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tlc
from lao_trace import TraceEndedError
from quorum_trace import QuorumTrace, Seen

from raftlog.quorum.core import Invariants
from replay.errors import ReplayError
from simulation.cli import silence
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant
from simulation.mutants.registry import SEEDED
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
        """Whether the specification cannot do one of its events."""
        return self.followed < len(self.events)

    @property
    def taken(self) -> Counter[str]:
        """How often each action is taken."""
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


def module_of(traces: Sequence[Trace]) -> str:
    """Return the traces as a TLA+ module."""
    texts = [",\n".join(map(literal, one.events)) for one in traces]
    body = ">>,\n<<".join(texts)
    return f"---- MODULE QuorumTraces ----\nTraces == <<\n<<{body}>>\n>>\n====\n"


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
    lines = ["SPECIFICATION TSpec", "CONSTANTS"]
    lines += [f"  {name} = {tlc._literal(value)}" for name, value in bounds.items()]
    lines += ["CHECK_DEADLOCK FALSE", "VIEW Place"]
    return "\n".join(lines) + "\n"


def follow(traces: Sequence[Trace], *, timeout_s: float = 1200.0) -> None:
    """Have TLC follow traces of one configured voter set, and note how far it came.

    Raises SpecError.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "QuorumTraces.tla").write_text(module_of(traces))
        (directory / "case.cfg").write_text(config_of(traces))
        for module in ("Quorum.tla", "QuorumTrace.tla"):
            (directory / module).write_text((tlc.HERE / module).read_text())
        command = [*tlc.java(), "-workers", "1", "-metadir", name, "-nowarning"]
        try:
            done = subprocess.run(
                [*command, "-config", "case.cfg", "QuorumTrace.tla"],
                cwd=name, capture_output=True, text=True, check=False, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise tlc.SpecError(f"TLC did not follow the traces within {timeout_s:g} s") from None
    if "Model checking completed. No error has been found." not in done.stdout:
        at = max(0, done.stdout.find("Error:"))
        raise tlc.SpecError(f"TLC could not follow the traces: {done.stdout[at : at + 2000]}")
    for number, place in re.findall(r'<<"followed", (\d+), (\d+)>>', done.stdout):
        trace = traces[int(number) - 1]
        trace.followed = max(trace.followed, int(place))


SHOWN = 6
"""Last accepted events that are shown before a rejected one."""


def report(trace: Trace) -> str:
    """Return what became of a trace: one line, and of a rejected one its last events."""
    count, steps = len(trace.events), trace.recorder.steps
    if not trace.rejected:
        ended = f" (then: {trace.recorder.ended})" if trace.recorder.ended else ""
        return f"{trace.name}: {count} events of {steps} steps accepted{ended}"
    lines = [f"{trace.name}: event {trace.followed + 1} of {count} is no step of the specification"]
    begin = max(0, trace.followed - SHOWN)
    for number, event in enumerate(trace.events[begin : trace.followed + 1], begin + 1):
        lines.append(f"  {number:>6} {' '.join(f'{k}={v}' for k, v in event.items())}")
    return "\n".join(lines)


TOGETHER = 20
"""Traces that are recorded before TLC follows them."""


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


def check_all(traces: Iterable[Trace]) -> list[Trace]:
    """Follow traces, some together, and print what became of them. Raises SpecError."""
    done: list[Trace] = []
    waiting = iter(traces)
    while some := list(islice(waiting, TOGETHER)):
        for configured in sorted({tuple(sorted(one.recorder.configured)) for one in some}):
            follow([one for one in some if tuple(sorted(one.recorder.configured)) == configured])
        print("\n".join(map(report, some)), flush=True)
        done += some
    taken: Counter[str] = sum((one.taken for one in done), Counter())
    print(
        f"{len(done)} traces, {sum(one.followed for one in done):,} events accepted,"
        f" {sum(one.recorder.steps for one in done):,} steps of cores,"
        f" {sum(one.rejected for one in done)} traces rejected"
    )
    print(", ".join(f"{action} {taken[action]:,}" for action in sorted(ACTIONS.values())))
    return done


def main(arguments: argparse.Namespace) -> int:
    """Follow traces of seeds, or of mutants; 0: the first are all accepted, each of the second is
    rejected at some seed.
    """
    silence()
    begin, _, end = arguments.seeds.partition(":")
    try:
        if not arguments.mutants:
            done = check_all(recorded(range(int(begin), int(end)), arguments.events))
            return 1 if any(one.rejected for one in done) else 0
        mutants = [SEEDED[name] for name in arguments.names]
        done = check_all(broken(mutants, arguments.events, int(end) - int(begin)))
    except (tlc.SpecError, ReplayError) as error:
        print(f"make spec: {error}", file=sys.stderr)
        return 2
    accepted = {one.name for one in mutants}
    accepted -= {one.name.partition(",")[0] for one in done if one.rejected}
    print(f"accepted in spite of their mutant: {', '.join(sorted(accepted)) or 'none'}")
    return 1 if accepted else 0
