"""Finds brokers that heartbeat but do not apply the log, and keeps them fenced for a while.

A broker is stuck if it has not applied what was already committed ``lag_max_s`` ago. Offsets alone
can't tell (a thousand records are nothing after a burst and everything on a quiet cluster), hence a
short row of (time, committed offset) marks.

Why: docs/decisions/009-lao-membership.md
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_CHECKS_PER_LAG = 8


@dataclass(frozen=True, slots=True)
class _Probation:
    until: float
    length_s: float


class LagWatch:
    """The marks, and who is on probation. Soft state: a new controller starts with neither."""

    def __init__(
        self, *, lag_max_s: float, probation_s: float, probation_max_s: float, now: float
    ) -> None:
        self._lag_max_s = lag_max_s
        self._probation_s = probation_s
        self._probation_max_s = probation_max_s
        self._marks: deque[tuple[float, int]] = deque()
        self._probations: dict[int, _Probation] = {}
        self._joined_at: dict[int, float] = {}
        self.next_check = now

    def mark(self, now: float, committed_offset: int) -> None:
        """Remember what is committed (inclusive), and when to look again."""
        self._marks.append((now, committed_offset))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._lag_max_s:
            self._marks.popleft()
        self.next_check = now + self._lag_max_s / _CHECKS_PER_LAG

    def look_again(self, now: float, at: float) -> None:
        """Who was found stuck cannot be fenced before ``at``: look then, or when it would have been
        looked anyway.
        """
        self.next_check = min(at, now + self._lag_max_s / _CHECKS_PER_LAG)

    def stuck(
        self, now: float, unfenced: Iterable[int], applied_of: Callable[[int], int]
    ) -> int | None:
        """The stuck broker that is furthest behind, None if there is none or if most of all brokers
        are.

        Where most lag the brokers are not what is wrong, and fencing them would end the service
        instead of mending it: those on probation count as lagging too, or they would go one by one.
        """
        old_enough = [offset for at, offset in self._marks if at <= now - self._lag_max_s]
        if not old_enough:
            return None
        target = old_enough[-1]
        brokers = sorted(unfenced)
        lagging = [
            (applied_of(broker_id), broker_id)
            for broker_id in brokers
            if applied_of(broker_id) < target
            and now - self._joined_at.get(broker_id, -math.inf) >= self._lag_max_s
        ]
        out = sum(
            1
            for broker_id in self._probations
            if broker_id not in brokers and self.on_probation(broker_id, now)
        )
        if not lagging or (len(lagging) + out) * 2 > len(brokers) + out:
            return None
        return min(lagging)[1]

    def fenced(self, broker_id: int, now: float) -> None:
        """A broker was fenced for its lag: begin its probation, longer than the last one."""
        last = self._probations.get(broker_id)
        length_s = self._probation_s
        if last is not None and now - last.until < self._probation_max_s:
            length_s = min(last.length_s * 2, self._probation_max_s)
        self._probations[broker_id] = _Probation(now + length_s, length_s)

    def unfenced(self, broker_id: int, now: float) -> None:
        """A broker was unfenced: what it did before does not count as lag."""
        self._joined_at[broker_id] = now

    def forget(self, broker_id: int) -> None:
        """The process is another one, or the broker is gone for good."""
        self._probations.pop(broker_id, None)
        self._joined_at.pop(broker_id, None)

    def on_probation(self, broker_id: int, now: float) -> bool:
        """Whether a broker must stay fenced for now."""
        probation = self._probations.get(broker_id)
        return probation is not None and now < probation.until
