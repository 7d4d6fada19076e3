"""Outcome of a simulated run, its transcript, and reports for people and for programs."""

import hashlib
import shlex
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from simulation.swarm.config import SwarmConfig

TRANSCRIPT_LINES = 400


@dataclass(slots=True)
class Outcome:
    """Outcome of a run."""

    seed: int
    config: SwarmConfig
    transcript: deque[str] = field(default_factory=lambda: deque(maxlen=TRANSCRIPT_LINES))
    digest: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    state_hash: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    looked_at: Counter[str] = field(default_factory=Counter)
    """Number of things checked, keyed ``Checker.thing``."""
    failure: BaseException | None = None


class Transcript:
    """Transcript of a run: the last lines are in its outcome, all of them in the digest."""

    def __init__(self, outcome: Outcome, now: Callable[[], float]) -> None:
        self._lines, self._now = outcome.transcript, now
        self._digest = hashlib.sha256()
        self._seen: dict[str, str] = {}

    def note(self, who: str, what: str) -> None:
        line = f"{self._now():.6f} {who} {what}"
        self._digest.update(line.encode() + b"\n")
        self._lines.append(line)

    def note_change(self, who: str, what: str) -> None:
        """Write a line, unless it repeats the last one about ``who``."""
        if self._seen.get(who) != what:
            self._seen[who] = what
            self.note(who, what)

    def digest(self) -> str:
        return self._digest.hexdigest()


def command(seed: int, config: SwarmConfig | None = None) -> str:
    line = f"raftlog debug simulate --seed {seed}"
    return line if config is None else f"{line} --config {shlex.quote(config.to_json())}"


class SimulatedRun(TypedDict):
    """One simulated cluster."""

    seed: int
    config: str
    """JSON for --config, which with the seed repeats the run."""
    failure: str
    virtual_s: float
    steps: int
    faults: dict[str, int]
    """Number of times that each fault happened."""
    operations: dict[str, int]
    looked_at: dict[str, int]
    state_hash: str
    digest: str
    """Equal for equal runs."""


def as_dict(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "seed": outcome.seed,
        "config": outcome.config.to_json(),
        "failure": "" if failure is None else f"{type(failure).__name__}: {failure}",
        "virtual_s": round(outcome.virtual_s, 3),
        "steps": outcome.steps,
        "faults": dict(sorted(outcome.faults.items())),
        "operations": dict(sorted(outcome.operations.items())),
        "looked_at": dict(sorted(outcome.looked_at.items())),
        "state_hash": outcome.state_hash,
        "digest": outcome.digest,
    }


def failure_report(outcome: Outcome, *, lines: int = 60) -> str:
    """Return why a run failed, its last steps, and the command that repeats it."""
    config = outcome.config
    shown = "\n".join(f"  {line[:240]}" for line in list(outcome.transcript)[-lines:])
    return (
        f"seed {outcome.seed} failed at {outcome.virtual_s:.6f} s:"
        f" {type(outcome.failure).__name__}: {outcome.failure}\nconfig: {config.to_json()}\nthe"
        f" last steps:\n{shown}\nagain: {command(outcome.seed, config)}"
    )
