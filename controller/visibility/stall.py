"""How long LAO has stood still behind the high watermark, whom it waits for, and when to say so in the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SAY_AFTER_S = 1.0
SAY_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What the log should say. ``by`` is empty when LAO goes on, and when it is unknown because of no broker."""

    by: tuple[int, ...]
    for_s: float
    reason: str
    """Why LAO is unknown; empty if it is known."""


class LaoStall:
    """Looks at LAO now and then: one line when it has stood for a second, one each half minute, one when it goes on."""

    def __init__(self) -> None:
        self._lao = -1
        self._since: float | None = None
        self._said_at: float | None = None

    def held_ms(self, now: float) -> int:
        """How long LAO has stood still behind the high watermark; 0: it does not."""
        return 0 if self._since is None else max(0, round((now - self._since) * 1000))

    def look(self, now: float, lao: int, newest: int, by: list[int], reason: str) -> HeldBack | None:
        """What to say now, if anything.

        ``newest``: the last committed offset. ``by``: who holds LAO back. ``reason``: why it is unknown; empty if nobody waits for it.
        """
        stands = lao < newest and bool(by or reason)
        if not stands or lao != self._lao:
            since, self._since = self._since, now if stands else None
            self._lao = lao
            if self._said_at is None or since is None:
                return None
            self._said_at = None
            return HeldBack((), now - since, "")
        if self._since is None:
            self._since = now
        for_s = now - self._since
        if for_s < SAY_AFTER_S or (self._said_at is not None and now - self._said_at < SAY_EVERY_S):
            return None
        self._said_at = now
        return HeldBack(tuple(by), for_s, reason)
