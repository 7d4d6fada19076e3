"""Reports of a run, for people and for programs."""

from __future__ import annotations

import shlex
from typing import Any, TypedDict

from simulation.outcome import Outcome
from simulation.swarm.config import SwarmConfig


def command(seed: int, config: SwarmConfig | None = None) -> str:
    """Return the one command that replays exactly this run."""
    line = f"raftlog debug simulate --seed {seed}"
    return line if config is None else f"{line} --config {shlex.quote(config.to_json())}"


class SimulatedRun(TypedDict):
    """One simulated cluster."""

    seed: int
    config: str
    """JSON, for --config: it runs again with the seed."""
    failure: str
    """Empty: every check passed."""
    virtual_s: float
    steps: int
    faults: dict[str, int]
    """How often each fault happened."""
    operations: dict[str, int]
    looked_at: dict[str, int]
    """How much each check has seen."""
    state_hash: str
    digest: str
    """Equal for equal runs."""


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Return a :class:`SimulatedRun`: everything but the transcript."""
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
    """Why a run failed, its last steps, and how to have it again."""
    config = outcome.config
    shown = "\n".join(f"  {line[:240]}" for line in list(outcome.transcript)[-lines:])
    return (
        f"seed {outcome.seed} failed at {outcome.virtual_s:.6f} s:"
        f" {type(outcome.failure).__name__}: {outcome.failure}\nconfig: {config.to_json()}\nthe"
        f" last steps:\n{shown}\nagain: {command(outcome.seed, config)}"
    )
