"""Compare traces of the shipped code with the specification, step by step.

A simulated cluster is run from a seed, and ``spec/lao_trace.py`` records what the trackers of
its controllers and its brokers do. The events are translated to a TLA+ module, and TLC follows them
in ``LaoTrace.tla``: it accepts a trace, or names the first event that the specification cannot do.

Only the order of offsets matters to the rules, so those at which nothing happens are left out: the
others are numbered anew, from 1 on. Epochs are numbered in the order of their elections.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import following
import tlc
from lao_trace import Change, Entry, LaoTrace, Process

from simulation.checks.suite import all_checkers
from simulation.mutants.edits import edited
from simulation.mutants.mutant import SeedMutant
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig, draw

ACTIONS: Mapping[str, str] = {
    "write": "Write", "reg": "Register", "unf": "Unfence", "fen": "Fence", "commit": "Commit",
    "learn": "Learn", "elect": "Elect", "restore": "Restore", "move": "Answer", "anew": "Answer",
    "start": "Restart", "die": "Die", "grant": "Grant", "lease_ends": "LeaseEnds", "read": "Read",
}  # fmt: skip
"""Kind of event -> the action of Lao.tla that it is a step of."""
MANY = 1_000_000
OVERTAKEN = SwarmConfig(
    brokers=2, election_timeout_ms=100, writes_per_s=20.0, reads_per_s=2.0,
    faults={"overtaken": 1.0},
)  # fmt: skip
"""Leaders that receive the Fetches of the others so late that these have elected a successor."""
OVERTAKEN_EVENTS = 120


@dataclass
class Trace:
    """A translated trace."""

    name: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    brokers: int = 0
    epochs: int = 1
    restores: int = 0
    processes: int = 1
    """Most processes of one broker."""
    ended: str = ""
    """Reason why it ends before the run."""
    followed: int = 0
    """Steps that TLC has accepted."""
    broken: bool = False
    """True if the first rejected step breaks a promise, and is possible otherwise."""

    @property
    def rejected(self) -> bool:
        """True if the specification cannot do one of its steps."""
        return self.followed < len(self.steps)

    @property
    def taken(self) -> Counter[str]:
        """Number of times that each action is taken."""
        followed = self.steps[: self.followed]
        return Counter(ACTIONS[kind] for one in followed if (kind := one["t"]) in ACTIONS)


class Translator:
    """Translates the events of one trace."""

    def __init__(self, trace: Trace, events: Sequence[Entry]) -> None:
        self._trace, self._events = trace, events
        self._chosen = 1
        elections = [one for one in events if one["t"] in ("elect", "restore")]
        self._epochs = {one["e"]: number for number, one in enumerate(elections, 1)}
        self._first = elections[0]["end"] if elections else 0
        brokers = {one["p"][0] for one in events if one.get("p")}
        brokers |= {change.broker_id for one in events for change in one.get("changes", ())}
        self._brokers = {broker: number for number, broker in enumerate(sorted(brokers), 1)}
        self._offsets = sorted(self._used())
        self._logs: dict[int, list[dict[int, bool]]] = {1: [{}, {}]}
        """Epoch -> the unfenced brokers at each entry of its log."""
        self._newest = 1
        self._moves: dict[tuple[Any, ...], int] = {}
        """A report (process, epoch, offset applied, LAO known) -> the last step after which it is
        made.
        """
        self._leases: set[Process] = set()
        trace.brokers, trace.epochs = len(self._brokers), max(1, len(elections))

    def _used(self) -> set[int]:
        """The offsets at which something happens."""
        used: set[int] = set()
        for one in self._events:
            kind = one["t"]
            used.update(
                one[name]
                for name in ("n", "a", "k", "l", "wanted", "shown", "lao", "hw")
                if isinstance(one.get(name), int)
            )
            if isinstance(one.get("known"), int):
                used.add(one["known"])
            elif "known" in one:
                used.add(one["known"][0])
            if kind == "elect":
                used |= {one["end"], one["end"] - 1}
            elif kind == "restore":
                used |= {one["base"], one["base"] - 1}
            elif kind == "propose":
                used.update(range(one["end"] - len(one["changes"]), one["end"]))
        return {offset for offset in used if offset >= self._first}

    def _offset(self, offset: int) -> int:
        """The number of an offset; 0: none."""
        if offset < 0:
            return 0
        return 1 if offset < self._first else bisect_left(self._offsets, offset) + 2

    def _process(self, process: Process) -> tuple[int, int]:
        self._trace.processes = max(self._trace.processes, process[1])
        return self._brokers[process[0]], process[1]

    def translate(self) -> None:
        """Fill the trace with steps."""
        for at, event in enumerate(self._events):
            step = getattr(self, f"_{event['t']}", None)
            if step is not None:
                step(event, at)

    def _add(self, kind: str, **fields: Any) -> None:
        self._trace.steps.append({"t": kind, **fields})

    def _seen(self, event: Entry) -> dict[str, int]:
        """What the tracker says after the event; -1: LAO is not a feature of the log yet."""
        lao, known = event["lao"], event["known"]
        if lao == -2:
            return {"lao": -1, "known": -1}
        return {"lao": self._offset(lao), "known": self._offset(known)}

    # --- controllers -----------------------------------------------------------------------------

    def _elect(self, event: Entry, at: int) -> None:
        number = self._epochs[event["e"]]
        if number == 1:
            return
        source, kept = self._epochs.get(event["last"], 1), self._offset(event["end"] - 1)
        later = [
            one["n"]
            for one in self._events
            if one["t"] == "high" and self._epochs[one["e"]] == number - 1
        ]
        secret = max((self._offset(one) for one in later), default=0)
        secret = max(secret, self._chosen)
        self._logs[number] = self._logs[source][:kept]
        self._logs[number].append(self._logs[number][-1])
        self._newest = number
        self._chosen = secret
        step = {"t": "elect", "e": number, "from": source, "kept": kept, "secret": secret}
        step["hw"] = self._offset(event["hw"])
        self._trace.steps.append(step)

    def _restore(self, event: Entry, at: int) -> None:
        number = self._epochs[event["e"]]
        source, kept = self._epochs.get(event["last"], 1), self._offset(event["base"] - 1)
        self._logs[number] = log = self._logs[source][:kept]
        self._newest, self._chosen = number, kept
        self._trace.restores += 1
        self._add("restore", **{"e": number, "from": source, "kept": kept})
        log.append(log[-1])
        # The recovery has written more than one record, and the leader the next one.
        for _ in range(kept + 1, self._offset(event["end"])):
            log.append(log[-1])
            self._add("write", e=number, lao=-1, known=-1)

    def _propose(self, event: Entry, at: int) -> None:
        number, log = self._epochs[event["e"]], self._logs[self._epochs[event["e"]]]
        changes: list[Change] = event["changes"]
        begin, end = (bisect_left(self._offsets, event[name]) for name in ("base", "end"))
        for offset in self._offsets[begin:end]:
            back = event["end"] - offset
            unfenced = log[-1]
            step: dict[str, Any] = {"t": "write", "e": number}
            if back <= len(changes):
                change = changes[len(changes) - back]
                broker = self._brokers[change.broker_id]
                if change.kind == "reg":
                    assert change.process is not None
                    step |= {"t": "reg", "p": self._process(change.process)}
                    unfenced = {**unfenced, broker: False}
                elif unfenced.get(broker, False) == (change.kind == "fen"):
                    step |= {"t": change.kind, "b": broker}
                    unfenced = {**unfenced, broker: change.kind == "unf"}
            log.append(unfenced)
            last = offset == self._offsets[end - 1]
            seen = self._seen(event) if last else {"lao": -1, "known": -1}
            self._trace.steps.append({**step, **seen})

    def _high(self, event: Entry, at: int) -> None:
        number, offset = self._epochs[event["e"]], self._offset(event["n"])
        if number == self._newest:
            self._chosen = max(self._chosen, offset)
        self._add("high", e=number, n=offset)

    def _commit(self, event: Entry, at: int) -> None:
        number = self._epochs[event["e"]]
        kind = "commit" if number == self._newest else "learn"
        self._add(kind, e=number, n=self._offset(event["n"]), **self._seen(event))

    def _report(self, event: Entry, at: int) -> None:
        number = self._epochs[event["e"]]
        if event["p"] is None or event["a"] < 0:
            self._add("idle", e=number, **self._seen(event))
            return
        process = self._process(event["p"])
        applied, known = max(1, self._offset(event["a"])), self._offset(event["k"])
        made = self._moves.get((process, number, applied, known), 0)
        self._add("report", e=number, p=process, of=made, a=applied, k=known, **self._seen(event))

    # --- brokers ---------------------------------------------------------------------------------

    def _start(self, event: Entry, at: int) -> None:
        broker, number = self._process(event["p"])
        self._leases -= {(broker, number - 1)}
        if number > 1:
            self._add("start", b=broker)

    def _stop(self, event: Entry, at: int) -> None:
        self._lease_ends(event, at)
        later = self._events[at + 1 :]
        broker = event["p"][0]
        if not any(one["t"] == "start" and one["p"][0] == broker for one in later):
            self._add("die", b=self._brokers[broker])

    def _anew(self, event: Entry, at: int) -> None:
        self._add("anew", p=self._process(event["p"]), e=self._epochs[event["e"]])

    def _move(self, event: Entry, at: int) -> None:
        if event["e"] not in self._epochs:
            return
        lao, epoch = event["known"]
        self._add(
            "move",
            p=self._process(event["p"]),
            e=self._epochs[event["e"]],
            n=max(1, self._offset(event["n"])),
            l=self._offset(event["l"]),
            known={"l": self._offset(lao), "e": self._epochs[epoch] if lao >= 0 else 0},
            above=event["above"],
        )
        step = self._trace.steps[-1]
        self._moves[step["p"], step["e"], step["n"], step["known"]["l"]] = len(self._trace.steps)

    def _serves(self, event: Entry, at: int) -> None:
        self._add("serves", p=self._process(event["p"]))

    def _read(self, event: Entry, at: int) -> None:
        self._add(
            "read",
            p=self._process(event["p"]),
            mode=event["mode"],
            wanted=self._offset(event["wanted"]),
            shown=max(1, self._offset(event["shown"])),
            now=event["now"],
        )

    def _grant(self, event: Entry, at: int) -> None:
        if event["taken"]:
            process = self._process(event["p"])
            self._leases.add(process)
            self._add("grant", e=self._epochs[event["e"]], p=process)

    def _leased(self, event: Entry, at: int) -> None:
        self._add("leased", p=self._process(event["p"]))

    def _lease_ends(self, event: Entry, at: int) -> None:
        process = self._process(event["p"])
        if process in self._leases:
            self._leases.remove(process)
            self._add("lease_ends", p=process)


def record(seed: int, config: SwarmConfig, *, most: int, until_s: float = 0.0) -> Trace:
    """Run a cluster until there are ``most`` events, or the run ends, and return its trace.

    Raises SpecError if the run has failed.
    """
    recorder = LaoTrace(most)
    with recorder.recording():
        # What is judged after a recovery is taken over from the checkers before.
        checkers = [*all_checkers(), recorder] if config.recovery else [recorder]
        failure = run_swarm(seed, config, checkers, until_s=until_s).failure
    if failure is not None and not recorder.ended:
        raise tlc.SpecError(f"seed {seed}: the run has failed: {failure!r}")
    trace = Trace(f"seed {seed}", ended=recorder.ended)
    Translator(trace, recorder.events).translate()
    return trace


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"<<{', '.join(map(_literal, value))}>>"
    if isinstance(value, dict):
        return f"[{', '.join(f'{name} |-> {_literal(one)}' for name, one in value.items())}]"
    return str(value)


def config_of(traces: Sequence[Trace]) -> str:
    """Return the configuration with which TLC follows the traces."""
    brokers = max(one.brokers for one in traces) + 1
    bounds: dict[str, object] = {
        **tlc.LAO_BOUNDS,
        "Brokers": f"{{{', '.join(str(1 + i) for i in range(brokers))}}}",
        "AtFirst": "{0}",
        "MaxEpoch": max(one.epochs for one in traces) + 1,
        "MaxWrites": MANY,
        "MaxFences": MANY,
        "MaxRestores": max(one.restores for one in traces),
        "MaxRestarts": max(one.processes for one in traces) - 1,
        "MayDie": True,
        "Strict": True,
    }
    return following.configuration(bounds, "  Count <- NoCount")


def follow(traces: Sequence[Trace]) -> None:
    """Have TLC follow the traces, and note how far it came. Raises SpecError."""
    module = following.module_of("LaoTraces", (map(_literal, one.steps) for one in traces))
    for kind, index, at in following.follow("Lao", module, config_of(traces)):
        trace = traces[index]
        if kind == "followed":
            trace.followed = max(trace.followed, at)
        else:
            trace.broken = True


SHOWN = 4
"""Last accepted steps that are shown before a rejected one."""


def report(trace: Trace) -> str:
    """Return the result of a trace in one line; for a rejected one, with its last steps."""
    if not trace.rejected:
        return following.accepted(trace.name, f"{len(trace.steps)} events", trace.ended)
    why = "breaks a promise" if trace.broken else "is no step of the specification"
    return following.rejected(trace, trace.steps, why, SHOWN)


def recorded(seeds: Iterable[int], most: int) -> Iterator[Trace]:
    """Yield the traces of seeds."""
    for seed in seeds:
        yield record(seed, draw(seed), most=most)


def late_commit() -> Trace:
    """Return the trace of a deposed leader that learns of a commit after the election of its
    successor, and raises LAO. Raises SpecError if no such trace is found.

    No trace of a drawn config has shown it.
    """
    for seed in range(50):
        trace = record(seed, OVERTAKEN, most=OVERTAKEN_EVENTS)
        trace.name = f"a late commit, {trace.name}"
        if any(
            learned["t"] == "learn" and step.get("lao", 0) > learned["lao"]
            for learned in trace.steps
            for step in trace.steps
            if step.get("e") == learned.get("e")
        ):
            return trace
    raise tlc.SpecError("no deposed leader has learned of a commit")


def broken(mutants: Iterable[SeedMutant], most: int, seeds: int) -> Iterator[Trace]:
    """Yield traces of code that is broken on purpose."""
    for mutant in mutants:
        for seed in range(mutant.known, mutant.known + seeds):
            with edited(mutant.edits):
                try:
                    trace = record(seed, replace(mutant.config, recovery=False), most=most)
                except tlc.SpecError:
                    # Without a check that ends it, broken code may end a run in any way.
                    continue
            trace.name = f"{mutant.name}, seed {seed}"
            yield trace


def check_all(traces: Iterable[Trace]) -> list[Trace]:
    """Follow traces, and print what became of them. Raises SpecError."""
    return following.check_all(traces, follow, report, ACTIONS.values())


def main(arguments: argparse.Namespace) -> int:
    """Follow a late commit and traces of seeds, or traces of mutants: see
    :func:`following.main`.
    """
    return following.main(
        arguments,
        lambda seeds, most: chain((late_commit(),), recorded(seeds, most)),
        broken,
        check_all,
    )
