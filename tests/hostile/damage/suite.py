"""The cases: a copy of a base, one damage, and the readers' results."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .bases import Base, make_bases
from .judge import problem
from .readers import READERS
from .worker import Worker
from .wounds import Wound, drawn, inflict, systematic

WEIGHTS = {
    "closed": 3,
    "killed": 4,
    "late-closed": 3,
    "late-killed": 3,
    "broker-closed": 3,
    "broker-killed": 3,
    "export": 4,
    "config": 1,
}


@dataclass
class Report:
    cases: int = 0
    questions: Counter[str] = field(default_factory=Counter)
    """Number of readers asked, by base."""
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def summary(self) -> str:
        """A few lines."""
        asked = sum(self.questions.values())
        lines = [
            f"{self.cases} damages, {asked} questions in {self.took_s:.0f} s: {len(self.problems)}"
            " wrong"
        ]
        lines += [f"  {name}: {count}" for name, count in sorted(self.outcomes.items())]
        return "\n".join(lines)


def run(
    scratch: Path, cases: int, seed: int, *, only: str = "", readers_per_case: int = 0,
    show: Callable[[str], Any] = lambda _: None,
) -> Report:  # fmt: skip
    """Run ``cases`` damages, the systematic ones first in at most half of them.
    ``readers_per_case`` 0: all.
    """
    bases = {base.name: base for base in make_bases(scratch / "bases", seed)}
    report, worker, rng = Report(), Worker(), Random(f"damage {seed}")
    began = time.monotonic()
    try:
        sound = {
            name: _ask(worker, base, None, scratch / "case", list(READERS[base.kind]))
            for name, base in bases.items()
        }
        for name, said in sound.items():
            wrong = {reader: one for reader, one in said.items() if one["code"]}
            assert not wrong, f"{name}: {wrong}"
        for number, (base, wound) in enumerate(_cases(list(bases.values()), cases, seed)):
            names = list(READERS[base.kind])
            if readers_per_case:
                names = sorted(
                    rng.sample(names, min(readers_per_case, len(names))), key=names.index
                )
            if base.name.startswith(only):
                said = _ask(worker, base, wound, scratch / "case", names)
                _judged(report, base, wound, number, sound[base.name], said, show)
    finally:
        worker.close()
    report.took_s = time.monotonic() - began
    return report


def _cases(bases: list[Base], cases: int, seed: int) -> list[tuple[Base, Wound]]:
    rng = Random(f"wounds {seed}")
    found = [(base, wound) for base in bases for wound in systematic(base)]
    rng.shuffle(found)
    found = found[: cases // 2]
    weights = [WEIGHTS[base.name] for base in bases]
    while len(found) < cases:
        (base,) = rng.choices(bases, weights)
        found.append((base, drawn(base, rng)))
    return found


def _ask(
    worker: Worker, base: Base, wound: Wound | None, where: Path, readers: list[str]
) -> dict[str, Any]:
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(base.directory, where)
    if wound is not None:
        inflict(wound, where)
    return worker.read(base.kind, where, readers)


def _judged(
    report: Report, base: Base, wound: Wound, number: int, sound: dict[str, Any], said: dict[str, Any],
    show: Callable[[str], Any],
) -> None:  # fmt: skip
    report.cases += 1
    if "crash" in said:
        report.problems.append(f"case {number}: {base.name}: {wound}: {said['crash']}")
        show(report.problems[-1])
        return
    for reader, found in said.items():
        report.questions[base.name] += 1
        wrong = problem(base, wound, reader, sound[reader], found)
        same = found["code"] == 0 and found["out"] == sound[reader]["out"]
        outcome = (
            "wrong"
            if wrong
            else (
                "as undamaged"
                if same
                else f"exit {found['code']}"
                if found["code"]
                else "older or less, as allowed"
            )
        )
        report.outcomes[f"{base.kind} {reader}: {outcome}"] += 1
        if wrong:
            report.problems.append(f"case {number}: {base.name}: {wound}: {reader}: {wrong}")
            show(report.problems[-1])
