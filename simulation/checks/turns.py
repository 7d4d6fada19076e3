"""Turns of event loops: where code takes time, no callback of a node holds up its loop for longer
than a turn may take.

Would catch: a turn that decides whatever waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override

from raftlog.bounds import CONTROLLER_TURN_MAX_MS
from simulation.checks.api import Checker, CheckFailedError, World

ITEMS = 60
"""Whose work may come on top: the last one of a turn costs what it costs, and costs are drawn."""


class Turns(Checker):
    """Checker of turns, by the loop's sums of each callback's time."""

    def __init__(self) -> None:
        self.measured = 0
        """Nodes looked at whose callbacks take time."""

    @override
    def begin(self, world: World) -> None:
        self._loop: Any = asyncio.get_running_loop()
        self._bound_s = CONTROLLER_TURN_MAX_MS / 1000 + ITEMS * world.config.work_us / 1e6

    @override
    def sample(self) -> None:
        for name, longest_s in self._loop.longest_s.items():
            self.measured += 1
            if longest_s > self._bound_s:
                raise CheckFailedError(f"{name} holds up its loop for {longest_s:.3f} s")
