"""The schedule of fetching the issuer's keys: a decision about times alone."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.clock import NEVER


@dataclass(slots=True)
class RefreshPlan:
    """A schedule: every ``refresh_s``, after a failure every ``backoff_s``, and at once for an
    unknown key.

    But not within ``backoff_s`` of the last fetch: any client can write an unknown id into a token.
    """

    refresh_s: float
    backoff_s: float
    due: float = 0.0
    """Time of the next regular fetch."""
    _fetching: bool = False
    _not_before: float = 0.0

    def begin(self, now: float, *, wanted: bool = False) -> bool:
        """Return whether to begin a fetch now, and record it as begun.

        ``wanted``: for an unknown key.
        """
        if self._fetching or now < (self._not_before if wanted else self.due):
            return False
        self._fetching, self.due = True, NEVER
        return True

    def ended(self, now: float, *, good: bool) -> None:
        """Record the end of the fetch."""
        self._fetching = False
        self._not_before = now + self.backoff_s
        self.due = now + (self.refresh_s if good else self.backoff_s)
