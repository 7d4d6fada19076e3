"""Read-index rounds: proof that this node leads *now*, without clocks.

The leader hands out a number in its replies; a follower echoes the highest it has seen in its next
Fetch. A majority of echoes of n means: a majority was still in this epoch after round n began, so
nobody was elected before it began. Counting Fetches would not do: a delayed one was sent before its
sender voted for another.

Why: docs/decisions/003-read-index-rounds.md
"""

from __future__ import annotations


class Rounds:
    """The numbers of one epoch. 0 is never started."""

    def __init__(self) -> None:
        self.current = 0
        self.confirmed = 0
        self.last_shown = 0

    def request(self) -> int:
        """A round that begins now: the last one if no voter has been shown it yet, else a new
        one.
        """
        if self.last_shown >= self.current:
            self.current += 1
        return self.current

    def show(self) -> None:
        """A voter is being told the current number: who asks from here on needs another."""
        self.last_shown = self.current

    def confirm(self, number: int) -> bool:
        """A majority has echoed ``number``. Whether that is news."""
        if number <= self.confirmed:
            return False
        self.confirmed = number
        return True
