"""What the C library does with memory that is free again."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as glibc numbers them."""
_KEPT_BYTES = 64 << 20
_OF_ITS_OWN_BYTES = 32 << 20
"""What is larger is given back at once."""


def keep_heap() -> None:
    """In a process of kernels: keep some memory for the next array.

    Kernels make arrays of a megabyte or two, and free them. By itself glibc gives these back to the
    kernel again and again, which then clears each page before the next array has it: a quarter of
    what the rules of partitions take. It counts for more than what MALLOC_TRIM_THRESHOLD_ says, and
    where there is no glibc it changes nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OF_ITS_OWN_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
