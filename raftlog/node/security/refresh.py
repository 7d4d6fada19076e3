"""When to fetch the issuer's keys again: a decision about times alone."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.clock import NEVER


@dataclass(slots=True)
class RefreshPlan:
    """Every ``refresh_s``, after a failure every ``backoff_s``; and at once for a key that is not
    known, but not within ``backoff_s`` of the last fetch: anybody can write an unknown id into a
    token.
    """

    refresh_s: float
    backoff_s: float
    due: float = 0.0
    """When the next fetch begins by itself."""
    _fetching: bool = False
    _not_before: float = 0.0

    def begin(self, now: float, *, wanted: bool = False) -> bool:
        """Whether a fetch is to begin now: then it has begun.

        ``wanted``: for a key that is not known.
        """
        if self._fetching or now < (self._not_before if wanted else self.due):
            return False
        self._fetching, self.due = True, NEVER
        return True

    def ended(self, now: float, *, good: bool) -> None:
        """The fetch that had begun has ended."""
        self._fetching = False
        self._not_before = now + self.backoff_s
        self.due = now + (self.refresh_s if good else self.backoff_s)
