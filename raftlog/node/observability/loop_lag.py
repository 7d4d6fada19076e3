"""How late the event loop is: what a timer that is due waits for others' callbacks.

Everything of a node runs on one loop, so its lag is in every latency that a node shows.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from raftlog.node.observability.latency import Latency

EVERY_S = 0.25


class LoopLag:
    """Looks four times a second, once it was started on a loop, as long as that runs."""

    def __init__(self) -> None:
        self.latency = Latency()

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        loop.call_later(EVERY_S, self._look, perf_counter() + EVERY_S)

    def _look(self, due: float) -> None:
        # A loop may round a timer down, by a millisecond at most.
        self.latency.observe(max(0.0, perf_counter() - due))
        self.start()
