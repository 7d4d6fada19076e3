"""The figures on the page: for each row, where to find them in raftlog's results and the peer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raftlog.transport.grpc_runtime import EXPERIMENTS

Path = tuple[str | int, ...]

REPEATED_RUNS = 5
SECURED_ACLS = 1_000
ENGINE_ON = {"GRPC_EXPERIMENTS": ",".join(switch.removeprefix("-") for switch in EXPERIMENTS)}
"""Turns on gRPC's EventEngine in the nodes and the client, which keep settings that are already
set.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line. ``better``: "more" or "less", for the ratio; "" if there is no ratio."""

    label: str
    ours: Path
    theirs: Path = ()
    better: str = "less"


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload on the page.

    ``repeated``: whether it is a short load that alternates with the peer's for the requested
    number of runs; any other workload is measured once per side, and repeats internally ``inner``
    times, as the peer's script does. ``seconds_factor``: share of the given seconds for which the
    peer's script measures.
    """

    title: str
    workload: str
    figures: tuple[Figure, ...]
    repeated: bool = False
    inner: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds_factor: float = 1.0
    acls: int | None = None
    """Number of entries of raftlog's authorizer, with mutual TLS on both sides; None for plain
    text.
    """
    floor_of: Figure | None = None
    """The figure that is also shown as a multiple of the machine's floor, see ``limits``."""


def _rate(latency_of: str = "") -> tuple[Figure, ...]:
    """Return the figures of a workload with writes (w1 to w4)."""
    return (
        Figure("writes/s", (0, "writes_per_s"), ("writes_per_s",), "more"),
        *(
            Figure(f"p{name} ms{latency_of}", (0, "latency_ms", key), ("latency_ms", key))
            for name, key in (("50", "p50"), ("99", "p99"))
        ),
        *(
            Figure(f"CPU of {who}, µs per write", *_both("cpu_us_per_write", key))
            for who, key in (("the servers", "servers"), ("the client", "client"))
        ),
        Figure("CPU of other processes, %", *_both("cpu_of_others_percent"), better=""),
    )


def _both(*path: str) -> tuple[Path, Path]:
    return (0, *path), path


def _observers(index: int, count: int) -> tuple[Figure, ...]:
    applied, theirs = "last_applied_from_send_ms", ("last_from_send_ms", str(count))
    return (
        Figure(
            f"arrival at the last of {count} brokers, p50 ms",
            (index, applied, "p50"),
            (*theirs, "p50"),
        ),
        Figure(
            f"arrival at the last of {count} brokers, p99 ms",
            (index, applied, "p99"),
            (*theirs, "p99"),
        ),
        Figure(
            f"until all {count} brokers know that LAO covers it, p50 ms",
            (index, "all_told_from_send_ms", "p50"),
        ),
        *(
            Figure(
                f"CPU of {who}, µs per write and broker",
                (index, "cpu_us_per_delivery", key),
                ("cpu_us_per_delivery", str(count), key),
            )
            for who, key in (
                ("the servers", "servers"),
                ("the writer and the brokers", "client"),
            )
        ),
    )


def _watchers(
    index: int, count: int, shared: str = "", *, laned: bool = False
) -> tuple[Figure, ...]:
    """Return the figures for one number of watchers; raftlog's rows are a list, the peer's have
    names. ``shared``: the way in which they share streams.
    """
    of, theirs = f"{count:,} watchers", str(count)
    if shared:
        of, theirs = f"{of} on {shared}", f"{count} shared"
    if laned:
        of += ", each of raftlog's on its own lane"
    return (
        *(
            Figure(f"{of}: {who} watcher, {name} ms", (index, key, name), (theirs, key, name))
            for who, key in (("first", "first_from_send_ms"), ("last", "last_from_send_ms"))
            for name in ("p50", "p99")
        ),
        *(
            Figure(f"{of}: {label}", (index, key), (theirs, key))
            for label, key in (
                (
                    "CPU of the brokers, µs per delivered change",
                    "cpu_us_per_delivery",
                ),
                ("memory, kB per watcher", "memory_kb_per_watcher"),
                ("CPU while nothing changes, % of a core", "idle_cpu_percent"),
            )
        ),
    )


def _own_keys(index: int, count: int) -> tuple[Figure, ...]:
    of, key = f"{count:,} watchers, each of a different key", "first_from_send_ms"
    return (
        *(
            Figure(
                f"{of}: the key's only watcher, {name} ms", (index, key, name), ("own", key, name)
            )
            for name in ("p50", "p99")
        ),
        Figure(
            f"{of}: CPU of the brokers, µs per change",
            (index, "cpu_us_per_delivery"),
            ("own", "cpu_us_per_delivery"),
        ),
    )


def _leases() -> tuple[Figure, ...]:
    """Return the steps by name; both sides use the same names."""
    found: list[Figure] = []
    for step in ("one client", "many clients"):
        of = "3,000 leases of one client" if step == "one client" else "3,000 leases of 100 clients"
        found += [
            *(
                Figure(
                    f"{of}: CPU of {who}, µs per keep-alive",
                    *_both(step, "cpu_us_per_keep_alive", key),
                )
                for who, key in (("the servers", "servers"), ("the clients", "client"))
            ),
            Figure(
                f"{of}: shortest remaining time of any lease, s",
                *_both(step, "least_left_s"),
                better="",
            ),
            Figure(f"{of}: grants/s, 64 in flight", *_both(step, "grants_per_s"), better="more"),
            Figure(f"{of}: revocations/s", *_both(step, "revocations_per_s"), better="more"),
        ]
    for label, step, key in (
        ("a lock without contention: acquire", "lock", "acquire_ms"),
        ("a lock without contention: release", "lock", "release_ms"),
        ("a lock with 50 contenders: from release to the next holder", "hand-over", "hand_over_ms"),
        (
            "an election with a lease of 2 s: from the leader's death to the next leader",
            "election",
            "dead_until_led_ms",
        ),
    ):
        found += [Figure(f"{label}, {name} ms", *_both(step, key, name)) for name in ("p50", "p99")]
        if step != "election" and key != "acquire_ms":
            path = _both(step, "cpu_us_per_lock", "servers")
            found.append(Figure("CPU of the servers, µs per lock", *path))
    return tuple(found)


def _spread(index: int, key: str, label: str, theirs: str = "") -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{label}, {name} ms", (index, key, name), (theirs, name) if theirs else ())
        for name in ("p50", "max")
    )


def _requests(index: int, label: str) -> tuple[Figure, ...]:
    return (
        Figure(f"{label}: requests/s", (index, "writes_per_s")),
        Figure(f"{label}: p50 ms", (index, "latency_ms", "p50")),
        Figure(f"{label}: p99 ms", (index, "latency_ms", "p99")),
    )


def _partitions() -> tuple[Figure, ...]:
    return (
        Figure("partitions/s until the reply", (0, "partitions_per_s_to_reply")),
        Figure(
            "partitions/s until all brokers have applied them", (0, "partitions_per_s_everywhere")
        ),
    )


def _scale() -> tuple[Figure, ...]:
    named = {
        "created_partitions_per_s": "partitions created per second",
        "log_bytes_per_partition": "log, bytes per partition",
        "snapshot_bytes_per_partition": "snapshot, bytes per partition",
        "restart_one_until_high_watermark_s": "one controller restarted, until it knows the "
        "high watermark, s",
        "restart_one_until_image_s": "one controller restarted, until its image is complete, s",
        "kill_all_restart_until_write_s": "all controllers killed and restarted, until a write is acknowledged, s",
        "broker_start_until_unfenced_s": "a new broker, from its start until it is unfenced, s",
    }
    bytes_of = (
        Figure(
            f"memory of {who} {number + 1}, bytes per partition",
            (0, f"{who}_bytes_per_partition", number),
        )
        for who in ("controller", "broker")
        for number in range(3)
    )
    return (*bytes_of, *(Figure(label, (0, key)) for key, label in named.items()))


def _broker_lives() -> tuple[Figure, ...]:
    found: list[Figure] = []
    for index, way in enumerate(("kill -9", "kill -9 and an immediate restart", "SIGTERM")):
        if index != 1:
            found += _spread(
                index, "until_out_ms", f"after {way}, until another broker shows it as fenced"
            )
        found += _spread(
            index, "up_until_unfenced_ms", f"after {way}, from its restart until it is unfenced"
        )
    return tuple(found)


def _heartbeats() -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{count} brokers: CPU of the leader, % of a core", (index, "leader_cpu_percent"))
        for index, count in enumerate((0, 100, 1000))
    )


def _records() -> tuple[Figure, ...]:
    found = []
    for index, shape in enumerate(
        ("1 in flight", "64 in flight", "1,000 in flight", "1,000 in flight, of 1,000 bytes each")
    ):
        found += [
            Figure(f"{shape}: records/s", (index, "records/s")),
            Figure(f"{shape}: p50 ms", (index, "ms", "p50")),
            Figure(f"{shape}: p99 ms", (index, "ms", "p99")),
        ]
    return tuple(found)


ENTRIES: dict[str, Entry] = {
    "w1": Entry("one write in flight", "w1", _rate(), repeated=True, floor_of=_rate()[1]),
    "w1e": Entry(
        "one write in flight, gRPC's EventEngine on",
        "w1",
        _rate(),
        repeated=True,
        environment=ENGINE_ON,
    ),
    "w2": Entry("64 in flight, one connection", "w2", _rate(), repeated=True),
    "w3": Entry("1,000 in flight, ten connections", "w3", _rate(), repeated=True),
    "w4": Entry(
        "requests of 100 writes to fresh keys, 8 in flight",
        "w4",
        _rate(" per request"),
        repeated=True,
    ),
    "w5": Entry(
        "a write every 10 ms; times since it was sent (etcd: watchers instead of brokers)",
        "w5",
        (*_observers(0, 3), *_observers(1, 30), *_observers(2, 100)),
        seconds_factor=2.0,
    ),
    "w6": Entry(
        "the leader dies while a writer retries; time until the first write in a new epoch",
        "w6",
        (
            *_spread(0, "signal_to_first_write_ms", "kill -9", "gap_ms"),
            *_spread(1, "signal_to_first_write_ms", "SIGSTOP (a silent host)"),
        ),
        inner=15,
    ),
    "w7": Entry("100,000 partitions, replication factor 3, three brokers", "w7", _scale()),
    "w8": Entry(
        "the idle quorum",
        "w8",
        (
            Figure(
                "CPU of three nodes, s per minute", (0, "cpu_s_per_minute"), ("cpu_s_per_minute",)
            ),
        ),
    ),
    "w9": Entry(
        "leadership transfer while a writer retries; longest gap between writes",
        "w9",
        (
            *_spread(0, "longest_gap_ms", "transfer by request", "gap_ms"),
            *_spread(1, "longest_gap_ms", "SIGTERM"),
        ),
        inner=10,
    ),
    "k1": Entry(
        "one request in flight, three real brokers",
        "k1",
        (
            *_requests(0, "alter a topic's config"),
            *_requests(1, "create a topic"),
            Figure("a visible write every 100 ms, p50 ms", (2, "latency_ms", "p50")),
            Figure("a visible write every 100 ms, p99 ms", (2, "latency_ms", "p99")),
        ),
    ),
    "k2": Entry(
        "64 requests in flight, three real brokers",
        "k2",
        (*_requests(0, "alter a topic's config"), *_requests(1, "create a topic")),
    ),
    "k3": Entry(
        "one call that creates 2,000 partitions, replication factor 3, three brokers without a data plane",
        "k3",
        _partitions(),
    ),
    "k3r": Entry(
        "one call that creates 2,000 partitions, replication factor 3, three real brokers",
        "k3r",
        _partitions(),
    ),
    "k4": Entry(
        "three brokers and 20 writes/s; times since a write was sent",
        "k4",
        _observers(0, 3),
    ),
    "k6": Entry("a broker stops and returns (session timeout 9 s)", "k6", _broker_lives(), inner=3),
    "watch": Entry(
        "watchers of one prefix on three brokers (etcd: three members); times from a write to its arrival",
        "watch",
        (
            *(*_watchers(0, 10), *_watchers(1, 1_000), *_watchers(2, 10_000)),
            *_own_keys(3, 10_000),
            *(*_watchers(4, 1_000, "six streams"), *_watchers(5, 10_000, "six streams")),
            *_watchers(6, 10, laned=True),
            *(*_watchers(7, 1_000, laned=True), *_watchers(8, 10_000, laned=True)),
        ),
    ),
    "leases": Entry(
        "leases of 10 s, locks and elections of the client library (etcd: its Go client)",
        "leases",
        _leases(),
    ),
    "k7": Entry(
        "brokers that heartbeat every 2 s, each on its own connection", "k7", _heartbeats()
    ),
    "d1": Entry("records with acks=all to six partitions of three replicas", "d1", _records()),
}
ENTRIES |= {
    f"{name}s": replace(
        ENTRIES[name], title=f"with mutual TLS, {ENTRIES[name].title}", acls=SECURED_ACLS
    )
    for name in ("w1", "w2", "w3", "w4")
}


def dig(result: Any, path: Path) -> float | None:
    """Return the number at a path, or None if it does not exist."""
    for key in path:
        try:
            result = result[key]
        except (KeyError, IndexError, TypeError):
            return None
    return float(result) if path and isinstance(result, int | float) else None
