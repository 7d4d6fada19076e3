"""How a node's process collects garbage: not by stopping the world for what lives for ever."""

from __future__ import annotations

import gc

YOUNG_ALLOCATIONS = 50_000
YOUNG_PER_MIDDLE = 20
MIDDLE_PER_FULL = 1_000


def tune_garbage_collector() -> None:
    """Make full collections rare, and set aside what importing has made.

    An image is millions of small objects without cycles: looking through all of them takes tenths of a second, in which nothing is
    answered, and finds nothing. Reference counts free what dies; the collector is left for the rare cycle among the young.
    """
    gc.set_threshold(YOUNG_ALLOCATIONS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
    gc.collect()
    gc.freeze()
