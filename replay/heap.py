"""Settings of the C library's heap: what it does with freed memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as glibc numbers them."""
_KEPT_BYTES = 64 << 20
_OF_ITS_OWN_BYTES = 32 << 20
"""Size from which an allocation returns to the kernel as soon as it is freed, in bytes."""


def keep_heap() -> None:
    """Keep freed memory for the next array, in a process of kernels.

    Kernels make arrays of a megabyte or two, and free them. By default glibc returns that memory to
    the kernel again and again, which clears each page before the next array uses it: a quarter of
    the time of the partition rules. This setting overrides MALLOC_TRIM_THRESHOLD_; without glibc it
    changes nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OF_ITS_OWN_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
