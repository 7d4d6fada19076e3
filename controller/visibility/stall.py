"""How long LAO has been stuck below the high watermark, which brokers hold it back, and when to log
that. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

SAY_AFTER_S = 1.0
SAY_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A line for the program's log.

    ``by`` is empty when LAO moves again, and when LAO is unknown for a reason other than a broker.
    """

    by: tuple[int, ...]
    for_s: float
    reason: str
    """Why LAO is unknown; empty if it is known."""


class LaoStall:
    """Watches LAO: one line when it has been stuck for a second, one each half minute after that,
    one when it moves again.
    """

    def __init__(self) -> None:
        self._lao = -1
        self._since: float | None = None
        self._said_at: float | None = None

    def held_ms(self, now: float) -> int:
        """How long LAO has been stuck below the high watermark; 0: it is not stuck."""
        return 0 if self._since is None else max(0, round((now - self._since) * 1000))

    def look(
        self, now: float, lao: int, newest: int, by: list[int], reason: str
    ) -> HeldBack | None:
        """What to log now, if anything.

        ``newest``: the last committed offset. ``by``: the brokers that hold LAO back. ``reason``:
        why LAO is unknown; empty if it is known, or if no broker is a member.
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
