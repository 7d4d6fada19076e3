"""Logs that would exhaust memory, and logs that change while they are read."""

import sys
from collections.abc import Iterator
from pathlib import Path

import kafka_writer as kafka
import pytest
from command_runs import run_text
from test_kafka_import import import_all

from raftlog.clock import MAX_MS
from replay.errors import ReplayError
from replay.kafka.copies import Copy, find_copies
from replay.kafka.importing import Imported, Importer
from replay.kafka.log_format import KafkaLogError

NOOP = kafka.metadata("NoOpRecord")
LOG = "00000000000000000000.log"


def test_log_with_decreasing_epochs_is_refused(tmp_path: Path) -> None:
    node = kafka.write_node(
        tmp_path / "node", kafka.batch(0, [NOOP], epoch=3) + kafka.batch(1, [NOOP], epoch=2)
    )
    imported = import_all(tmp_path / "exported", node)
    assert imported.end_offset == 1
    assert imported.stopped.endswith("offset 1 has epoch 2, below the previous epoch 3")


def test_log_with_epochs_below_those_of_its_snapshot_is_refused(tmp_path: Path) -> None:
    log = kafka.batch(1, [NOOP], epoch=3, timestamp_ms=900) + kafka.batch(2, [NOOP], epoch=3)
    for name, epoch, end in (("sound", 3, 3), ("later", 4, 1)):
        node = kafka.write_node(tmp_path / name, log, start=1)
        kafka.write_checkpoint(node, 1, kafka.topic(), epoch=epoch)
        imported = import_all(tmp_path / f"{name}-exported", node)
        assert imported.end_offset == end
        assert ("below the previous epoch 4" in imported.stopped) == (epoch == 4)
        assert imported.later_ms == (100 if epoch == 3 else 0)


def test_snapshot_with_an_impossible_timestamp_is_refused(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", b"")
    path = kafka.write_checkpoint(node, 1, timestamp_ms=MAX_MS + 1)
    with pytest.raises(KafkaLogError, match=f"{path} has timestamp {MAX_MS + 1} ms"):
        Importer(find_copies([node]), str(tmp_path / "exported"))


def test_zeros_after_the_log_cost_no_memory(tmp_path: Path) -> None:
    """A file that was preallocated sparsely by a terabyte."""
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP]))
    with (node / LOG).open("r+b") as file:
        file.truncate(1 << 40)
    script = (
        "import resource, sys; from pathlib import Path;"
        " from replay.kafka.copies import find_copies;"
        " (one,) = find_copies([Path(sys.argv[1])]);"
        " print(len(one.places), one.damages, one.cut_off)"
    )
    done = run_text([sys.executable, "-c", script, str(node)], timeout=60)
    assert done.stdout == "1 [] []\n", done.stderr


def test_absurd_snapshot_is_refused(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP, NOOP]))
    with (node / "00000000000000000002-0000000001.checkpoint").open("wb") as file:
        file.truncate(1 << 40)
    imported = import_all(tmp_path / "exported", node)
    assert imported.end_offset == 2
    assert not imported.sound


def test_snapshot_inside_a_batch_belongs_to_another_log(tmp_path: Path) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP, NOOP, NOOP]))
    path = node / "00000000000000000002-0000000001.checkpoint"
    path.write_bytes(b"")
    with Importer(find_copies([node]), str(tmp_path / "exported")) as importer:
        importer.run()
        imported = importer.run()
    told = f"{path} is the state at offset 1, but no batch of the log ends there"
    assert imported.damages == [told]
    assert not imported.sound


@pytest.mark.parametrize(
    "said", ["node.id=abc", "node.id=" + "9" * 5000, "node.id", "\0\xff", "x" * 300_000]
)
def test_empty_properties_name_no_node(tmp_path: Path, said: str) -> None:
    node = kafka.write_node(tmp_path / "node", kafka.batch(0, [NOOP]))
    (tmp_path / "node/meta.properties").write_text(said)
    (copy,) = find_copies([node])
    assert (copy.node_id, copy.cluster_id, copy.name) == (-1, "", str(node))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return kafka.write_node(
        tmp_path / "node", kafka.batch(0, [NOOP]) + kafka.batch(1, [kafka.topic()])
    )


@pytest.fixture
def importer(node: Path, tmp_path: Path) -> Iterator[Importer]:
    with Importer(find_copies([node]), str(tmp_path / "exported")) as one:
        yield one


def test_truncated_log_that_grows_as_before_is_continued(node: Path, importer: Importer) -> None:
    whole = (node / LOG).read_bytes()
    importer.run()
    (node / LOG).write_bytes(whole[:70])
    assert importer.run().sound
    (node / LOG).write_bytes(whole + kafka.batch(2, [NOOP]))
    imported = importer.run()
    assert (imported.end_offset, imported.sound, imported.damages) == (3, True, [])


@pytest.mark.parametrize("topic", ["others", "orders"], ids=["other records", "the same records"])
@pytest.mark.parametrize("more", [0, 1, 5], ids=["shorter or as long", "longer", "much longer"])
def test_import_ends_at_overwritten_records(
    node: Path, importer: Importer, more: int, topic: str
) -> None:
    """A follower truncates uncommitted batches, and then has another leader's batches. The leader's
    epoch is not in the checksum.
    """
    importer.run()
    begin = kafka.batch(0, [NOOP])
    other = kafka.batch(1, [kafka.topic(topic)], epoch=2)
    later = b"".join(kafka.batch(2 + each, [NOOP], epoch=2) for each in range(more))
    (node / LOG).write_bytes(begin + other + later)
    imported: Imported = importer.run()
    assert not imported.sound
    assert "was never committed" in imported.stopped
    assert "at offset 1" in imported.stopped
    assert imported.end_offset == 2
    assert imported.damages == []


def test_import_reports_why_it_stopped(node: Path, importer: Importer) -> None:
    importer.run()
    (node / LOG).write_bytes((node / LOG).read_bytes() + kafka.batch(2, [kafka.topic()]))
    first = importer.run()
    assert "the log contradicts itself: topic 'orders' at offset 2 already exists" in first.stopped
    other = kafka.batch(0, [NOOP]) + kafka.batch(1, [kafka.topic("others")], epoch=2)
    (node / LOG).write_bytes(other)
    assert importer.run().stopped == first.stopped


def test_segment_deleted_by_kafka_is_not_missed(node: Path, importer: Importer) -> None:
    importer.run()
    (node / "00000000000000000002.log").write_bytes(kafka.batch(2, [NOOP]))
    assert importer.run().end_offset == 3
    (node / LOG).unlink()
    (node / "00000000000000000003.log").write_bytes(kafka.batch(3, [NOOP]))
    imported = importer.run()
    assert (imported.end_offset, imported.sound) == (4, True)


def test_records_of_a_deleted_segment_are_not_found(node: Path) -> None:
    (copy,) = find_copies([node])
    assert copy.at(1) is not None
    (node / LOG).unlink()
    copy.refresh()
    assert copy.at(1) is None


def test_segment_deleted_unread_is_a_gap(node: Path, importer: Importer) -> None:
    importer.run()
    (node / LOG).unlink()
    (node / "00000000000000000007.log").write_bytes(kafka.batch(7, [NOOP]))
    imported = importer.run()
    assert imported.end_offset == 2
    assert "no copy has an intact batch at offset 2" in imported.stopped


def test_directory_that_disappears_is_reported(node: Path, importer: Importer) -> None:
    importer.run()
    node.rename(node.with_name("elsewhere"))
    with pytest.raises(ReplayError, match=f"cannot read {node}"):
        importer.run()


def test_unfinished_snapshot_is_ignored(node: Path) -> None:
    (node / "00000000000000000001-0000000001.checkpoint.part").write_bytes(b"half")
    assert Copy((), node).checkpoints == []
