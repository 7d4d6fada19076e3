"""Snapshots and the log start, in the real and the simulated store."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from storage_kit import (
    IDENTITY,
    Machine,
    SimMachine,
    flush,
    make_chunk,
    make_snapshot,
    open_rocks,
    rocks_machine,
    snapshot_content,
    write_vote,
)

from raftlog import batch
from raftlog.endpoint import Voter, VotersAt
from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.metadata.control_records import to_entries
from raftlog.metadata.records import record
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.storage import log_store
from raftlog.node.storage.api import LogStore, SnapshotId, VoteState
from raftlog.node.storage.directory import LogState, read_identity, read_log_state, write_log_state
from raftlog.node.storage.files import write_vote_file
from raftlog.node.storage.log_bounds import started_at
from raftlog.node.storage.reader import open_read_only
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.ops.logs import open_log
from raftlog.wire.records.v1 import records_pb2 as pb

VOTERS = (Voter(1, "one:1", "d1"), Voter(2, "two:2", "d2"))


@pytest.fixture(params=["rocks", "sim"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    is_sim = request.param == "sim"
    made = SimMachine() if is_sim else rocks_machine(tmp_path / "data", monkeypatch)
    yield made
    made.close()


async def written(machine: Machine) -> LogStore:
    """A store with the log [0, 10): chunks [0, 4), [4, 8) of epoch 1, [8, 10) of epoch 2."""
    store, _ = machine.open()
    for base, chunk in (
        (0, make_chunk(0, 1, 3)),
        (4, make_chunk(4, 2, 2)),
        (8, make_chunk(8, 2, epoch=2)),
    ):
        store.append(chunk, base, base + (2 if base == 8 else 4))
    assert await flush(store) == 10
    return store


async def test_snapshot_appears_whole_and_stays(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    assert await make_snapshot(store, one) is None
    data = snapshot_content(one)
    for _ in range(2):
        assert store.snapshot_size(one) == len(data)
        assert store.read_snapshot(one, 0, 100) == data[:100]
        assert store.read_snapshot(one, 100, 1 << 20) == data[100:]
        assert store.read_snapshot(one, len(data), 10) == b""
        assert store.snapshot_header(one).end_offset == 6
        store, found = machine.reopen()
        assert (found.snapshots, found.start_offset, found.end_offset) == ((one,), 0, 10)


async def test_damaged_snapshot_never_appears_and_the_store_continues(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    good = snapshot_content(one)
    changed = good[:300] + bytes([good[300] ^ 1]) + good[301:]
    for bad in (changed, good[:-1], good[:200], good + good, snapshot_content(SnapshotId(7, 1))):
        assert isinstance(await make_snapshot(store, one, bad), CorruptLogError)
        with pytest.raises(LookupError):
            store.snapshot_size(one)
    assert await make_snapshot(store, one) is None
    store.append(make_chunk(10, 1, epoch=2), 10, 11)
    assert await flush(store) == 11


async def test_snapshot_with_a_refused_header_never_appears(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    seen: list[SnapshotHeader] = []

    def refuse(header: SnapshotHeader) -> None:
        seen.append(header)
        raise CorruptLogError("not for this node")

    failure = await make_snapshot(store, one, accept=refuse)
    assert isinstance(failure, CorruptLogError)
    assert "not for this node" in str(failure)
    assert [(header.cluster_id, header.end_offset) for header in seen] == [("c1", 6)]
    with pytest.raises(LookupError):
        store.snapshot_size(one)
    store, found = machine.reopen()
    assert (found.snapshots, found.end_offset) == ((), 10)
    assert await make_snapshot(store, one, accept=seen.append) is None
    assert store.snapshot_size(one) == len(snapshot_content(one))


async def test_parts_must_be_in_order_and_a_restart_drops_earlier_ones(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 5, b"x")
    store.store_snapshot(one, 0, b"garbage")
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 8, b"x")
    store.drop_snapshot(one)
    store.drop_snapshot(one)
    assert await make_snapshot(store, one) is None


async def test_incomplete_snapshot_is_deleted_at_a_restart(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    store.store_snapshot(one, 0, snapshot_content(one)[:100])
    store, found = machine.reopen()
    assert found.snapshots == ()
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 100, b"x")


async def test_log_start_moves_and_earlier_records_are_deleted(machine: Machine) -> None:
    store = await written(machine)
    old, one = SnapshotId(4, 1), SnapshotId(6, 1)
    assert await make_snapshot(store, old) is None
    assert await make_snapshot(store, one) is None
    with pytest.raises(LookupError):
        store.advance_log_start(SnapshotId(8, 1))
    store.advance_log_start(one)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"has \["):
            store.read(4, until=8, max_bytes=100)
        assert store.read(6, until=10, max_bytes=1 << 20) == make_chunk(4, 2, 2)[
            len(make_chunk(4, 2)) :
        ] + make_chunk(8, 2, epoch=2)
        with pytest.raises(LookupError):
            store.snapshot_size(old)
        with pytest.raises(ValueError, match=r"has \["):
            store.truncate(5)
        store, found = machine.reopen()
        assert (found.start_offset, found.start_epoch, found.end_offset) == (6, 1, 10)
        assert found.epochs == ((1, 6), (2, 8))
        assert found.snapshots == (one,)
        assert found.last_timestamp_ms == 1_000
    store.truncate(6)
    store.append(make_chunk(6, 1, epoch=3), 6, 7)
    assert await flush(store) == 7
    store, found = machine.reopen()
    assert (found.start_offset, found.end_offset, found.epochs) == (6, 7, ((3, 6),))
    assert store.read(6, until=7, max_bytes=100) == make_chunk(6, 1, epoch=3)


async def test_installed_snapshot_replaces_the_log(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(50, 4)
    assert await make_snapshot(store, one, snapshot_content(one, VOTERS)) is None
    store.install_snapshot(one)
    assert await flush(store) == 50
    message = pb.VotersRecord(voters=to_entries(VOTERS[:1]))
    tail = batch.encode(
        [record(message).data], base_offset=50, epoch=4, timestamp_ms=8_000, control=True
    )
    store.append(tail, 50, 51)
    assert await flush(store) == 51
    store, found = machine.reopen()
    assert (found.start_offset, found.start_epoch, found.end_offset) == (50, 4, 51)
    assert found.voters == (VotersAt(50, VOTERS), VotersAt(50, VOTERS[:1]))
    assert (found.epochs, found.last_timestamp_ms) == (((4, 50),), 8_000)
    assert store.read(50, until=51, max_bytes=1 << 20) == tail


async def test_snapshot_completed_too_late_does_not_count_after_a_restart(machine: Machine) -> None:
    """The snapshot was abandoned during its completion, and another one was installed."""
    store = await written(machine)
    late, one = SnapshotId(4, 1), SnapshotId(50, 4)
    assert await make_snapshot(store, one) is None
    store.install_snapshot(one)
    assert await make_snapshot(store, late) is None
    store.close()
    for _ in range(2):
        store, found = machine.open()
        assert (found.start_offset, found.snapshots) == (50, (one,))
        with pytest.raises(LookupError):
            store.snapshot_size(late)
        store.close()


async def test_interrupted_installation_is_retried(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(50, 4)
    assert await make_snapshot(store, one, snapshot_content(one, VOTERS)) is None
    store, found = machine.reopen()
    assert (found.start_offset, found.start_epoch, found.end_offset) == (50, 4, 50)
    assert found.epochs == ()
    assert (found.voters, found.last_timestamp_ms) == ((VotersAt(50, VOTERS),), 7_000)
    assert store.read(50, until=50, max_bytes=10) == b""
    store.append(make_chunk(50, 1, epoch=4), 50, 51)
    assert await flush(store) == 51


async def test_corrupt_snapshot_is_skipped_for_an_older_one_or_refused(tmp_path: Path) -> None:
    machine = rocks_machine(tmp_path / "data", pytest.MonkeyPatch())
    store = await written(machine)
    for one in (SnapshotId(4, 1), SnapshotId(6, 1)):
        assert await make_snapshot(store, one) is None
    store.advance_log_start(SnapshotId(4, 1))
    store.close()
    newest, older = (tmp_path / f"data/snapshots/{n:020d}-{1:010d}.checkpoint" for n in (6, 4))
    data = bytearray(newest.read_bytes())
    data[400] ^= 4
    newest.write_bytes(data)
    store, found = machine.open()
    assert (found.snapshots, found.start_offset) == ((SnapshotId(4, 1),), 4)
    store.close()
    assert newest.with_name(newest.name + ".corrupt").read_bytes() == data
    older.write_bytes(older.read_bytes()[:-3])
    with pytest.raises(CorruptLogError, match="no intact snapshot covers"):
        machine.open()


async def test_simulated_disk_flips_bits_that_are_detected() -> None:
    for seed in range(30):
        machine, rng = SimMachine(), Random(seed)
        store = await written(machine)
        one = SnapshotId(8, 1)
        assert await make_snapshot(store, one) is None
        store.advance_log_start(one)
        store.close()
        assert machine.disk.flip_bit(rng, rng.choice(("log", "snapshot", "vote")))
        with pytest.raises(CorruptLogError):
            machine.open()


class _DiedError(Exception):
    pass


@pytest.mark.parametrize("moves_start", [False, True])
async def test_simulated_disk_may_die_between_steps_and_is_whole_again(moves_start: bool) -> None:
    newer = SnapshotId(8, 1) if moves_start else SnapshotId(20, 3)
    left: set[tuple[tuple[SnapshotId, ...], int, int]] = set()
    for die_at in range(1, 6):
        machine = SimMachine()
        store = await written(machine)
        assert await write_vote(store, VoteState(3)) is None
        for one in (SnapshotId(4, 1), newer):
            assert await make_snapshot(store, one) is None
        store.advance_log_start(SnapshotId(4, 1))
        steps = 0

        def between(die_at: int = die_at, machine: SimMachine = machine) -> None:
            nonlocal steps
            steps += 1
            if steps == die_at:
                raise _DiedError

        machine.disk.between_steps = between
        with contextlib.suppress(_DiedError):
            (store.advance_log_start if moves_start else store.install_snapshot)(newer)
        machine.disk.between_steps = lambda: None
        disk = machine.disk
        left.add((tuple(sorted(disk.snapshots)), disk.state.start_offset, disk.durable.size()))
        disk.crash(Random(die_at))
        _, found = machine.open()
        # Whole again: an installation is done again, a start that has moved stays.
        assert found.snapshots == (newer,)
        assert (found.start_offset, found.end_offset) == ((8, 10) if moves_start else (20, 20))
    # Before, after, and what lies between: each step shows.
    assert len(left) == (3 if moves_start else 4)


async def test_format_version_two_begins_with_the_first_log_start(tmp_path: Path) -> None:
    machine = rocks_machine(tmp_path / "data", pytest.MonkeyPatch())
    store = await written(machine)
    assert await make_snapshot(store, SnapshotId(6, 1)) is None
    assert read_identity(tmp_path / "data").format_version == 1
    store.advance_log_start(SnapshotId(6, 1))
    store.close()
    identity = read_identity(tmp_path / "data")
    assert (identity.format_version, identity.directory_id) == (2, IDENTITY.directory_id)


async def test_space_is_reclaimed_when_the_log_start_advances(tmp_path: Path) -> None:
    machine = rocks_machine(tmp_path / "data", pytest.MonkeyPatch())
    store, _ = machine.open()
    rng = Random(1)
    for base in range(0, 640, 10):
        store.append(make_chunk(base, 10, body=rng.randbytes(100_000)), base, base + 10)
    assert await flush(store) == 640
    one = SnapshotId(630, 1)
    assert await make_snapshot(store, one) is None
    used = store.used_bytes()
    assert used > 60_000_000
    store.advance_log_start(one)
    store, found = machine.reopen()
    assert (found.start_offset, found.end_offset) == (630, 640)
    assert store.used_bytes() < used / 10
    assert store.free_bytes() > 0
    store.close()


async def test_snapshot_restarted_during_a_sync_is_another(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    store.store_snapshot(one, 0, snapshot_content(one))
    heard: list[FatalError | None] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def first(error: FatalError | None) -> None:
        heard.append(error)
        done.set_result(None)

    store.freeze_snapshot(one, first)
    store.store_snapshot(one, 0, snapshot_content(one)[:300])
    store.store_snapshot(one, 300, b"other")
    async with asyncio.timeout(60):
        await done
    assert heard == [None]
    assert store.read_snapshot(one, 0, 1 << 20) == snapshot_content(one)
    store.drop_snapshot(one)
    store, found = machine.reopen()
    assert found.snapshots == (one,)
    assert store.read_snapshot(one, 0, 1 << 20) == snapshot_content(one)


async def test_log_start_may_move_above_what_is_durable(machine: Machine) -> None:
    """A leader's disk may be behind the majority's; the durable snapshot holds the rest."""
    store = await written(machine)
    store.append(make_chunk(10, 2, epoch=2), 10, 12)
    one = SnapshotId(12, 2)
    assert await make_snapshot(store, one) is None
    store.advance_log_start(one)
    assert await make_snapshot(store, SnapshotId(14, 3)) is None
    with pytest.raises(ValueError, match="log start to 14"):
        store.advance_log_start(SnapshotId(14, 3))
    store.append(make_chunk(12, 1, epoch=2), 12, 13)
    store.truncate(12)
    store.append(make_chunk(12, 3, epoch=3), 12, 15)
    assert await flush(store) == 15
    store, found = machine.reopen()
    assert (found.start_offset, found.end_offset, found.epochs) == (12, 15, ((3, 12),))


async def test_log_start_stays_after_a_crash() -> None:
    for seed in range(40):
        machine = SimMachine()
        store = await written(machine)
        for base in (10, 12, 14):
            store.append(make_chunk(base, 2, epoch=2), base, base + 2)
        one = SnapshotId(14, 2)
        assert await make_snapshot(store, one) is None
        store.advance_log_start(one)
        machine.disk.crash(Random(seed))
        store, found = machine.open()
        assert (found.start_offset, found.start_epoch, found.snapshots) == (14, 2, (one,))
        assert found.end_offset in {14, 16}
        store.truncate(14)
        store.append(make_chunk(14, 1, epoch=3), 14, 15)
        assert await flush(store) == 15
        assert store.read(14, until=15, max_bytes=1) == make_chunk(14, 1, epoch=3)
        store.truncate(14)
        assert await flush(store) == 14
        store.close()


async def test_records_below_the_log_start_are_deleted_at_startup(tmp_path: Path) -> None:
    """The start is durable before the deletions, of which unsynced ones may be lost."""
    machine = rocks_machine(tmp_path / "data", pytest.MonkeyPatch())
    store = await written(machine)
    one = SnapshotId(50, 4)
    assert await make_snapshot(store, one) is None
    store.close()
    state = read_log_state(tmp_path / "data")
    write_log_state(tmp_path / "data", started_at(state, one))
    for _ in range(2):
        opened, found = machine.open()
        assert (found.start_offset, found.end_offset) == (50, 50)
        opened.append(make_chunk(50, 1, epoch=5), 50, 51)
        opened.truncate(50)
        assert await flush(opened) == 50
        opened.close()
    rocks = RocksLog(tmp_path / "data" / "log", read_only=True)
    assert list(rocks.scan(0)) == []
    rocks.close()


async def test_vote_older_than_the_log_is_refused(tmp_path: Path, machine: Machine) -> None:
    store = await written(machine)
    assert await write_vote(store, VoteState(epoch=51)) is None
    store.append(make_chunk(10, 1, epoch=51), 10, 11)
    assert await flush(store) == 11
    store.close()
    if isinstance(machine, SimMachine):
        machine.disk.vote = VoteState(epoch=50)
    else:
        write_vote_file(tmp_path / "data", VoteState(epoch=50))
    with pytest.raises(CorruptLogError, match="epoch 50, but the log has records of epoch 51"):
        machine.open()


async def test_vote_older_than_the_snapshot_is_refused(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(60, 52)
    assert await make_snapshot(store, one) is None
    store.close()
    with pytest.raises(CorruptLogError, match="epoch 50, but the log has records of epoch 52"):
        machine.open()


async def test_log_that_lost_its_end_is_not_taken_for_one_being_replaced(tmp_path: Path) -> None:
    """The log is older than the newest snapshot, or missing: emptying it would drop records."""
    machine = rocks_machine(tmp_path / "data", pytest.MonkeyPatch())
    shutil.copytree(tmp_path / "data/log", tmp_path / "empty")
    store, _ = machine.open()
    store.append(make_chunk(0, 2, 2), 0, 4)
    store.close()
    shutil.copytree(tmp_path / "data/log", tmp_path / "old")
    store, _ = machine.open()
    store.append(make_chunk(4, 2, 2), 4, 8)
    assert await flush(store) == 8
    assert await make_snapshot(store, SnapshotId(6, 1)) is None
    store.close()
    for older, end in (("empty", 0), ("old", 4)):
        shutil.rmtree(tmp_path / "data/log")
        shutil.copytree(tmp_path / older, tmp_path / "data/log")
        lost = f"ends at offset {end}, but was durable up to 8"
        with pytest.raises(CorruptLogError, match=lost):
            open_read_only(tmp_path / "data")
        store = open_rocks(tmp_path / "data")
        with pytest.raises(CorruptLogError, match=lost):
            store.recover()
        store.close()


async def test_installation_interrupted_between_log_and_state_is_retried(tmp_path: Path) -> None:
    """The log is empty, and the state still names its end: that is not a lost end."""
    patch = pytest.MonkeyPatch()
    machine = rocks_machine(tmp_path / "data", patch)
    (await written(machine)).close()
    store, _ = machine.open()
    assert read_log_state(tmp_path / "data").end_offset_at_least == 10
    one = SnapshotId(50, 4)
    assert await make_snapshot(store, one, snapshot_content(one, VOTERS)) is None
    real = write_log_state
    emptied: list[LogState] = []

    def fail_once_emptied(directory: Path, state: LogState) -> None:
        if state.start_offset == 50:
            emptied.append(state)
            raise StorageError("power loss")
        real(directory, state)

    patch.setattr(log_store, "write_log_state", fail_once_emptied)
    with pytest.raises(StorageError, match="power loss"):
        store.install_snapshot(one)
    patch.undo()
    assert emptied
    with contextlib.suppress(StorageError):
        store.close()
    with open_read_only(tmp_path / "data") as reader:
        assert (reader.was_replaced, reader.end_offset) == (True, 50)
    store, found = machine.open()
    assert (found.start_offset, found.end_offset) == (50, 50)
    store.close()


async def test_reader_names_the_damaged_snapshot_that_it_skips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await written(rocks_machine(tmp_path / "data", pytest.MonkeyPatch()))
    for one in (SnapshotId(4, 1), SnapshotId(8, 1)):
        assert await make_snapshot(store, one) is None
    store.close()
    with open_log(tmp_path / "data", None, tuple, 1.0):
        assert capsys.readouterr().err == ""
    (newest,) = (tmp_path / "data/snapshots").glob(f"{8:020d}-*")
    newest.write_bytes(newest.read_bytes()[:-1])
    with open_log(tmp_path / "data", None, tuple, 1.0) as source:
        said = capsys.readouterr().err
        assert said.startswith(f"snapshot {newest} is corrupt: ")
        assert said.endswith("; ignoring it\n")
        assert source.high_watermark == 4, "what the damaged one proved is not said to be committed"
    newest.write_bytes(next((tmp_path / "data/snapshots").glob(f"{4:020d}-*")).read_bytes())
    with open_log(tmp_path / "data", None, tuple, 1.0) as source:
        said = capsys.readouterr().err
        assert (
            said
            == f"snapshot {newest} is corrupt: its header has end offset 4 and epoch 1; ignoring it\n"
        )
        assert source.high_watermark == 4
