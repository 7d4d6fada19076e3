"""W5, K4: time until every broker has applied a write, and until every broker knows it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf, nan
from typing import Any

from benchmarks.load import Load, Writes
from benchmarks.nodes import Quorum
from benchmarks.stats import latency_ms, thread_cpu_s
from raftlog.client.controller_client import ControllerClient
from raftlog.transport.grpc_transport import GrpcTransport

FIRST_BROKER = 100
REST_S = 1.0
FAN_OUTS = (0, 10, 30, 100, 300)


class Observers:
    """Child processes that contain brokers.

    After ``stop``: ``moves``, for each broker (times, applied, told), and ``messages``, the number
    of messages received and sent on all their metadata streams since ``count_messages``.
    """

    def __init__(
        self, quorum: Quorum, count: int, processes: int = 3, first: int = FIRST_BROKER
    ) -> None:
        shares = [count // processes + (i < count % processes) for i in range(processes)]
        self.processes: list[subprocess.Popen[str]] = []
        for share in filter(None, shares):
            command = [
                sys.executable,
                "-m",
                "benchmarks.observers",
                quorum.cluster_id,
                ",".join(quorum.endpoints),
            ]
            self.processes.append(
                subprocess.Popen(
                    [*command, str(first), str(share)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            first += share
        self.moves: list[tuple[list[float], list[int], list[int]]] = []
        self.messages = [0, 0]

    @property
    def pids(self) -> list[int]:
        """Process ids of the measured processes."""
        return [process.pid for process in self.processes]

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until all brokers are unfenced. Raises RuntimeError, and TimeoutError if a process
        prints nothing for that long.
        """
        for process in self.processes:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], timeout_s)[0]:
                raise TimeoutError(f"a broker was not unfenced within {timeout_s} s")
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("an observer process has exited")

    def count_messages(self) -> None:
        """Make each observer count its messages from now on."""
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)

    def hold_messages(self) -> None:
        """Make each observer stop counting."""
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR2)

    def stop(self) -> None:
        """Stop the observers, and collect their recordings."""
        for process in self.processes:
            out, _ = process.communicate("stop\n", timeout=60)
            noted = json.loads(out)
            received, sent = noted["messages"]
            self.messages = [self.messages[0] + received, self.messages[1] + sent]
            self.moves += noted["moves"]

    def all_applied(self, offset: int) -> float:
        """Return the time at which the last broker had applied an offset."""
        return max((_when(times, applied, offset) for times, applied, _ in self.moves), default=nan)

    def all_told(self, offset: int) -> float:
        """Return the time at which the last broker had received a LAO that covers an offset."""
        return max((_when(times, told, offset) for times, _, told in self.moves), default=nan)


def _when(times: list[float], offsets: list[int], offset: int) -> float:
    """Return the time at which an offset was reached, or infinity if it was not."""
    index = bisect_left(offsets, offset)
    return times[index] if index < len(times) else inf


@contextmanager
def observed(quorum: Quorum, count: int) -> Iterator[Observers]:
    """Yield unfenced observers, and stop them at the end."""
    observers = Observers(quorum, count)
    try:
        observers.wait_ready()
        yield observers
    finally:
        for process in observers.processes:
            process.kill()
            process.wait()


async def paced(
    bootstrap: list[str],
    *,
    period_s: float,
    count: int,
    at_begin: Callable[[], None] = lambda: None,
    at_end: Callable[[], None] = lambda: None,
) -> list[tuple[float, float, int]]:
    """Write on a fixed schedule with one write in flight, like the peer's writer; return (sent,
    answered, offset).

    A write that is answered late delays the next one. ``at_begin`` and ``at_end`` are called before
    and after all but the first tenth of the writes.
    """
    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    writes = Writes(Load(1))
    await client.call(writes.next_message())
    done: list[tuple[float, float, int]] = []

    begun = time.monotonic() + 0.5
    for number in range(count):
        if number == count // 10:
            at_begin()
        await asyncio.sleep(begun + number * period_s - time.monotonic())
        sent = time.monotonic()
        response = await client.call(writes.next_message())
        done.append((sent, time.monotonic(), response.write.token.offset))
    await asyncio.sleep(0.9 * period_s)
    at_end()
    await asyncio.sleep(REST_S)
    client.close()
    await transport.close()
    return done


def propagation(
    quorum: Quorum, observers: int, *, period_s: float, seconds: float
) -> dict[str, Any]:
    """Measure W5 and K4."""
    import uvloop

    with observed(quorum, observers) as watching:
        leader = quorum.leader()
        pid = quorum.pids[leader - 1]
        own = os.getpid()
        used_s = dict.fromkeys((*quorum.pids, *watching.pids, own), 0.0)

        def begin() -> None:
            watching.count_messages()
            used_s.update((one, -thread_cpu_s(one)) for one in used_s)

        def end() -> None:
            used_s.update((one, used_s[one] + thread_cpu_s(one)) for one in used_s)
            watching.hold_messages()

        def used_us(pids: Iterable[int]) -> float:
            return sum(used_s[one] for one in pids) * 1e6

        count = int(seconds / period_s)
        writing = paced(
            [quorum.endpoints[leader - 1]],
            period_s=period_s,
            count=count,
            at_begin=begin,
            at_end=end,
        )
        done = uvloop.run(writing)
        watching.stop()
    done = done[len(done) // 10 :]  # the first tenth is a warm-up
    each = max(1, observers) * len(done)
    return {
        "observers": observers,
        "writes": len(done),
        "reply_ms": latency_ms([answered - sent for sent, answered, _ in done]),
        "last_applied_from_send_ms": latency_ms(
            [watching.all_applied(o) - sent for sent, _, o in done]
        ),
        "all_told_from_send_ms": latency_ms([watching.all_told(o) - sent for sent, _, o in done]),
        "messages_per_observer_and_write": {
            "down": round(watching.messages[0] / each, 2),
            "up": round(watching.messages[1] / each, 2),
        },
        "leader_cpu_us_per_write": round(used_us([pid]) / len(done)),
        "broker_cpu_us_per_write": round(used_us(watching.pids) / each, 1),
        "cpu_us_per_delivery": {
            "servers": round(used_us(quorum.pids) / each, 1),
            "client": round(used_us([*watching.pids, own]) / each, 1),
        },
    }


def fan_out(quorum: Quorum, seconds: float) -> list[dict[str, Any]]:
    """Return the leader's cost per observer and write, by number of observers: its CPU beyond that
    of a write without observers.
    """
    rows = [propagation(quorum, n, period_s=0.01, seconds=seconds) for n in FAN_OUTS]
    alone = rows[0]["leader_cpu_us_per_write"]
    for row in rows[1:]:
        beyond = row["leader_cpu_us_per_write"] - alone
        row["leader_cpu_us_per_observer_and_write"] = round(beyond / row["observers"], 1)
    return rows
