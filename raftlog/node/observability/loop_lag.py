"""The lag of the event loop: the wait of a due timer for other callbacks.

All of a node runs on one loop, so its lag is in every latency of the node.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from raftlog.node.observability.latency import Latency

EVERY_S = 0.25


class LoopLag:
    """A measurement of a loop's lag four times a second, from its start until the loop ends."""

    def __init__(self) -> None:
        self.latency = Latency()

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        loop.call_later(EVERY_S, self._look, perf_counter() + EVERY_S)

    def _look(self, due: float) -> None:
        # A loop may round a timer down, by a millisecond at most.
        self.latency.observe(max(0.0, perf_counter() - due))
        self.start()
