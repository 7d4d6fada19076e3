"""What gRPC reads from the environment.

Every module of ours that imports grpc imports this one first.

gRPC's EventEngine takes a received message through three threads (its poller, its pool, the
completion-queue thread) before asyncio sees it. Without it the completion-queue thread does the
socket itself. The core reads the switches once, when it is first used, so they are set before grpc
is imported; a value the operator has set is kept.

grpc/grpc#42150 announces that the switches will be removed. They work in 1.85.3, and little is lost
without them, since writes take lanes: so grpcio has no upper bound in pyproject.toml. Medians of
five runs in turn, on a machine that others kept 70 to 78 % busy: one stream's ping-pong takes
0.13 ms with the EventEngine and 0.08 to 0.10 ms without it; 64 writes in flight (w2) cost the
servers 40 µs of CPU each and 36 µs; one in flight (w1) showed no difference beyond the noise.
:func:`event_engine_state` goes into the start-up log, and :func:`event_engine_cpu_s` measures the
truth.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

EXPERIMENTS = ("-event_engine_client", "-event_engine_listener")

_IMPORTED_TOO_EARLY = "grpc" in sys.modules

os.environ.setdefault("GRPC_EXPERIMENTS", ",".join(EXPERIMENTS))
# The core writes to stderr, past our own logs and as often as a stranger likes: orderly shutdowns,
# compressed messages.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Nothing of ours uses gRPC behind a fork; some of what shares a process with it forks to start a
# program (PySpark its Java). gRPC's support of forks starts its threads anew in the child, where
# one of them may find its file closed and abort before the exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def event_engine_state() -> str:
    """``off`` if the switches were in place before grpc was imported; otherwise ``on`` and why, for
    the start-up log.
    """
    asked = os.environ.get("GRPC_EXPERIMENTS", "").replace(" ", "").split(",")
    missing = [switch for switch in EXPERIMENTS if switch not in asked]
    if missing:
        return f"on: GRPC_EXPERIMENTS lacks {','.join(missing)}"
    if _IMPORTED_TOO_EARLY:
        return "on, probably: grpc was imported before raftlog.transport.grpc_env"
    return "off"


def event_engine_cpu_s() -> float:
    """CPU seconds that this process's EventEngine threads have burnt: next to none while the
    switches work. Linux only.
    """
    total_ns = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("event_engine"):
                total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:  # The thread ended while we looked.
            continue
    return total_ns / 1e9
