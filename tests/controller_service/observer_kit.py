"""Observers with a fake log, and the turns of a loop that a test executes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from quorum_world import KeepingLink

from controller.service.observers import Observers
from raftlog.errors import ApiError
from raftlog.node.storage.api import SnapshotId
from raftlog.wire.controller.v1 import controller_pb2 as pb


@dataclass
class FakeSource:
    cluster_id: str = "c"
    generation: int = 5
    committed_generation: int = 5
    previous_generations: tuple[int, ...] = (3, 4)
    diverges: tuple[int, int] | None = None
    controller_epoch: int = 4
    committed_end: int = 10
    leader_id: int = 1
    lowest_acknowledged_offset: int = 5
    time: float = 0.0
    refusal: ApiError | None = None
    log_start_offset: int = 0
    newest_snapshot: SnapshotId | None = None
    reports: list[int] = field(default_factory=list)
    reads: int = 0
    size: int = 0
    """Size in bytes of what a read returns; 0: a text that names the offsets."""
    on_read: Callable[[], None] = lambda: None
    registered: frozenset[int] = frozenset()
    to_report: frozenset[int] = frozenset()

    def now(self) -> float:
        return self.time

    def not_controller(self) -> ApiError | None:
        return self.refusal

    def leader_endpoint(self, leader_id: int, listener: str) -> str:
        return f"c{leader_id}:9093{listener}" if leader_id >= 0 else ""

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        self.reads += 1
        self.on_read()
        if offset == 3:
            raise ValueError("offset 3 is not a batch boundary")
        if self.size:
            return bytes(min(max_bytes, self.size))
        return f"{offset}..{until}".encode()

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        self.reports.append(fetch.replica_id)

    def divergence(self, end_offset: int, applied: pb.AppliedBatch) -> tuple[int, int] | None:
        return self.diverges

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id in self.registered and broker_epoch == 3


def fetch(offset: int, **fields: Any) -> pb.MetadataFetchRequest:
    values = {
        "replica_id": 7,
        "high_watermark": 10,
        "max_wait_ms": 500,
        "max_bytes": 1 << 20,
        "generation": 5,
        **fields,
    }
    return pb.MetadataFetchRequest(fetch_offset=offset, **values)


class Turns:
    """The loop's turns, executed when the test wants them, and a stopwatch."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.time_s = self.cpu_s = 0.0
        self.pauses_s: list[float] = []

    def soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        self.pauses_s.append(pause_s)
        self.due.append(callback)

    def spend(self, seconds: float) -> None:
        """Let this much time pass, all of it CPU time of this process."""
        self.time_s += seconds
        self.cpu_s += seconds

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            due, self.due = self.due, []
            for callback in due:
                callback()


def observers_of(source: FakeSource, turns: Turns | None = None) -> Observers:
    turns = turns or Turns()
    return Observers(
        cast(Any, source),
        source.report,
        lambda: source.to_report,
        turns.soon,
        lambda: turns.time_s,
        lambda: turns.cpu_s,
    )


def connect(observers: Observers, peer: str = "somebody:1") -> KeepingLink:
    link = KeepingLink(peer)
    observers.accept(link)
    return link


def park(observers: Observers, turns: Turns, link: KeepingLink, **fields: Any) -> None:
    """Fetch twice: the second time there is no news."""
    for _ in range(2):
        observers.received(link, [fetch(10, **fields)])
        turns.take(3)
    link.sent.clear()
