"""A directory is made a quorum of its own: recorded in its log, at a new epoch and generation, and
harmless if cut short.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from storage_kit import IDENTITY, flush, make_chunk, open_rocks, write_vote

from raftlog import batch
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.metadata.leader_epochs import MAX_GENERATION
from raftlog.metadata.records import RecordType, parse, record
from raftlog.metadata.voters_log import to_entries
from raftlog.quorum.admission import MAX_EPOCH
from raftlog.recovery import unsafe_recovery
from raftlog.recovery.first_chunk import beginning_chunk
from raftlog.recovery.unsafe_recovery import EPOCHS_SKIPPED, examine, recover_unsafely
from raftlog.storage.api import RecoveredLog, VoteState
from raftlog.storage.bootstrap_file import Bootstrap
from raftlog.storage.meta_file import format_storage, read_identity
from raftlog.storage.rocks_adapter import RocksLog
from raftlog.storage.vote_file import VoteFile
from raftlog.voter import Voter, VotersAt
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


async def test_the_directory_has_itself_for_a_quorum_and_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    _, before = opened(directory)
    done = await recover_unsafely(directory, endpoint="", reason="fire", now_ms=NOW_MS)
    own = VOTERS[0]
    assert (done.generation, done.epoch, done.voter, done.end_offset) == (
        1,
        7 + EPOCHS_SKIPPED,
        own,
        8,
    )
    assert read_identity(directory) == replace(IDENTITY, generation=1)
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
        generation=1,
        previous_cluster_id="c1",
        previous_generation=0,
        previous_epoch=7,
        previous_voters=to_entries(VOTERS),
        reason="fire",
    )


async def test_the_new_epoch_is_above_the_log_too_and_time_does_not_go_back(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory, vote_epoch=4)
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=0)
    assert done.epoch == 4 + EPOCHS_SKIPPED
    found, content = opened(directory)
    assert found.last_timestamp_ms == 1_000
    assert all(header.timestamp_ms <= 1_000 for header in batch.headers(content))


async def test_recovered_twice_it_is_another_generation(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    for generation in (1, 2):
        done = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
        assert done.generation == generation
    assert opened(directory)[0].vote.epoch == 7 + 2 * EPOCHS_SKIPPED


async def test_a_second_directory_gets_a_generation_above_that_of_the_first(tmp_path: Path) -> None:
    for name, least, generation in (("one", 0, 1), ("two", 2, 2), ("three", 1, 1)):
        await survivor(tmp_path / name)
        done = await recover_unsafely(
            tmp_path / name, endpoint="", reason="", now_ms=NOW_MS, least_generation=least
        )
        assert done.generation == read_identity(tmp_path / name).generation == generation


async def test_a_generation_without_leader_epochs_of_its_own_is_refused(tmp_path: Path) -> None:
    await survivor(tmp_path / "data")
    for least in (MAX_GENERATION + 1, 2**40):
        with pytest.raises(ConfigError, match=f"no leader epochs left for generation {least}"):
            await recover_unsafely(
                tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS, least_generation=least
            )
    assert read_identity(tmp_path / "data") == IDENTITY
    done = await recover_unsafely(
        tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS, least_generation=MAX_GENERATION
    )
    assert done.generation == MAX_GENERATION


async def test_examining_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await survivor(directory)
    before = {path.name: path.read_bytes() for path in directory.glob("*.json")}
    found = await examine(directory)
    assert (found.epoch, found.last_epoch, found.start_offset, found.end_offset, found.voters) == (
        7,
        4,
        0,
        6,
        VOTERS,
    )
    # Durable up to its end is what opening finds out, and notes.
    assert {path.name: path.read_bytes() for path in directory.glob("*.json")} == before


async def test_where_the_node_listens_must_be_known(tmp_path: Path) -> None:
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
async def test_an_epoch_that_nobody_led_is_left_behind(tmp_path: Path, vote_epoch: int) -> None:
    """One claim was enough for it, and no election can follow it: the directory must be of use all
    the same.
    """
    directory = tmp_path / "data"
    await survivor(directory, vote_epoch=vote_epoch)
    done = await recover_unsafely(directory, endpoint="", reason="", now_ms=NOW_MS)
    assert (done.before.epoch, done.epoch) == (vote_epoch, 4 + EPOCHS_SKIPPED)
    found, content = opened(directory)
    assert (found.vote, found.epochs[-1]) == (VoteState(epoch=done.epoch), (done.epoch, 6))
    headers = list(batch.headers(content, expect_offset=0))
    (what,) = batch.records(content, headers[-2])
    assert parse(what).previous_epoch == min(vote_epoch, 2**31 - 1)


async def test_the_last_epoch_that_leaves_room_is_kept(tmp_path: Path) -> None:
    await survivor(tmp_path / "data", vote_epoch=MAX_EPOCH - EPOCHS_SKIPPED)
    done = await recover_unsafely(tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS)
    assert done.epoch == MAX_EPOCH


async def test_no_epoch_is_left(tmp_path: Path) -> None:
    """Led, and recorded: nobody may lead it again."""
    await survivor(tmp_path / "data", vote_epoch=2**31 - 1)
    store = open_rocks(tmp_path / "data")
    store.recover()
    store.append(make_chunk(6, 1, epoch=MAX_EPOCH), 6, 7)
    await flush(store)
    store.close()
    with pytest.raises(ConfigError, match="no epoch left"):
        await recover_unsafely(tmp_path / "data", endpoint="", reason="", now_ms=NOW_MS)
    assert read_identity(tmp_path / "data") == IDENTITY


@pytest.mark.parametrize("step", ["identity", "vote", "append"])
async def test_cut_short_it_leads_nothing_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    directory = tmp_path / "data"
    await survivor(directory)

    def fail(*_: object) -> None:
        raise StorageError("cut short")

    owner, name = {
        "identity": (unsafe_recovery, "write_identity"),
        "vote": (VoteFile, "write"),
        "append": (RocksLog, "put"),
    }[step]
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
    assert read_identity(directory).generation == done.generation > 0
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


async def test_a_directory_that_joined_after_a_recovery_begins_a_generation_above_that_one(
    tmp_path: Path,
) -> None:
    """It was formatted without one.

    Else two histories would be of the same generation, and brokers could not tell them apart.
    """
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    store = open_rocks(directory)
    store.recover()
    what = pb.RecoveryRecord(kind="unsafe recovery", generation=3)
    chunk = beginning_chunk(what, VOTERS, base_offset=0, epoch=5, timestamp_ms=9)
    store.append(chunk, 0, 2)
    await flush(store)
    await write_vote(store, VoteState(epoch=5, voted_id=2))
    store.close()
    assert read_identity(directory).generation == 0
    assert opened(directory)[0].generation == 3
    assert (await examine(directory)).identity.generation == 3
    done = await recover_unsafely(directory, endpoint="", reason="again", now_ms=NOW_MS)
    assert done.generation == read_identity(directory).generation == 4
