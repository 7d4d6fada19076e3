"""The workloads by name: their figures, and how each is run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks import broker_restarts, failover, fencing, many_partitions, propagation
from benchmarks.leases.ours import leases
from benchmarks.load import LOADS, measure
from benchmarks.nodes import Quorum
from benchmarks.produce import produce
from benchmarks.replicas import reopen
from benchmarks.scale import scale
from benchmarks.topics import topics
from benchmarks.watching.ours import watch

Result = dict[str, Any]
Run = Callable[[Quorum, float, int], list[Result]]

OBSERVERS = (3, 30, 100)
PARTITIONS = 2_000
IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload. ``run`` gets a fresh quorum, seconds and a number of runs. ``brokers``: number of
    broker processes in addition to the controllers.
    """

    what: str
    run: Run
    brokers: int = 0


def _load(name: str) -> Run:
    def run(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
        leader = quorum.endpoints[quorum.leader() - 1]
        return [
            uvloop.run(measure(LOADS[name], [leader], quorum.pids, seconds=seconds, tls=quorum.tls))
            for _ in range(runs)
        ]

    return run


def _w5(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
    return [propagation.propagation(quorum, n, period_s=0.01, seconds=seconds) for n in OBSERVERS]


def _w6(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
    times = max(5, runs)
    return [
        failover.failovers(quorum, number, times) for number in (signal.SIGKILL, signal.SIGSTOP)
    ]


def _w9(quorum: Quorum, seconds: float, runs: int) -> list[Result]:
    times = max(5, runs)
    return [failover.transfers(quorum, times), failover.failovers(quorum, signal.SIGTERM, times)]


WORKLOADS = {
    "w1": Workload("one write in flight", _load("w1")),
    "w2": Workload("64 writes in flight, one connection", _load("w2")),
    "w3": Workload("1,000 writes in flight, ten connections", _load("w3")),
    "w4": Workload("requests of 100 writes, 8 in flight", _load("w4")),
    "w5": Workload("one write each 10 ms, until the last of N brokers has it", _w5),
    "w5c": Workload(
        "what 10, 30, 100 and 300 brokers cost the leader, one write each 10 ms",
        lambda quorum, seconds, _: propagation.fan_out(quorum, seconds),
    ),
    "w6": Workload("kill -9 and SIGSTOP of the leader under a retrying writer", _w6),
    "w7": Workload(
        "100,000 partitions: memory, disk, restarts", lambda quorum, *_: [scale(quorum)]
    ),
    "w8": Workload(
        "the idle quorum",
        lambda quorum, seconds, _: [failover.idle(quorum, max(IDLE_S, seconds))],
    ),
    "w9": Workload("transfer, and SIGTERM, of the leader under a retrying writer", _w9),
    "d1": Workload(
        "records with acks=all to six partitions of three replicas",
        lambda quorum, seconds, _: produce(quorum, seconds),
    ),
    "d2": Workload(
        "a broker's partition replicas opened and checked: many small ones, and a gigabyte",
        lambda quorum, *_: reopen(quorum.directory.parent / "replicas"),
    ),
    "k_fence": Workload(
        "fencing a broker with 1,000 partitions, of 10,000 and of 100,000",
        lambda quorum, *_: [
            *map(fencing.alone, fencing.TOTALS),
            *fencing.on_a_quorum(quorum),
        ],
    ),
    "k1": Workload(
        "alter a topic's config; create a topic: one in flight, three real brokers",
        lambda quorum, seconds, _: topics(quorum, 1, seconds),
    ),
    "k2": Workload(
        "alter a topic's config; create a topic: 64 in flight, three real brokers",
        lambda quorum, seconds, _: topics(quorum, 64, seconds),
    ),
    "k3": Workload(
        "one call that creates 2,000 partitions, three brokers without a data plane",
        lambda quorum, *_: [many_partitions.on_images(quorum, PARTITIONS)],
    ),
    "k3r": Workload(
        "one call that creates 2,000 partitions, three real brokers",
        lambda quorum, *_: [many_partitions.on_brokers(quorum, PARTITIONS)],
    ),
    "k4": Workload(
        "one write at 20/s until the last of three brokers shows it",
        lambda quorum, seconds, _: [
            propagation.propagation(quorum, 3, period_s=0.05, seconds=seconds)
        ],
    ),
    "k6": Workload(
        "a broker that is killed or stopped: until the others know, and until it is back",
        lambda quorum, _, runs: broker_restarts.broker_lives(quorum, max(3, runs)),
        brokers=3,
    ),
    "watch": Workload(
        "10, 1,000 and 10,000 watchers over three brokers: a change until the last has it",
        lambda quorum, seconds, _: watch(quorum, seconds),
        brokers=3,
    ),
    "leases": Workload(
        "3,000 leases kept alive by one and by 100 clients; locks and elections",
        lambda quorum, seconds, _: [leases(quorum, seconds)],
        brokers=3,
    ),
    "k7": Workload(
        "heartbeats of 0, 100, 1,000 brokers, every 2 s each",
        lambda quorum, seconds, _: broker_restarts.heartbeats(quorum, max(10.0, seconds)),
    ),
}
SECURED = ("w1", "w2", "w3", "w4")
"""Workloads that can run with mutual TLS and an authorizer."""
