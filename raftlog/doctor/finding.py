"""One thing that is wrong: what it is, what follows from it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is."""

    NOTICE = 1
    """Worth knowing; nothing needs to be done now."""
    DEGRADED = 2
    """Promises hold, but something is slower, unavailable in part, or one failure from an outage.
    """
    DOWN = 3
    """Writes, or a promise, are lost until somebody acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``code`` is for programs and never changes; the sentences are for people.

    ``command``: the next thing to type; empty: there is none that fits.
    """

    code: str
    severity: Severity
    cause: str
    consequence: str
    remedy: str
    command: str = ""
