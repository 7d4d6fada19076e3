"""gRPC in this process: its switches in the environment, and its wake-ups of the event loop.

``raftlog/transport/__init__.py`` imports this module, so that the switches are set before grpc is
imported. A value that the operator has set is kept.

gRPC's EventEngine passes a received message through three threads (its poller, its pool, the
completion-queue thread) before asyncio sees it. Without it the completion-queue thread reads the
socket itself. The core reads the switches once, when it is first used.

grpc/grpc#42150 announces that the switches will be removed. They work in 1.85.3, and little is lost
without them, since writes use lanes: so grpcio has no upper bound in pyproject.toml. Medians of
five runs in turn, on a machine that others kept 70 to 78 % busy: one stream's ping-pong takes
0.13 ms with the EventEngine and 0.08 to 0.10 ms without it; 64 writes in flight (w2) cost the
servers 40 µs of CPU each and 36 µs; one in flight (w1) showed no difference beyond the noise.
:func:`event_engine_state` goes into the start-up log, and :func:`event_engine_cpu_s` measures the
CPU time of its threads.

Wake-ups: gRPC's thread queues each event, and wakes the loop with a byte in a socket. The loop
takes all events each time, but a single byte. Under load bytes are left over, a few hundred fill
the socket's buffer, and from then on gRPC's thread blocks in its write until the loop takes a byte:
one event in each turn, of all links together. [A stranger sends 160,000 requests; a turn takes 20
ms, the answers' events queue up, and for three seconds nothing that followers send arrives at a
leader whose loop is never late.]

The process has one queue for all its loops: the loop that takes an event of another loop passes it
on, even if that loop is closed by then. Such an event has no receiver and is dropped.
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
# The core writes to stderr, past our own logs and as often as a stranger likes: orderly shutdowns,
# compressed messages.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Nothing of ours uses gRPC after a fork; some of what shares a process with it forks to start a
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
        return "on, probably: grpc was imported before raftlog.transport.grpc_runtime"
    return "off"


def event_engine_cpu_s() -> float:
    """Return the CPU seconds of this process's EventEngine threads: next to none while the switches
    work. Linux only.
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
"""Bytes read at once, more than the socket's buffer can hold as single bytes."""

SKIPPED = 7
"""Number of wake-ups without a look after a look that found few bytes: a look costs a microsecond
or two, a quiet wake-up a few.
"""
FEW_BYTES = 16
"""Number of bytes that is far below the capacity of the socket's buffer, even with as many again
from wake-ups without a look.
"""
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
"""The flags as an integer: combining their own type takes longer than the kernel's look."""


def take_all_wakeups(loop: asyncio.AbstractEventLoop) -> None:
    """Prepare a loop for gRPC, before its first channel or server. Idempotent.

    The loop then takes all wake-ups at once, and drops gRPC's events after it is closed.
    """
    add_reader = loop.add_reader
    if isinstance(getattr(add_reader, "__self__", None), _Readers):
        return
    # On the instance: gRPC asks the loop for it, and has no other door.
    loop.add_reader = _Readers(add_reader).add  # type: ignore[method-assign, assignment]
    hand_on = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = _HandsOn(loop, hand_on).call  # type: ignore[method-assign, assignment]


class _Readers:
    """A wrapper of a loop's ``add_reader``."""

    def __init__(self, add_reader: Callable[..., Any]) -> None:
        self._add_reader = add_reader

    def add(self, source: Any, callback: Callable[..., Any], *args: Any) -> Any:
        """Register a reader; gRPC's reader finds one byte, however many are queued."""
        handler = getattr(callback, "func", callback)
        if getattr(handler, "__name__", "") == "_handle_events" and isinstance(
            source, socket.socket
        ):
            return self._add_reader(source, _TakesAll(source, callback), *args)
        return self._add_reader(source, callback, *args)


class _HandsOn:
    """A wrapper of a loop's ``call_soon_threadsafe`` that drops a gRPC event after the loop is
    closed.

    [A client is closed while a node hangs; the end of its calls is reported a moment later to the
    loop of the next client, which logs "Event loop is closed" and processes none of the events
    after it.]
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hand_on: Callable[..., Any]) -> None:
        self._loop, self._hand_on = loop, hand_on

    def call(self, callback: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Schedule a callback as the loop does, except on a closed loop."""
        name = getattr(callback, "__name__", "")
        if name == "_handle_callback_wrapper" and self._loop.is_closed():
            return None
        return self._hand_on(callback, *args, **named)


class _TakesAll:
    """A reader that takes all bytes but one and then calls gRPC, which takes the last byte and
    every queued event.
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
                # A process has one such socket for all its loops: another one was faster, and has
                # taken the events, too.
                return
            if count > FEW_BYTES:
                self._source.recv(count - 1)
            else:
                self._skip = SKIPPED
        self._callback(*args)
