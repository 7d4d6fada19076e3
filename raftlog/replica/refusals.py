"""Counts the messages that a node refuses, and says it in its log once in a while."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from raftlog.logger import get_logger
from raftlog.quorum import events as ev

log = get_logger(__name__)

LOG_INTERVAL_S = 10.0
"""Of each kind of refused message one line in this time: whoever can reach the port must not fill
the disk with log lines.
"""


class Refusals:
    """Messages that claim what this node does not believe."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By (type of message, field)."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, effect: ev.Refused) -> None:
        """Count it, and log it if its kind was not logged lately."""
        kind, now = (effect.message, effect.field), self._loop.time()
        self.counts[kind] += 1
        logged_at, count = self._logged.get(kind, (-math.inf, 0))
        if now - logged_at >= LOG_INTERVAL_S:
            self._logged[kind] = (now, self.counts[kind])
            log.warning(
                "a message is refused",
                message=effect.message,
                field=effect.field,
                reason=effect.reason,
                since_last_said=self.counts[kind] - count,
            )
