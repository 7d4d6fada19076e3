"""Traces followed by TLC, whichever module they are compared with: one run for some of them, what
became of each, and the command.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import tlc

from replay.errors import ReplayError
from simulation.cli import silence
from simulation.mutants.mutant import SeedMutant
from simulation.mutants.registry import SEEDED

TOGETHER = 20
"""Traces that are recorded before TLC follows them: most of the time of a short one is that of
starting.
"""
BRIEF_BYTES = 500_000
"""Size of the text of traces that TLC follows within some seconds."""
TIMEOUT_S = 1200.0
_END = re.compile(r'<<"(\w+)", (\d+), (\d+)>>')


class Followed(Protocol):
    """A trace, and how far TLC has followed it."""

    name: str
    followed: int

    @property
    def rejected(self) -> bool:
        """True if the specification cannot do one of its events."""

    @property
    def taken(self) -> Counter[str]:
        """Number of times that each action is taken."""


T = TypeVar("T", bound=Followed)


def module_of(name: str, traces: Iterable[Iterable[str]]) -> str:
    """Return events, written in TLA+, as the module of this name."""
    body = ">>,\n<<".join(",\n".join(one) for one in traces)
    return f"---- MODULE {name} ----\nEXTENDS Integers\nTraces == <<\n<<{body}>>\n>>\n====\n"


def configuration(bounds: Mapping[str, object], instead: str = "") -> str:
    """Return the configuration with which TLC follows traces. ``instead``: lines about definitions
    that take the place of others.
    """
    lines = ["SPECIFICATION TSpec", "CONSTANTS"]
    lines += [f"  {name} = {tlc._literal(value)}" for name, value in bounds.items()]
    lines += [instead] * bool(instead)
    lines += ["CHECK_DEADLOCK FALSE", "VIEW Place"]
    return "\n".join(lines) + "\n"


def follow(name: str, module: str, configured: str) -> Iterator[tuple[str, int, int]]:
    """Have TLC follow traces in NAMETrace.tla; yield what it prints of their ends: the kind, the
    index of the trace and the place in it.

    ``module``: text of the module NAMETraces. Raises SpecError.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / f"{name}Traces.tla").write_text(module)
        (directory / "case.cfg").write_text(configured)
        for file in (f"{name}.tla", f"{name}Trace.tla"):
            (directory / file).write_text((tlc.HERE / file).read_text())
        brief = [tlc.BRIEF] if len(module) < BRIEF_BYTES else []
        command = [*tlc.java(*brief), "-workers", "1", "-metadir", folder, "-nowarning"]
        try:
            done = subprocess.run(
                [*command, "-config", "case.cfg", f"{name}Trace.tla"],
                cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise tlc.SpecError(f"TLC did not follow the traces within {TIMEOUT_S:g} s") from None
    if "Model checking completed. No error has been found." not in done.stdout:
        at = max(0, done.stdout.find("Error:"))
        raise tlc.SpecError(f"TLC could not follow the traces: {done.stdout[at : at + 2000]}")
    for kind, number, place in _END.findall(done.stdout):
        yield kind, int(number) - 1, int(place)


def accepted(name: str, count: str, ended: str) -> str:
    """Return the line about a trace that the specification can do. ``ended``: why the trace ends
    before its run; empty: it does not.
    """
    return f"{name}: {count} accepted" + (f" (then: {ended})" if ended else "")


def rejected(trace: Followed, events: Sequence[Mapping[str, object]], why: str, shown: int) -> str:
    """Return the lines about a rejected trace, with ``shown`` events before the rejected one."""
    lines = [f"{trace.name}: event {trace.followed + 1} of {len(events)} {why}"]
    begin = max(0, trace.followed - shown)
    for number, event in enumerate(events[begin : trace.followed + 1], begin + 1):
        lines.append(f"  {number:>6} {' '.join(f'{k}={v}' for k, v in event.items())}")
    return "\n".join(lines)


def check_all(
    traces: Iterable[T],
    follow_some: Callable[[list[T]], None],
    report: Callable[[T], str],
    actions: Iterable[str],
    also: Callable[[list[T]], str] = lambda _: "",
) -> list[T]:
    """Follow traces, some together, and print what became of them.

    ``also``: a further count for the summary. Raises SpecError.
    """
    done: list[T] = []
    waiting = iter(traces)
    while some := list(islice(waiting, TOGETHER)):
        follow_some(some)
        print("\n".join(map(report, some)), flush=True)
        done += some
    taken: Counter[str] = sum((one.taken for one in done), Counter())
    print(
        f"{len(done)} traces, {sum(one.followed for one in done):,} events accepted,"
        f"{also(done)} {sum(one.rejected for one in done)} traces rejected"
    )
    print(", ".join(f"{action} {taken[action]:,}" for action in sorted(set(actions))))
    return done


def main(
    arguments: argparse.Namespace,
    recorded: Callable[[Iterable[int], int], Iterator[T]],
    broken: Callable[[Iterable[SeedMutant], int, int], Iterator[T]],
    check: Callable[[Iterable[T]], list[T]],
) -> int:
    """Follow traces of seeds, or of mutants; 0: the first are all accepted, each of the second is
    rejected at some seed.
    """
    silence()
    begin, _, end = arguments.seeds.partition(":")
    try:
        if not arguments.mutants:
            done = check(recorded(range(int(begin), int(end)), arguments.events))
            return 1 if any(one.rejected for one in done) else 0
        mutants = [SEEDED[name] for name in arguments.names]
        done = check(broken(mutants, arguments.events, int(end) - int(begin)))
    except (tlc.SpecError, ReplayError) as error:
        print(f"make spec: {error}", file=sys.stderr)
        return 2
    survived = {one.name for one in mutants}
    survived -= {one.name.partition(",")[0] for one in done if one.rejected}
    print(f"accepted in spite of their mutant: {', '.join(sorted(survived)) or 'none'}")
    return 1 if survived else 0
