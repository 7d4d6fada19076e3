"""A new cluster from a backup."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from storage_kit import make_chunk

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.metadata.control_records import to_entries
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.node.recovery.restore import Restored, restore
from raftlog.node.storage import directory
from raftlog.node.storage.api import NodeIdentity, RecoveredLog, SnapshotId, VoteState
from raftlog.node.storage.directory import format_storage, read_identity
from raftlog.node.storage.files import Bootstrap, read_bootstrap
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.opening import open_store
from raftlog.node.storage.reader import open_read_only
from raftlog.ops.backup import inspect
from raftlog.wire.records.v1 import records_pb2 as pb

VOTERS = (Voter(1, "one:1", "d1"), Voter(2, "two:2", "d2"))


def image_of(configs: int = 40) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_batch(
        [
            record(pb.FeatureLevelRecord(name="metadata.version", feature_level=2)),
            record(pb.VotersRecord(voters=to_entries(VOTERS))),
            *(
                record(
                    pb.ConfigRecord(
                        resource_type=16, resource_name=f"r{i}", name="match", value="v" * 50
                    )
                )
                for i in range(configs)
            ),
        ],
        base_offset=0,
        epoch=6,
        timestamp_ms=4_000,
    )
    return builder.snapshot()


IMAGE = image_of()
END = IMAGE.offset + 1


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    path = tmp_path / "backup.checkpoint"
    header = header_of(IMAGE, cluster_id="old", generations=(3,))
    path.write_bytes(b"".join(pieces(IMAGE, header)))
    return path


def restored(directory: Path, backup: Path, node_id: int = 1, **options: Any) -> Restored:
    ids: dict[str, Any] = {
        "cluster_id": "new", "node_id": node_id, "directory_id": f"x{node_id}",
    }  # fmt: skip
    read = inspect(backup)
    return restore(directory, read.image, read.header, **(ids | options))


async def opened(directory: Path) -> tuple[RocksLogStore, RecoveredLog]:
    store = open_store(
        directory, expect_cluster_id="new", expect_node_id=None, loop=asyncio.get_running_loop()
    )
    return store, store.recover()


async def test_nodes_restored_from_one_file_have_the_same_log(tmp_path: Path, backup: Path) -> None:
    logs = set()
    for node_id in (1, 2, 3):
        directory = tmp_path / f"n{node_id}"
        done = restored(directory, backup, node_id)
        assert (done.epoch, done.end_offset, done.state_hash) == (7, END + 2, IMAGE.state_hash)
        assert read_identity(directory) == NodeIdentity(
            "new", node_id, f"x{node_id}", format_version=2
        )
        store, found = await opened(directory)
        one = SnapshotId(END, 6)
        assert (found.start_offset, found.start_epoch, found.end_offset) == (END, 6, END + 2)
        assert found.vote == VoteState(epoch=7)
        assert found.epochs == ((7, END),)
        assert found.snapshots == (one,)
        assert {at.voters for at in found.voters} == {()}, (
            "the configured set counts, not the old cluster's"
        )
        assert found.last_timestamp_ms == 4_000
        content = store.read_snapshot(one, 0, 1 << 30)
        header, image = load([content])
        assert header.cluster_id == "new"
        assert header.generations == (3,)
        assert header.voters == ()
        assert header.metadata_version == 2
        assert (image.state_hash, image.offset) == (IMAGE.state_hash, IMAGE.offset)
        log = store.read(END, until=END + 2, max_bytes=1 << 20)
        logs.add((log, content))
        store.append(make_chunk(END + 2, 1, epoch=8), END + 2, END + 3)
        store.close()
        with open_read_only(directory) as reader:
            assert (reader.start_offset, reader.end_offset) == (END, END + 3)
    assert len(logs) == 1
    builder = ImageBuilder(image)
    builder.apply_chunk(log)
    assert builder.snapshot().voters is None
    (what, _) = (batch.records(log, header)[0] for header in batch.headers(log, expect_offset=END))
    message = pb.RecoveryRecord.FromString(what.body)
    assert (message.kind, message.previous_cluster_id) == ("restore", "old")
    assert (message.previous_generation, message.previous_epoch) == (3, 6)
    assert list(message.previous_voters) == to_entries(VOTERS)


def test_old_cluster_id_is_refused(tmp_path: Path, backup: Path) -> None:
    with pytest.raises(ConfigError, match="a new id"):
        restored(tmp_path / "n", backup, cluster_id="old")
    with pytest.raises(ConfigError, match="--same-cluster requires the old id"):
        restored(tmp_path / "n", backup, same_cluster=True)
    assert not (tmp_path / "n").exists()


def test_same_cluster_begins_well_above_the_old_epochs(tmp_path: Path, backup: Path) -> None:
    done = restored(tmp_path / "n", backup, cluster_id="old", same_cluster=True)
    assert (done.epoch, done.identity.cluster_id) == (1006, "old")
    with open_read_only(tmp_path / "n") as reader:
        assert reader.vote == VoteState(epoch=1006)
        recovery, _ = batch.headers(reader.read(END, END + 2, 1 << 20))
        assert recovery.epoch == 1006


def test_restore_does_not_touch_existing_files(tmp_path: Path, backup: Path) -> None:
    identity = NodeIdentity("c", 5, "d")
    format_storage(tmp_path / "n", identity)
    with pytest.raises(ConfigError, match="already formatted"):
        restored(tmp_path / "n", backup)
    assert read_identity(tmp_path / "n") == identity


def test_first_voters_may_be_given(tmp_path: Path, backup: Path) -> None:
    restored(tmp_path / "n", backup, bootstrap=Bootstrap(VOTERS))
    assert read_bootstrap(tmp_path / "n") == Bootstrap(VOTERS)


def test_damaged_file_is_refused(tmp_path: Path, backup: Path) -> None:
    good = backup.read_bytes()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    for content in (changed, b"", good[:-1]):
        backup.write_bytes(content)
        with pytest.raises(CorruptLogError, match="not a valid snapshot"):
            restored(tmp_path / "n", backup)
    assert not (tmp_path / "n").exists()
    with pytest.raises(ConfigError, match="can't read"):
        restored(tmp_path / "n", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["write_vote_file", "write_log_state"])
async def test_interrupted_restore_leaves_no_directory_and_can_be_retried(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("cut short")

    with monkeypatch.context() as broken:
        broken.setattr(directory, name, fail)
        with pytest.raises(StorageError, match="cut short"):
            restored(tmp_path / "n", backup)
    with pytest.raises(ConfigError, match="not formatted"):
        read_identity(tmp_path / "n")
    shutil.copytree(tmp_path / "n", tmp_path / "m")
    restored(tmp_path / "n", backup)
    store, found = await opened(tmp_path / "n")
    assert found.end_offset == END + 2
    store.close()
    identity = NodeIdentity("c", 5, "d")
    format_storage(tmp_path / "m", identity)
    assert not (tmp_path / "m" / "snapshots").exists(), "formatted instead, nothing of it is left"
