"""The kernels count each partition's epochs as the fold does, for any slices."""

from pathlib import Path
from typing import Any

import pytest
from asking import opened
from kafka_log import KafkaLog, imported, kafka
from log_history import LogHistory

from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.segments.export import export
from raftlog.segments.manifest import RAW, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import reading
from replay.engine.audit import scan
from replay.engine.pool import Pool
from replay.engine.reading import slices
from replay.kernels.facts import Facts
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions

Epochs = dict[tuple[str, int], tuple[int, int, int]]
"""Leader, leader epoch and partition epoch by topic id and partition."""


def of_image(log: LogHistory) -> Epochs:
    return epochs(log.draft.snapshot())


def epochs(image: Image) -> Epochs:
    return {
        (each.topic_id.hex(), each.index): (each.leader, each.leader_epoch, each.partition_epoch)
        for each in image.partitions.values()
    }


def of_kernels(directory: Path, at_offset: int) -> Epochs:
    found = opened(directory, at_offset=at_offset)
    with Pool(0) as pool:
        facts = Facts(scan(found, pool).rare, at_offset + 1)
    partitions = Partitions(facts)
    for table in slices(found, COLUMNS, types=PARTITION_TYPES):
        partitions.step(table)
    return {
        (row["topic_id"], row["partition_id"]): (
            row["leader"],
            row["leader_epoch"],
            row["partition_epoch"],
        )
        for row in partitions.table(there=True).to_pylist()
    }


def change(log: LogHistory, topic_id: bytes, **fields: Any) -> None:
    log.append(pb.PartitionChangeRecord(topic_id=topic_id, partition_id=0, **fields))


def moves(log: LogHistory, name: str) -> list[tuple[int, Epochs]]:
    """Each change that raises or keeps the leader epoch, and the image after it."""
    topic_id = log.create_topic(name, partitions=2)
    first, *others = log.draft.partitions[topic_id, 0].replicas
    steps: list[dict[str, Any]] = [
        {"leader": first},  # The same leader, named again: it grows.
        {"isr": pb.IdList(ids=[first])},
        {"replicas": pb.IdList(ids=[*others, first])},  # Another order: it stays.
        {"replicas": pb.IdList(ids=[first, *others, 9])},  # One comes: it stays.
        {"replicas": pb.IdList(ids=[first, *others])},  # One goes: it grows.
        {"replicas": pb.IdList(ids=[first, 8])},  # One for another: it grows, once.
        {"replicas": pb.IdList(ids=[first]), "leader": first},  # Both: it grows, once.
        {"leader": -1},
        {"leader": first, "leader_epoch": 1000},  # It leaps to what the record says.
        {"leader": first},
    ]
    seen = []
    for fields in steps:
        change(log, topic_id, **fields)
        seen.append((log.end_offset - 1, of_image(log)))
    return seen


@pytest.mark.parametrize("slice_rows", [3, 131_072])
def test_epochs_equal_those_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    log = LogHistory(19).run(150)
    seen = [(log.end_offset - 1, of_image(log)), *moves(log, "moved")]
    log.run(300)
    seen.append((log.end_offset - 1, of_image(log)))
    export(log, tmp_path)
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    for offset, expected in seen:
        assert of_kernels(tmp_path, offset) == expected, offset
    assert len({repr(sorted(image.items())) for _, image in seen}) == len(seen)


KEPT = Path(__file__).parents[1] / "kafka_import"


def followed(directory: Path) -> list[tuple[int, Epochs]]:
    """Return the image's epochs at the end of every tenth batch of an imported log, and at its end."""
    fold, seen = ImageBuilder(Image()), []
    manifest = read_manifest(directory)
    fold.offset = manifest.history_begin - 1
    chunks = [each for one in manifest.of_kind(RAW) for each in read_segment(directory, one)]
    for number, chunk in enumerate(chunks, 1):
        fold.apply_chunk(chunk)
        if number % 10 == 0 or number == len(chunks):
            seen.append((fold.offset, epochs(fold.snapshot())))
    return seen


@pytest.mark.parametrize("release", ["3.3.2", "3.9.1", "4.3.1", "4.4.0"])
def test_epochs_of_a_real_kafka_log_equal_those_of_the_image(release: str, tmp_path: Path) -> None:
    """The image's are Kafka's own: each import is compared with Kafka's snapshots."""
    kafka.unpack(KEPT / f"kafka-{release}.tar.gz", tmp_path / "node")
    found = imported(tmp_path / "node", tmp_path / "exported")
    assert found.sound
    seen = followed(tmp_path / "exported")
    for offset, expected in seen:
        assert of_kernels(tmp_path / "exported", offset) == expected, offset
    assert max(epoch for _, _, epoch in seen[-1][1].values()) > 1


@pytest.mark.parametrize("slice_rows", [1, 131_072])
def test_clearing_eligible_replicas_takes_a_partition_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    """Once, if there were any, whatever follows; for one topic or for all."""
    log = KafkaLog()
    clear = kafka.metadata("ClearElrRecord", topic_name="one")
    log.topic("one", [1, 2, 3], isr=[1])
    log.topic("other", [1, 2, 3], isr=[1])
    for name in ("one", "other"):
        log.change(name, eligible_leader_replicas=[2])
    log.append(clear)
    log.change("one", isr=[1, 2])
    log.append(clear)
    log.change("one", isr=[1], eligible_leader_replicas=[2])
    log.append(clear)
    log.change("one", isr=[1], eligible_leader_replicas=[3])
    log.change("other", isr=[1, 3])
    log.append(clear)
    for name in ("one", "other"):
        log.change(name, eligible_leader_replicas=[4])
    log.append(kafka.metadata("ClearElrRecord", topic_name=""))
    log.import_into(tmp_path)
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    for offset, expected in followed(tmp_path / "exported"):
        assert of_kernels(tmp_path / "exported", offset) == expected, offset
    (one, other) = sorted(epoch for _, _, epoch in expected.values())
    assert (one, other) == (4, 9)
