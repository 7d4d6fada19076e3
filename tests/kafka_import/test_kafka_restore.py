"""A raftlog cluster restored from a Kafka cluster's log."""

from pathlib import Path

import kafka_writer as kafka
import pytest
from test_kafka_import import HERE, import_all

from raftlog.metadata.control_records import EPOCHS_PER_RECOVERY
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import content_hash
from raftlog.node.recovery.restore import restore
from raftlog.node.storage.reader import open_read_only
from raftlog.ops.declared import declared, differences
from raftlog.ops.logs import DirectoryLog
from raftlog.segments.errors import UnvouchedError
from raftlog.segments.files import open_place
from raftlog.segments.manifest import read_manifest
from raftlog.segments.point import exported_state, state_at

LAST_SNAPSHOT = 309


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kafka")
    nodes = [directory / "all" / name for name in ("node101", "node102", "node103")]
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", directory / "all")
    import_all(directory / "exported", *nodes)
    return directory / "exported"


def test_kafka_cluster_is_restored_as_far_as_supported(imported: Path, tmp_path: Path) -> None:
    state = exported_state(str(imported), offset=LAST_SNAPSHOT)
    assert "snapshot of node" in (state.vouched_by or "")
    theirs = state_at(open_place(imported), read_manifest(imported), LAST_SNAPSHOT).image
    image = state.image
    assert image.state_hash == content_hash(image)
    assert dict(image.partitions.items()) == dict(theirs.partitions.items())
    assert differences(declared(theirs), declared(image)) == []
    for gone in ("brokers", "features", "imported", "leader", "voters"):
        assert not getattr(image, gone), gone
    assert state.left_out["broker"] == len(theirs.brokers)
    assert state.left_out["scram_credential"] == 1
    assert state.header.generations[-1] > 0, "so that leader epochs are raised, and nobody leads"
    done = restore(
        tmp_path / "n", image, state.header, cluster_id="new", node_id=1, directory_id="d"
    )
    assert done.state_hash == image.state_hash
    with open_read_only(tmp_path / "n") as reader:
        read: Image = DirectoryLog(reader).image_up_to(LAST_SNAPSHOT)
        assert read.state_hash == image.state_hash
    assert max(one.leader_epoch for one in image.partitions.values()) < EPOCHS_PER_RECOVERY


def test_state_after_the_last_kafka_snapshot_is_unvouched(imported: Path) -> None:
    with pytest.raises(UnvouchedError, match="no controller vouches"):
        exported_state(str(imported), offset=None)
    assert exported_state(str(imported), offset=None, unvouched=True).vouched_by == ""
