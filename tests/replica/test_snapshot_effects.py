"""The shell's work on fetched and own snapshots, and on the log below them."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scenarios import simulated
from test_shell_rules import Shell

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.metadata.control_records import NO_GENERATION, GenerationAt
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.node.recovery.first_chunk import beginning_chunk
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2 as pb

VOTERS = (Voter(1, "c1:9093", "dir-1"), Voter(7, "c7:9093", "dir-7"))
ID = SnapshotId(40, 3)


def content(
    snapshot_id: SnapshotId = ID, cluster_id: str = "c", voters: tuple[Voter, ...] = VOTERS
) -> bytes:
    header = SnapshotHeader(
        cluster_id, (3,), snapshot_id.end_offset, snapshot_id.epoch, 5000, voters
    )
    return encode_header(header) + encode_footer(header, 1, 0)


class Stage(Shell):
    """A shell whose events are recorded, and never reach the state machine."""

    def __init__(self, wall_clock_ms: Callable[[], int] = lambda: 1000) -> None:
        super().__init__(wall_clock_ms)
        self.events: list[Any] = []
        for stepping in (self.replica, self.replica._log, self.replica.snapshots):
            stepping._step = self._note  # type: ignore[method-assign]

    def _note(self, event: Any) -> None:
        if not isinstance(event, ev.Tick):
            self.events.append(event)

    def fetch(self, data: bytes, snapshot_id: SnapshotId = ID) -> None:
        half = len(data) // 2
        self.replica._store_snapshot(ev.StoreSnapshot(snapshot_id, 0, data[:half], False))
        self.replica._store_snapshot(ev.StoreSnapshot(snapshot_id, half, data[half:], True))

    def append(self, count: int) -> None:
        self.append_stamped(*[1] * count)

    def append_stamped(self, *timestamps_ms: int) -> None:
        for stamp_ms in timestamps_ms:
            end = self.replica.log_end_offset
            data = batch.encode(
                [batch.RecordData(20, 0, b"a")], base_offset=end, epoch=1, timestamp_ms=stamp_ms
            )
            self.replica._append(ev.Append(ev.LogSpan(end, end + 1, ((1, end),), data, stamp_ms)))
        self.replica._flush(ev.Flush())


@simulated
async def test_sound_snapshot_replaces_the_log_and_reports_its_voters() -> None:
    stage = Stage()
    stage.append(3)
    stage.fetch(content())
    assert stage.replica.log_end_offset == 3, "not before it is durable"
    await asyncio.sleep(1)
    assert stage.events[-1] == ev.SnapshotStored(ID, VOTERS, (3,))
    replica = stage.replica
    assert (replica.log_start_offset, replica.log_end_offset) == (40, 40)
    assert replica.snapshots.ids == (ID,)
    assert replica._log.last_timestamp_ms == 5000
    stage.append(1)
    assert len(replica.read(40, 41, 100)) > 0


@simulated
async def test_recovery_in_the_leaders_log_ends_the_generation() -> None:
    replica = Stage().replica
    chunk = beginning_chunk(pb.RecoveryRecord(), VOTERS, base_offset=0, epoch=1, timestamp_ms=1)
    steps: list[ev.Event] = []
    replica._step = steps.append  # type: ignore[method-assign, assignment]
    replica.answered(2, 7, quorum_pb2.FetchResponse(records=chunk))
    [event] = steps
    assert isinstance(event, ev.ResponseReceived)
    assert event.span is not None
    assert event.span.generations == (GenerationAt(0, NO_GENERATION),)


def damaged() -> bytes:
    data = bytearray(content())
    data[len(data) // 3] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (damaged(), ""),
        (content(cluster_id="other"), "to cluster 'other', but this directory to cluster 'c'"),
        (
            content(voters=(Voter(1, "c1:9093", "a"), Voter(1, "c2:9093", "b"))),
            "voters in the snapshot are invalid",
        ),
    ],
    ids=["damaged", "of another cluster", "with impossible voters"],
)
@simulated
async def test_refused_snapshot_changes_nothing_and_is_reported(sent: bytes, why: str) -> None:
    stage = Stage()
    stage.append(3)
    stage.fetch(sent)
    await asyncio.sleep(1)
    [event] = [event for event in stage.events if isinstance(event, ev.SnapshotStored)]
    assert (event.snapshot_id, event.voters) == (ID, ())
    assert event.error
    assert why in event.error
    assert stage.replica.log_end_offset == 3
    assert stage.replica.snapshots.ids == ()
    assert not stage.failures
    stage.fetch(content())
    await asyncio.sleep(1)
    assert stage.events[-1] == ev.SnapshotStored(ID, VOTERS, (3,))


def own(offset: int) -> tuple[SnapshotHeader, Any]:
    image = Image(offset, 1, 1)
    header = header_of(image, cluster_id="c", generations=())
    return header, pieces(image, header)


@simulated
async def test_own_snapshot_is_frozen_before_it_is_reported() -> None:
    stage = Stage()
    stage.append(10)
    told: list[tuple[SnapshotId, int]] = []
    stage.replica.snapshots.write(*own(7), lambda id_, size: told.append((id_, size)))
    assert not list(stage.replica.snapshots.ids)
    await asyncio.sleep(1)
    snapshot_id = SnapshotId(8, 1)
    assert ev.SnapshotFrozen(snapshot_id) in stage.events
    assert stage.replica.snapshots.ids == (snapshot_id,)
    assert told == [(snapshot_id, stage.replica.snapshots.size(snapshot_id))]


@simulated
async def test_installed_snapshot_ends_the_one_being_written() -> None:
    stage = Stage()
    stage.append(10)
    header, made = own(7)
    told: list[SnapshotId] = []

    def slowly() -> Iterator[bytes]:
        yield from made
        for _ in range(10_000):
            yield b""

    stage.replica.snapshots.write(header, slowly(), lambda id_, _: told.append(id_))
    await asyncio.sleep(0.1)
    stage.fetch(content())
    await asyncio.sleep(60)
    assert stage.replica.snapshots.ids == (ID,)
    assert told == []
    assert not any(isinstance(event, ev.SnapshotFrozen) for event in stage.events)
    # And another one can be written.
    stage.append(3)
    stage.replica.snapshots.write(*own(41), lambda id_, _: told.append(id_))
    await asyncio.sleep(1)
    assert told == [SnapshotId(42, 1)]


@simulated
async def test_log_start_waits_for_the_own_disk_and_then_nothing_below_is_served() -> None:
    stage = Stage()
    replica = stage.replica
    stage.append(10)
    replica.snapshots.write(*own(7), lambda *_: None)
    durable = replica._log.durable_end_offset
    replica._log.durable_end_offset = 7
    await asyncio.sleep(1)
    snapshot_id = SnapshotId(8, 1)
    replica._log.durable_end_offset = 7
    assert not replica.advance_log_start(snapshot_id)
    assert (replica.log_start_offset, len(replica.read(0, 1, 100)) > 0) == (0, True)
    replica._log.durable_end_offset = max(durable, 10)
    assert replica.advance_log_start(snapshot_id)
    assert stage.events[-1] == ev.LogStartAdvanced(snapshot_id)
    assert replica.log_start_offset == 8
    assert replica._log._tail.read(7, 10, 1000) is None
    assert [header.base_offset for header in batch.headers(replica.read(8, 10, 1000))] == [8, 9]


# --- log time ------------------------------------------------------------------------------------


@simulated
async def test_timestamp_without_a_batch_does_not_count_as_log_time() -> None:
    clock_ms = [4_000_000]
    stage = Stage(lambda: clock_ms[0])
    stage.append_stamped(8_000)
    assert stage.replica.next_timestamp_ms() == 4_000_000
    # The clock was set back before anything was appended.
    clock_ms[0] = 7_000
    assert stage.replica.next_timestamp_ms() == 8_000


@simulated
async def test_log_time_of_dropped_batches_is_dropped() -> None:
    stage = Stage(lambda: 8_500)
    stage.append_stamped(7_000, 9_000, 4_000_000)
    assert stage.replica.next_timestamp_ms() == 4_000_000
    stage.replica._truncate(ev.Truncate(2))
    assert stage.replica.next_timestamp_ms() == 9_000
    stage.replica._truncate(ev.Truncate(1))
    assert stage.replica.next_timestamp_ms() == 8_500
