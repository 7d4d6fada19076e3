"""One line of a story."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """What a line is."""

    NOTE = 1
    """Normal, and part of the story."""
    CHANGE = 2
    """Somebody did it, or it was planned."""
    TROUBLE = 3
    """Something did not work."""


@dataclass(frozen=True, slots=True)
class Line:
    """``code`` is for programs and never changes; ``text`` is for people.

    ``until_ms``: when it was over; ``at_ms`` for what takes no time, -1: it was not over at the end
    of the period, as far as is known. ``because``: what else was told that explains it.
    """

    at_ms: int
    code: str
    weight: Weight
    subject: str
    text: str
    until_ms: int = 0
    because: tuple[str, ...] = ()

    @property
    def lasted_ms(self) -> int:
        """How long it took; 0: no time, or nobody knows."""
        return max(0, self.until_ms - self.at_ms) if self.until_ms > 0 else 0


def took(ms: int) -> str:
    """A duration in words: 120 ms, 9.3 s, 4 min 10 s, 2 h 5 min."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
