"""Faults of a run: coroutines that change the world's hosts, disks and links. An occurrence counts
only when it had an effect.
"""

import random
from collections.abc import Awaitable, Callable

from simulation.world import World

Fault = Callable[[World, random.Random], Awaitable[None]]
AGAIN_AND_AGAIN: dict[str, Fault] = {}


def fault(strikes: Fault) -> Fault:
    """Let a coroutine strike at random times in the runs whose config names it."""
    AGAIN_AND_AGAIN[strikes.__name__] = strikes
    return strikes
