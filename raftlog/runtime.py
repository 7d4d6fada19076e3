"""How a node's process uses memory: a collector that does not stop the world for what lives for ever, and no pages zeroed twice."""

from __future__ import annotations

import ctypes
import gc

YOUNG_ALLOCATIONS = 50_000
YOUNG_PER_MIDDLE = 2
MIDDLE_PER_FULL = 1_000_000

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
OWN_PAGES_FROM_BYTES = 32 << 20


def tune_memory() -> None:
    """Make full collections rare, set aside what importing has made, and let the allocator keep what it was given.

    An image is millions of small objects without cycles: looking through all of them takes tenths of a second, in which nothing is
    answered, and finds nothing. Reference counts free what dies; the collector is left for the rare cycle among the young.

    A chunk of the log is larger than what glibc takes from its heap by default: it would be mapped, zeroed by the kernel and
    unmapped for each message.
    """
    gc.set_threshold(YOUNG_ALLOCATIONS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; another libc has its own ways
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
