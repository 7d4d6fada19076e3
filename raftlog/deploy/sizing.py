"""The needs of a cluster of a given size, from measurements: ``raftlog deploy size``."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured range, from the lowest to the highest value, or a default."""

    least: float
    most: float
    source: str


FIGURES = {
    "node_bytes": Figure(
        72 * MIB, 75 * MIB, "resident memory of an idle controller or broker, x86-64, Python 3.11"
    ),
    "controller_bytes_per_partition": Figure(397, 433, "docs/benchmarks.md, w7"),
    "broker_bytes_per_partition": Figure(468, 483, "docs/benchmarks.md, w7"),
    "log_bytes_per_partition": Figure(41, 41, "docs/benchmarks.md, w7"),
    "snapshot_bytes_per_partition": Figure(41, 41, "docs/benchmarks.md, w7"),
    "log_bytes_per_write": Figure(
        44, 103, "retention.ms of the topic orders, 64 in a batch and one alone"
    ),
    "leader_cpu_percent_per_broker": Figure(0.02, 0.04, "docs/benchmarks.md, k7"),
    "retention_bytes": Figure(100 * MIB, 100 * MIB, "metadata.max.retention.bytes"),
    "between_snapshots_bytes": Figure(
        20 * MIB, 20 * MIB, "metadata.log.max.record.bytes.between.snapshots"
    ),
    "free_space_reserve_bytes": Figure(
        256 * MIB, 256 * MIB, "metadata.log.free.space.reserve.bytes"
    ),
}
_STATE_WITHOUT_FACTOR = 4 * MIB
_SNAPSHOT_FACTOR = 4
_VOTERS = 3


@dataclass(frozen=True, slots=True)
class Size:
    """The needs of each controller and broker, calculated from the larger figures, without
    buffers.
    """

    controller_memory_bytes: int
    broker_memory_bytes: int
    controller_disk_bytes: int
    """Retained log and snapshots, and the space to keep free, in bytes."""
    controller_log_bytes_per_day: int
    controller_fsyncs_per_second: float
    leader_cpu_percent_for_heartbeats: float
    leader_sent_bytes_per_second: int
    """Bytes of records per second that the leader sends to the other two voters and to each
    broker.
    """


def size(partitions: int, brokers: int, writes_per_second: float, sync_ms: float) -> Size:
    """Return the needs of three controllers and ``brokers`` brokers, whose disks sync in
    ``sync_ms``.

    Writes that arrive while a disk syncs share the next sync, so a slow disk syncs less often.
    """
    most = {name: figure.most for name, figure in FIGURES.items()}
    written = writes_per_second * most["log_bytes_per_write"]
    snapshot = partitions * most["snapshot_bytes_per_partition"]
    between = most["between_snapshots_bytes"]
    if snapshot > _STATE_WITHOUT_FACTOR:
        between = max(between, _SNAPSHOT_FACTOR * snapshot)
    # The newest snapshot is kept regardless of retention, and the next is written next to it.
    kept = max(most["retention_bytes"], snapshot) + between + snapshot
    return Size(
        round(most["node_bytes"] + partitions * most["controller_bytes_per_partition"]),
        round(most["node_bytes"] + partitions * most["broker_bytes_per_partition"]),
        round(kept + most["free_space_reserve_bytes"]),
        round(written * DAY_S),
        min(writes_per_second, 1000 / sync_ms),
        brokers * most["leader_cpu_percent_per_broker"],
        round(written * (_VOTERS - 1 + brokers)),
    )
