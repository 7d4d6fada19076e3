"""Snapshots and the log start, as every LogStore promises them, asked of both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from storage_kit import IDENTITY, Machine, RocksMachine, SimMachine, flush, make_chunk

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata.records import record
from raftlog.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.storage.api import LogStore, SnapshotId
from raftlog.storage.meta_file import read_identity
from raftlog.voter import Voter, VotersAt
from raftlog.voters_log import to_entries
from raftlog.wire.records.v1 import records_pb2 as pb

VOTERS = (Voter(1, "one:1", "d1"), Voter(2, "two:2", "d2"))


@pytest.fixture(params=["rocks", "sim"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return SimMachine() if request.param == "sim" else RocksMachine(tmp_path / "data", monkeypatch)


def content(snapshot_id: SnapshotId, voters: tuple[Voter, ...] = ()) -> bytes:
    header = SnapshotHeader("c1", 0, snapshot_id.end_offset, snapshot_id.epoch, 7_000, voters, 2)
    body = batch.encode([RecordData(1008, 0, b"x" * 500)] * 9, base_offset=1, epoch=1, timestamp_ms=7_000)
    return encode_header(header) + body + encode_footer(header, 10, 99)


async def make(store: LogStore, snapshot_id: SnapshotId, data: bytes | None = None) -> FatalError | None:
    data = content(snapshot_id) if data is None else data
    for position in range(0, len(data), 700):
        store.store_snapshot(snapshot_id, position, data[position : position + 700])
    done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
    store.freeze_snapshot(snapshot_id, done.set_result)
    async with asyncio.timeout(60):
        return await done


async def written(machine: Machine) -> LogStore:
    """A store with the log [0, 10): chunks [0, 4), [4, 8) of epoch 1, [8, 10) of epoch 2."""
    store, _ = machine.open()
    for base, chunk in ((0, make_chunk(0, 1, 3)), (4, make_chunk(4, 2, 2)), (8, make_chunk(8, 2, epoch=2))):
        store.append(chunk, base, base + (2 if base == 8 else 4))
    assert await flush(store) == 10
    return store


async def test_a_snapshot_appears_whole_and_stays(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    assert await make(store, one) is None
    data = content(one)
    for _ in range(2):
        assert store.snapshot_size(one) == len(data)
        assert store.read_snapshot(one, 0, 100) == data[:100]
        assert store.read_snapshot(one, 100, 1 << 20) == data[100:]
        assert store.read_snapshot(one, len(data), 10) == b""
        assert store.snapshot_header(one).end_offset == 6
        store.close()
        store, found = machine.open()
        assert (found.snapshots, found.start_offset, found.end_offset) == ((one,), 0, 10)
    store.close()


async def test_one_that_is_not_sound_never_appears_and_the_store_lives_on(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    good = content(one)
    changed = good[:300] + bytes([good[300] ^ 1]) + good[301:]
    for bad in (changed, good[:-1], good[:200], good + good, content(SnapshotId(7, 1))):
        assert isinstance(await make(store, one, bad), CorruptLogError)
        with pytest.raises(LookupError):
            store.snapshot_size(one)
    assert await make(store, one) is None
    store.append(make_chunk(10, 1, epoch=2), 10, 11)
    assert await flush(store) == 11
    store.close()


async def test_parts_come_in_order_and_a_new_beginning_forgets_the_old_one(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 5, b"x")
    store.store_snapshot(one, 0, b"garbage")
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 8, b"x")
    store.drop_snapshot(one)
    store.drop_snapshot(one)
    assert await make(store, one) is None
    store.close()


async def test_what_was_in_the_making_is_gone_after_a_restart(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(6, 1)
    store.store_snapshot(one, 0, content(one)[:100])
    store.close()
    store, found = machine.open()
    assert found.snapshots == ()
    with pytest.raises(ValueError, match="ended"):
        store.store_snapshot(one, 100, b"x")
    store.close()


async def test_the_log_start_moves_and_what_lies_before_is_gone(machine: Machine) -> None:
    store = await written(machine)
    old, one = SnapshotId(4, 1), SnapshotId(6, 1)
    assert await make(store, old) is None
    assert await make(store, one) is None
    with pytest.raises(LookupError):
        store.advance_log_start(SnapshotId(8, 1))
    store.advance_log_start(one)
    for _ in range(2):
        with pytest.raises(ValueError, match="the log is"):
            store.read(4, until=8, max_bytes=100)
        assert store.read(6, until=10, max_bytes=1 << 20) == make_chunk(4, 2, 2)[len(make_chunk(4, 2)) :] + make_chunk(
            8, 2, epoch=2
        )
        with pytest.raises(LookupError):
            store.snapshot_size(old)
        with pytest.raises(ValueError, match="the log is"):
            store.truncate(5)
        store.close()
        store, found = machine.open()
        assert (found.start_offset, found.start_epoch, found.end_offset) == (6, 1, 10)
        assert (found.epochs, found.snapshots, found.last_timestamp_ms) == (((1, 6), (2, 8)), (one,), 1_000)
    store.truncate(6)
    store.append(make_chunk(6, 1, epoch=3), 6, 7)
    assert await flush(store) == 7
    store.close()
    store, found = machine.open()
    assert (found.start_offset, found.end_offset, found.epochs) == (6, 7, ((3, 6),))
    assert store.read(6, until=7, max_bytes=100) == make_chunk(6, 1, epoch=3)
    store.close()


async def test_an_installed_snapshot_replaces_the_log(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(50, 4)
    assert await make(store, one, content(one, VOTERS)) is None
    store.install_snapshot(one)
    with pytest.raises(ValueError, match="not below"):
        store.install_snapshot(one)
    assert await flush(store) == 50
    message = pb.VotersRecord(voters=to_entries(VOTERS[:1]))
    tail = batch.encode([record(message).data], base_offset=50, epoch=4, timestamp_ms=8_000, control=True)
    store.append(tail, 50, 51)
    assert await flush(store) == 51
    store.close()
    store, found = machine.open()
    assert (found.start_offset, found.start_epoch, found.end_offset) == (50, 4, 51)
    assert found.voters == (VotersAt(50, VOTERS), VotersAt(50, VOTERS[:1]))
    assert (found.epochs, found.last_timestamp_ms) == (((4, 50),), 8_000)
    assert store.read(50, until=51, max_bytes=1 << 20) == tail
    store.close()


async def test_an_installation_cut_short_is_done_again(machine: Machine) -> None:
    store = await written(machine)
    one = SnapshotId(50, 4)
    assert await make(store, one, content(one, VOTERS)) is None
    store.close()
    store, found = machine.open()
    assert (found.start_offset, found.start_epoch, found.end_offset, found.epochs) == (50, 4, 50, ())
    assert (found.voters, found.last_timestamp_ms) == ((VotersAt(50, VOTERS),), 7_000)
    assert store.read(50, until=50, max_bytes=10) == b""
    store.append(make_chunk(50, 1, epoch=4), 50, 51)
    assert await flush(store) == 51
    store.close()


async def test_a_corrupt_snapshot_is_passed_over_for_an_older_one_and_refused_without(tmp_path: Path) -> None:
    machine = RocksMachine(tmp_path / "data", pytest.MonkeyPatch())
    store = await written(machine)
    for one in (SnapshotId(4, 1), SnapshotId(6, 1)):
        assert await make(store, one) is None
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
    with pytest.raises(CorruptLogError, match="no sound snapshot holds"):
        machine.open()


async def test_the_simulated_disk_flips_bits_that_are_found() -> None:
    for seed in range(30):
        machine, rng = SimMachine(), Random(seed)
        store = await written(machine)
        one = SnapshotId(8, 1)
        assert await make(store, one) is None
        store.advance_log_start(one)
        store.close()
        assert machine.disk.flip_bit(rng, rng.choice(("log", "snapshot", "vote")))
        with pytest.raises(CorruptLogError):
            machine.open()


async def test_format_version_two_begins_with_the_first_move_of_the_log_start(tmp_path: Path) -> None:
    machine = RocksMachine(tmp_path / "data", pytest.MonkeyPatch())
    store = await written(machine)
    assert await make(store, SnapshotId(6, 1)) is None
    assert read_identity(tmp_path / "data").format_version == 1
    assert b"start_offset" not in (tmp_path / "data/log-state.json").read_bytes()
    store.advance_log_start(SnapshotId(6, 1))
    store.close()
    identity = read_identity(tmp_path / "data")
    assert (identity.format_version, identity.directory_id) == (2, IDENTITY.directory_id)
    assert b"start_offset" in (tmp_path / "data/log-state.json").read_bytes()


async def test_the_space_comes_back(tmp_path: Path) -> None:
    machine = RocksMachine(tmp_path / "data", pytest.MonkeyPatch())
    store, _ = machine.open()
    rng = Random(1)
    for base in range(0, 640, 10):
        store.append(make_chunk(base, 10, body=rng.randbytes(100_000)), base, base + 10)
    assert await flush(store) == 640
    one = SnapshotId(630, 1)
    assert await make(store, one) is None
    used = store.used_bytes()
    assert used > 60_000_000
    store.advance_log_start(one)
    store.close()
    store, found = machine.open()
    assert (found.start_offset, found.end_offset) == (630, 640)
    assert store.used_bytes() < used / 10
    assert store.free_bytes() > 0
    store.close()
