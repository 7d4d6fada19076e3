"""Brokers without an id that have to wait: what each was told, for those who look.

Soft state; ``now`` is a monotonic clock in seconds.

Why: docs/decisions/019-broker-ids.md
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.errors import ApiError, ErrorCode

FORGOTTEN_AFTER_S = 10.0
"""Who waits asks every second."""
MAX_WAITS = 100
"""More are told all the same, and not listed."""


class AwaitedIdError(ApiError):
    """A broker without an id has to wait for what becomes of another broker's; told to ask
    again.
    """

    def __init__(self, broker_id: int, remaining_s: float, message: str) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, message, field="broker_id")
        self.broker_id = broker_id
        self.remaining_ms = max(0, round(remaining_s * 1000))
        self.place = ""
        self.is_news = False
        """Whether it was told something else before, or nothing: for the log."""


class IdWait(NamedTuple):
    """One that waits at ``place`` (host:port)."""

    place: str
    since: float
    asked_at: float
    broker_id: int
    until: float


class IdWaits:
    """The latest answer to each place that asks."""

    def __init__(self) -> None:
        self._waits: dict[str, IdWait] = {}

    def note(self, place: str, error: AwaitedIdError, now: float) -> None:
        """A broker was told to wait."""
        self._forget(now)
        old = self._waits.get(place)
        error.place = place
        if old is not None or len(self._waits) < MAX_WAITS:
            error.is_news = old is None or old.broker_id != error.broker_id
            since = now if old is None else old.since
            self._waits[place] = IdWait(
                place, since, now, error.broker_id, now + error.remaining_ms / 1000
            )

    def over(self, place: str) -> None:
        """It has an id."""
        self._waits.pop(place, None)

    def listed(self, now: float) -> list[IdWait]:
        """Those that asked lately, by place."""
        self._forget(now)
        return [self._waits[place] for place in sorted(self._waits)]

    def _forget(self, now: float) -> None:
        for place in [
            place for place, one in self._waits.items() if now - one.asked_at > FORGOTTEN_AFTER_S
        ]:
            del self._waits[place]
