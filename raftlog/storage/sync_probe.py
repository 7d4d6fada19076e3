"""How fast a disk makes a small write durable, measured beside the log: what each commit waits
for.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PROBES = 20
PROBE_BYTES = 4_096
PROBE_MAX_S = 2.0
FILE = "sync-probe.tmp"


def probe_sync_us(directory: Path) -> tuple[list[int], str]:
    """Microseconds of each write and sync, ascending, and why there are not more; blocks.

    Leaves nothing behind.
    """
    path = directory / FILE
    took: list[int] = []
    begun = time.perf_counter()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for number in range(PROBES):
                at = time.perf_counter()
                os.pwrite(fd, bytes(PROBE_BYTES), number * PROBE_BYTES)
                os.fdatasync(fd)
                now = time.perf_counter()
                took.append(round((now - at) * 1e6))
                if now - begun > PROBE_MAX_S:
                    return sorted(took), f"given up after {PROBE_MAX_S:g} s"
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
    except OSError as error:
        return sorted(took), error.strerror or str(error)
    return sorted(took), ""
