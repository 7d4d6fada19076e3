"""W1 to W4: one client process, 256-byte values, each write durable on a majority before its
reply.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.stats import busy_s, cpu_s, latency_ms
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import ConfigWrite
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb

KEYS = 100_000
VALUE_BYTES = 256
CLIENT_METRICS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: ``in_flight`` requests with ``batch`` writes each, over ``clients``
    connections.
    """

    in_flight: int
    batch: int = 1
    clients: int = 1
    fresh_keys: bool = False


LOADS = {
    "w1": Load(1),
    "w2": Load(64),
    "w3": Load(1000, clients=10),
    "w4": Load(8, batch=100, fresh_keys=True),
}


class Requests(Protocol):
    """The requests of one load, in the order in which they are sent."""

    def next(self) -> pb.ControllerRequest | ConfigWrite:
        """Return the next request."""


Check = Callable[[pb.ControllerResponse], pb.ControllerResponse]


class Writes:
    """A source of requests: config values under random keys, or under fresh ascending ones."""

    def __init__(self, load: Load, seed: int = 1) -> None:
        self._load = load
        self._rng = random.Random(seed)
        self._filler = self._rng.randbytes(VALUE_BYTES).hex()[: VALUE_BYTES - 8]
        self._count = 0

    def next(self) -> ConfigWrite:
        """Return the next config write, with ``batch`` values."""
        changes: list[Change] = []
        for _ in range(self._load.batch):
            self._count += 1
            key = self._count if self._load.fresh_keys else int(self._rng.random() * KEYS)
            value = f"{self._count:08d}{self._filler}"
            changes.append((CLIENT_METRICS, f"key-{key:012d}", "match", value))
        return ConfigWrite(changes)

    def next_message(self) -> pb.ControllerRequest:
        """Return the next config write as a message."""
        return self.next().request()


async def measure(
    load: Load,
    bootstrap: list[str],
    pids: list[int],
    *,
    seconds: float,
    warm_s: float = 2.0,
    tls: TlsConfig | None = None,
    writes: Requests | None = None,
    check: Check = require_success,
    at_begin: Callable[[], None] = lambda: None,
    at_end: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run one load. Raises ApiError if any write fails.

    ``writes``: other requests than config values. ``check``: raises if a response is not a success.
    ``at_begin``, ``at_end``: called before and after the measured part.
    """
    transport = GrpcTransport(tls=tls)
    clients = [
        ControllerClient(transport, bootstrap, rng=random.Random(i)) for i in range(load.clients)
    ]
    requests: Requests = writes or Writes(load)
    clock = time.perf_counter
    begin = clock() + warm_s
    end = begin + seconds
    taken: list[float] = []
    finished = 0

    async def loop(client: ControllerClient) -> None:
        nonlocal finished
        while True:
            sent = clock()
            if sent >= end:
                return
            check(await client.send(requests.next(), 30.0))
            done = clock()
            if begin <= done < end:
                taken.append(done - sent)
                finished += load.batch

    loops = [asyncio.create_task(loop(clients[i % load.clients])) for i in range(load.in_flight)]
    await asyncio.sleep(max(0.0, begin - clock()))
    at_begin()
    servers, own, busy = cpu_s(pids), time.process_time(), busy_s()
    await asyncio.gather(*loops)
    servers, own = cpu_s(pids) - servers, time.process_time() - own
    others = busy_s() - busy - servers - own
    at_end()
    for client in clients:
        client.close()
    await transport.close()
    return {
        "writes": finished,
        "writes_per_s": round(finished / seconds),
        "latency_ms": latency_ms(taken),
        "cpu_us_per_write": {
            "servers": round(servers / max(1, finished) * 1e6, 1),
            "client": round(own / max(1, finished) * 1e6, 1),
        },
        "cpu_of_others_percent": round(100 * others / seconds / (os.cpu_count() or 1), 1),
    }
