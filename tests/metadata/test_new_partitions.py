"""Runs of new partitions are folded in one go: the same image, and the same errors, as one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import BLOCK, FoldError, Image, ImageDraft
from raftlog.metadata.kinds import KINDS
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.states import difference

Fold = Callable[[list[Record]], Image]
A, B = b"a" * 16, b"b" * 16


def topic(topic_id: bytes) -> Record:
    return record(pb.TopicRecord(topic_id=topic_id, name=topic_id.decode()))


def partition(topic_id: bytes, index: int, *replicas: int) -> Record:
    held = replicas or (1, 2, 3)
    return record(
        pb.PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=held,
            isr=held[:2],
            adding_replicas=held[2:],
            leader=held[0],
            leader_epoch=index,
            partition_epoch=2 * index,
        )
    )


def one_by_one(records: list[Record]) -> Image:
    draft = ImageDraft(Image())
    draft.timestamp_ms = 9
    for offset, one in enumerate(records):
        apply(draft, one.type, one.message, offset, 1)
    draft.offset, draft.epoch = len(records) - 1, 1
    return draft.snapshot()


def in_one_batch(records: list[Record]) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=9)
    return builder.snapshot()


def from_bytes(records: list[Record]) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_chunk(
        batch.encode([one.data for one in records], base_offset=0, epoch=1, timestamp_ms=9)
    )
    return builder.snapshot()


def long_history() -> list[Record]:
    """Two topics, whose partitions come by turns and reach over several blocks."""
    rng, records, counts = random.Random(7), [topic(A), topic(B)], {A: 0, B: 0}
    while min(counts.values()) < 2 * BLOCK + 5:
        topic_id = rng.choice((A, B))
        for _ in range(rng.choice((1, 3, 40))):
            replicas = rng.sample(range(1, 6), 3)
            records.append(partition(topic_id, counts[topic_id], *replicas))
            counts[topic_id] += 1
        if rng.random() < 0.2:
            records.append(record(pb.NoOpRecord()))
    return records


@pytest.mark.parametrize("fold", [in_one_batch, from_bytes])
def test_a_run_gives_the_image_that_single_records_give(fold: Fold) -> None:
    records = long_history()
    expected, image = one_by_one(records), fold(records)
    assert difference(image, expected) == ""
    assert image.state_hash == expected.state_hash
    for broker_id, held in image.replicas_of.items():
        keys = {key for key, one in image.partitions.items() if broker_id in one.replicas}
        assert set(held) == keys


@pytest.mark.parametrize("fold", [in_one_batch, from_bytes])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (partition(A, 3), r"partition 3 of 'a{16}' at offset 4 is not the next one, 2"),
        (partition(A, 1), r"partition 1 of 'a{16}' at offset 4 is not the next one, 2"),
        (partition(A, BLOCK), r"partition 64 of 'a{16}' at offset 4 is not the next one, 2"),
        (partition(B, 0), r"record PARTITION at offset 4 names b'b{16}', which is not there"),
    ],
)
def test_the_first_record_that_does_not_fit_is_named(fold: Fold, wrong: Record, text: str) -> None:
    records = [record(pb.NoOpRecord()), topic(A), partition(A, 0), partition(A, 1), wrong]
    records.append(partition(A, 9))
    with pytest.raises(FoldError, match=text):
        fold(records)


def test_partitions_of_an_older_image_stay_as_they_were() -> None:
    before = in_one_batch([topic(A), *(partition(A, index) for index in range(5))])
    builder = ImageBuilder(before)
    builder.apply_batch(
        [partition(A, index) for index in range(5, 9)], base_offset=6, epoch=1, timestamp_ms=9
    )
    after = builder.snapshot()
    assert (len(before.replicas_of[1]), len(after.replicas_of[1])) == (5, 9)
    assert (before.topics[A].partition_count, after.topics[A].partition_count) == (5, 9)


def test_the_keys_of_a_topic_share_its_id() -> None:
    image = from_bytes([topic(A), *(partition(A, index) for index in range(9))])
    assert len({id(one.topic_id) for one in image.partitions.values()}) == 1
    assert next(kind for kind in KINDS if kind.name == "partition").add_all is not None
