"""gRPC in this process: its switches in the environment, and its wake-ups of the event loop.

``raftlog/transport/__init__.py`` imports this module, so that the switches are set before grpc is
imported. A value that the operator has set is kept.

gRPC's EventEngine passes a received message through three threads (its poller, its pool, the
completion-queue thread) before asyncio sees it. With the EventEngine switched off, the
completion-queue thread itself reads the socket. gRPC's core reads the switches once, when it is
first used.

grpc/grpc#42150 announces that the switches will be removed. They work in 1.85.3, and little is lost
without them, since writes use lanes, so grpcio has no upper bound in pyproject.toml. Medians of
five alternating runs, on a machine that other processes kept 70 to 78 % busy: one stream's
ping-pong takes 0.13 ms with the EventEngine and 0.08 to 0.10 ms without it; 64 writes in flight
(w2) cost the servers 40 µs of CPU each and 36 µs; one in flight (w1) showed no difference beyond
the noise.

:func:`event_engine_state` is written to the start-up log, and :func:`event_engine_cpu_s` measures
the CPU time of EventEngine threads.

Wake-ups: gRPC's thread queues each event, and wakes the loop with a byte in a socket. The loop
handles all queued events each time, but reads a single byte. Under load, unread bytes accumulate; a
few hundred fill the socket's buffer, and from then on gRPC's thread blocks in its write until the
loop reads a byte: one event per iteration, for all links together. (A stranger sends 160,000
requests; an iteration takes 20 ms, the events of the responses queue up, and for three seconds
nothing that followers send reaches the leader, although its loop is never late.)

The process has one queue for all its loops: a loop that receives an event of another loop forwards
it, even if the other loop is closed by then. Such an event has no receiver and is dropped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXPERIMENTS = ("-event_engine_client", "-event_engine_listener")

_IMPORTED_TOO_EARLY = "grpc" in sys.modules

os.environ.setdefault("GRPC_EXPERIMENTS", ",".join(EXPERIMENTS))
# The core writes to stderr, bypassing our logs, and as often as a stranger provokes it: orderly
# shutdowns, compressed messages.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# raftlog does not use gRPC after a fork, but other code in the process may fork to start a program
# (PySpark starts Java). gRPC's fork support restarts its threads in the child, where one of them
# may find its file closed and abort before the exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def event_engine_state() -> str:
    """Return ``off`` if the switches were set before grpc was imported; otherwise ``on`` and the
    reason. For the start-up log.
    """
    asked = os.environ.get("GRPC_EXPERIMENTS", "").replace(" ", "").split(",")
    missing = [switch for switch in EXPERIMENTS if switch not in asked]
    if missing:
        return f"on: GRPC_EXPERIMENTS lacks {','.join(missing)}"
    if _IMPORTED_TOO_EARLY:
        return "on, probably: grpc was imported before raftlog.transport.grpc_runtime"
    return "off"


def event_engine_cpu_s() -> float:
    """Return the CPU seconds used by this process's EventEngine threads, almost none while the
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


TAKEN_BYTES = 4_096
"""Number of bytes read at once, more than the socket's buffer can hold as single bytes."""

SKIPPED = 7
"""Number of wake-ups that are not checked after a check that found few bytes, as a check costs a
microsecond or two, and a quiet wake-up only a few.
"""
FEW_BYTES = 16
"""Number of bytes far below the capacity of the socket's buffer, even when doubled by unchecked
wake-ups.
"""
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
"""The flags as an integer, as combining the enum values takes longer than the system call."""


def take_all_wakeups(loop: asyncio.AbstractEventLoop) -> None:
    """Prepare a loop for gRPC, before its first channel or server. Idempotent.

    The loop then handles all wake-ups at once, and drops gRPC's events after it is closed.
    """
    add_reader = loop.add_reader
    if isinstance(getattr(add_reader, "__self__", None), _Readers):
        return
    # Patched on the instance: gRPC looks the method up there, and offers no other hook.
    loop.add_reader = _Readers(add_reader).add  # type: ignore[method-assign, assignment]
    schedule = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = _LateEventFilter(loop, schedule).call  # type: ignore[method-assign, assignment]


class _Readers:
    """A wrapper of a loop's ``add_reader``."""

    def __init__(self, add_reader: Callable[..., Any]) -> None:
        self._add_reader = add_reader

    def add(self, source: Any, callback: Callable[..., Any], *args: Any) -> Any:
        """Register a reader. gRPC's reader then sees one byte, however many are queued."""
        handler = getattr(callback, "func", callback)
        if getattr(handler, "__name__", "") == "_handle_events" and isinstance(
            source, socket.socket
        ):
            return self._add_reader(source, _WakeUpReader(source, callback), *args)
        return self._add_reader(source, callback, *args)


class _LateEventFilter:
    """A wrapper of a loop's ``call_soon_threadsafe`` that drops gRPC events after the loop is
    closed.

    (A client is closed while a node hangs; the end of its calls is reported a moment later to the
    loop of the next client, which would log "Event loop is closed" and process none of the later
    events.)
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[..., Any]) -> None:
        self._loop, self._schedule = loop, schedule

    def call(self, callback: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Schedule a callback as the loop does, except on a closed loop."""
        name = getattr(callback, "__name__", "")
        if name == "_handle_callback_wrapper" and self._loop.is_closed():
            return None
        return self._schedule(callback, *args, **named)


class _WakeUpReader:
    """A reader that reads all bytes but one and then calls gRPC, which reads the last byte and
    handles every queued event.
    """

    __slots__ = ("_callback", "_skip", "_source")

    def __init__(self, source: socket.socket, callback: Callable[..., Any]) -> None:
        self._source, self._callback = source, callback
        self._skip = 0

    def __call__(self, *args: Any) -> None:
        if self._skip:
            self._skip -= 1
        else:
            try:
                count = len(self._source.recv(TAKEN_BYTES, _PEEK))
            except BlockingIOError:
                # A process has one such socket for all its loops: another loop was faster, and has
                # handled the events, too.
                return
            if count > FEW_BYTES:
                self._source.recv(count - 1)
            else:
                self._skip = SKIPPED
        self._callback(*args)
