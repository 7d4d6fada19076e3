"""Unsafe recovery of a directory."""

from dataclasses import replace
from pathlib import Path

import pytest
from storage_kit import IDENTITY, flush, make_chunk, open_rocks, write_vote

from raftlog import batch
from raftlog.endpoint import Voter, VotersAt
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.metadata.control_records import MAX_RECOVERIES, GenerationAt, Lineage, to_entries
from raftlog.metadata.records import RecordType, parse, record
from raftlog.node.recovery.unsafe_recovery import (
    EPOCHS_SKIPPED,
    begin_anew,
    examine,
    recover_unsafely,
    survivor_of,
)
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.node.storage.files import Bootstrap, VoteFile
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.quorum.admission import MAX_EPOCH
from raftlog.wire.records.v1 import records_pb2 as pb

VOTERS = tuple(Voter(node, f"host{node}:9093", f"d{node}") for node in (1, 2, 3))
NOW_MS = 5_000


async def survivor(directory: Path, *, vote_epoch: int = 7, logged: bool = True) -> None:
    """Node 1 of three: records of epochs 1 and 4, a vote of a later one."""
    format_storage(directory, IDENTITY)
    store = open_rocks(directory)
    store.recover()
    end = 0
    if logged:
        message = pb.VotersRecord(voters=to_entries(VOTERS))
        store.append(
            batch.encode(
                [record(message).data], base_offset=0, epoch=1, timestamp_ms=9, control=True
            ),
            0,
            1,
        )
        end = 1
    store.append(make_chunk(end, 2, epoch=1), end, end + 2)
    store.append(make_chunk(end + 2, 3, epoch=4), end + 2, end + 5)
    await flush(store)
    await write_vote(store, VoteState(epoch=vote_epoch, voted_id=2))
    store.close()


def opened(directory: Path) -> tuple[RecoveredLog, bytes]:
    store = open_rocks(directory)
    found = store.recover()
    content = store.read(found.start_offset, until=found.end_offset, max_bytes=1 << 30)
    store.close()
    return found, content


async def test_recovered_directory_is_a_quorum_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    _, before = opened(directory)
    done = await recover_unsafely(directory, endpoint="", reason="fire", now_ms=NOW_MS)
    own = VOTERS[0]
    assert (done.epoch, done.voter, done.end_offset) == (7 + EPOCHS_SKIPPED, own, 8)
    assert read_identity(directory) == IDENTITY
    found, content = opened(directory)
    assert found.vote == VoteState(epoch=done.epoch)
    assert found.voters == (VotersAt(0, VOTERS), VotersAt(7, (own,)))
    assert found.epochs == ((1, 0), (4, 3), (done.epoch, 6))
    assert content.startswith(before), "nothing that was there has changed"
    headers = list(batch.headers(content[len(before) :], expect_offset=6))
    assert all(header.control and header.timestamp_ms == NOW_MS for header in headers)
    (what,), (voters,) = (batch.records(content[len(before) :], header) for header in headers)
    assert (what.type, voters.type) == (RecordType.RECOVERY, RecordType.VOTERS)
    assert parse(what) == pb.RecoveryRecord(
        kind="unsafe recovery",
        previous_cluster_id="c1",
        previous_epoch=7,
        previous_voters=to_entries(VOTERS),
        reason="fire",
    )


async def test_new_epoch_is_above_the_log_and_time_does_not_go_back(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory, vote_epoch=4)
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=0)
    assert done.epoch == 4 + EPOCHS_SKIPPED
    found, content = opened(directory)
    assert found.last_timestamp_ms == 1_000
    assert all(header.timestamp_ms <= 1_000 for header in batch.headers(content))


async def led(directory: Path, generation: int) -> None:
    """A leader has begun its epoch, in this generation."""
    store = open_rocks(directory)
    found = store.recover()
    end, epoch = found.end_offset, found.vote.epoch
    message = pb.LeaderChangeRecord(leader_id=1, generation=generation)
    chunk = batch.encode(
        [record(message).data], base_offset=end, epoch=epoch, timestamp_ms=NOW_MS, control=True
    )
    store.append(chunk, end, end + 1)
    await flush(store)
    store.close()


async def test_recovery_ends_the_generation_and_names_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    await led(directory, 55)
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    assert (done.before.lineage.current, done.before.lineage.recoveries) == (55, 0)
    again = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    assert (again.before.lineage.current, again.before.lineage.recoveries) == (0, 1), (
        "nobody led in between"
    )
    found, content = opened(directory)
    assert found.vote.epoch == 7 + 2 * EPOCHS_SKIPPED
    assert found.generations == (GenerationAt(6, 55), GenerationAt(7, 0), GenerationAt(9, 0))
    named = [
        parse(one).previous_generation
        for header in batch.headers(content)
        if header.control
        for one in batch.records(content, header)
        if one.type == RecordType.RECOVERY
    ]
    assert named == [55, 0]


async def test_recovery_is_refused_without_leader_epochs_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    await led(directory, 55)
    store = open_rocks(directory)
    found = store.recover()
    lineage = Lineage(GenerationAt(-1, number) for number in range(1, MAX_RECOVERIES + 2))
    before = replace(survivor_of(IDENTITY, found, VOTERS), lineage=lineage)
    with pytest.raises(ConfigError, match="no leader epochs are left"):
        await begin_anew(store, before, endpoint="", reason="", now_ms=NOW_MS)
    store.close()
    assert opened(directory)[0] == found


async def test_examining_a_directory_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    before = {path.name: path.read_bytes() for path in directory.glob("*.json")}
    found = await examine(directory)
    assert (found.epoch, found.last_epoch, found.start_offset, found.end_offset) == (7, 4, 0, 6)
    assert found.voters == VOTERS
    # Durable up to its end is what opening finds out, and notes.
    assert {path.name: path.read_bytes() for path in directory.glob("*.json")} == before


async def test_endpoint_of_the_node_must_be_known(tmp_path: Path) -> None:
    await survivor(tmp_path / "data", logged=False)
    before = opened(tmp_path / "data")
    with pytest.raises(ConfigError, match="--endpoint"):
        await recover_unsafely(tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS)
    assert (opened(tmp_path / "data"), read_identity(tmp_path / "data")) == (before, IDENTITY)
    done = await recover_unsafely(tmp_path / "data", endpoint="here:1", reason="", now_ms=NOW_MS)
    assert done.voter == Voter(1, "here:1", "d1")
    format_storage(tmp_path / "new", IDENTITY, bootstrap=Bootstrap(VOTERS))
    done = await recover_unsafely(tmp_path / "new", endpoint="", reason="", now_ms=NOW_MS)
    assert done.voter == VOTERS[0], "formatting had said it"


@pytest.mark.parametrize("vote_epoch", [MAX_EPOCH - EPOCHS_SKIPPED + 1, 2**31 - 1, 2**31])
async def test_epoch_without_a_leader_is_skipped(tmp_path: Path, vote_epoch: int) -> None:
    """One claim reached it, and no election can follow: the directory must stay usable."""
    directory = tmp_path / "data"
    await survivor(directory, vote_epoch=vote_epoch)
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    assert (done.before.epoch, done.epoch) == (vote_epoch, 4 + EPOCHS_SKIPPED)
    found, content = opened(directory)
    assert (found.vote, found.epochs[-1]) == (VoteState(epoch=done.epoch), (done.epoch, 6))
    headers = list(batch.headers(content, expect_offset=0))
    (what,) = batch.records(content, headers[-2])
    assert parse(what).previous_epoch == min(vote_epoch, 2**31 - 1)


async def test_last_epoch_that_leaves_room_is_kept(tmp_path: Path) -> None:
    await survivor(tmp_path / "data", vote_epoch=MAX_EPOCH - EPOCHS_SKIPPED)
    done = await recover_unsafely(tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS)
    assert done.epoch == MAX_EPOCH


async def test_last_epoch_of_a_leader_is_refused(tmp_path: Path) -> None:
    """It was led and recorded: no node may lead it again."""
    await survivor(tmp_path / "data", vote_epoch=2**31 - 1)
    store = open_rocks(tmp_path / "data")
    store.recover()
    store.append(make_chunk(6, 1, epoch=MAX_EPOCH), 6, 7)
    await flush(store)
    store.close()
    with pytest.raises(ConfigError, match="no epoch is left"):
        await recover_unsafely(tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS)
    assert read_identity(tmp_path / "data") == IDENTITY


@pytest.mark.parametrize("step", ["vote", "append"])
async def test_interrupted_recovery_leads_nothing_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    directory = tmp_path / "data"
    await survivor(directory)

    def fail(*_: object) -> None:
        raise StorageError("cut short")

    owner, name = {"vote": (VoteFile, "write"), "append": (RocksLog, "put")}[step]
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fail)
        with pytest.raises(StorageError, match="cut short"):
            await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    found, _ = opened(directory)
    assert (found.voters, found.end_offset) == ((VotersAt(0, VOTERS),), 6), (
        "the old voters: alone it is no majority"
    )
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    found, _ = opened(directory)
    assert found.voters[-1] == VotersAt(7, (VOTERS[0],))
    assert found.vote.epoch == done.epoch


async def test_damage_is_refused_not_recovered(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    (table, *_) = sorted((directory / "log").glob("*.sst"))
    data = bytearray(table.read_bytes())
    data[30] ^= 1
    table.write_bytes(data)
    with pytest.raises(CorruptLogError):
        await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    assert read_identity(directory) == IDENTITY
