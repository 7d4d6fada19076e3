"""Outcome of a simulated run, and its transcript."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.swarm.config import SwarmConfig

TRANSCRIPT_LINES = 400


@dataclass(slots=True)
class Outcome:
    """Outcome of a run."""

    seed: int
    config: SwarmConfig
    transcript: deque[str] = field(default_factory=lambda: deque(maxlen=TRANSCRIPT_LINES))
    """The last lines."""
    digest: str = ""
    """SHA-256 of the whole transcript."""
    faults: dict[str, int] = field(default_factory=dict)
    """Number of real occurrences of each fault."""
    operations: dict[str, int] = field(default_factory=dict)
    """Number of operations by kind and outcome."""
    state_hash: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    """Number of steps of the loop."""
    looked_at: dict[str, int] = field(default_factory=dict)
    """Number of things that each checker has checked: ``Checker.what``."""
    failure: BaseException | None = None


class Transcript:
    """Transcript of a run: the last lines are in its outcome, all of them in the digest."""

    def __init__(self, outcome: Outcome, now: Callable[[], float]) -> None:
        self._lines, self._now = outcome.transcript, now
        self._digest = hashlib.sha256()
        self._seen: dict[str, str] = {}

    def note(self, who: str, what: str) -> None:
        """Write a line, with the virtual time."""
        line = f"{self._now():.6f} {who} {what}"
        self._digest.update(line.encode() + b"\n")
        self._lines.append(line)

    def note_change(self, who: str, what: str) -> None:
        """Write a line, if it says something new about ``who``."""
        if self._seen.get(who) != what:
            self._seen[who] = what
            self.note(who, what)

    def digest(self) -> str:
        """SHA-256 of all lines so far."""
        return self._digest.hexdigest()
