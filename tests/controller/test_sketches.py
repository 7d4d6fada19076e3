"""How long records take until all brokers have them, as progress records say it."""

from __future__ import annotations

from random import Random

import pytest

from controller.visibility.progress import COMMITS_MAX, VisibilitySketches
from raftlog.metadata.sketch import BUCKETS_MAX, bucket_of, percentile_us, upper_us
from raftlog.wire.records.v1 import records_pb2 as pb


def taken(sketches: VisibilitySketches) -> pb.ProgressRecord:
    message = pb.ProgressRecord()
    sketches.into(message)
    return message


def test_each_record_counts_from_its_commit() -> None:
    sketches = VisibilitySketches()
    sketches.committed(10, 0.0)
    # What was committed before this controller knew is nobody's measure.
    assert taken(sketches) == pb.ProgressRecord()
    sketches.committed(13, 1.0)
    sketches.committed(14, 1.5)
    sketches.moved(12, -1, 1.002)
    sketches.moved(13, 12, 1.506)
    message = taken(sketches)
    assert (message.acknowledged.count, message.acknowledged.max_us) == (4, 6_000)
    assert message.acknowledged.sum_us == 3 * 2_000 + 6_000
    assert dict(
        zip(message.acknowledged.buckets, message.acknowledged.bucket_counts, strict=True)
    ) == {bucket_of(2_000): 3, bucket_of(6_000): 1}
    assert (message.told.count, message.told.max_us) == (3, 506_000)
    assert taken(sketches) == pb.ProgressRecord(), "only what has come since"
    sketches.moved(13, 13, 2.5)
    assert taken(sketches).told.max_us == 1_000_000


def test_lao_inside_a_commit_does_not_cover_it() -> None:
    sketches = VisibilitySketches()
    sketches.committed(0, 0.0)
    sketches.committed(10, 1.0)
    sketches.moved(8, 8, 2.0)
    assert not taken(sketches).HasField("acknowledged")


def test_what_is_waited_for_is_bounded_and_none_is_lost() -> None:
    sketches = VisibilitySketches()
    sketches.committed(0, 0.0)
    for offset in range(1, 3 * COMMITS_MAX):
        sketches.committed(offset, offset / 1000)
    end = 3 * COMMITS_MAX - 1
    sketches.moved(end - 1, end - 1, 60.0)
    message = taken(sketches)
    assert message.acknowledged.count == end
    assert len(sketches._acknowledged._commits) == 0
    assert message.acknowledged.max_us == round((60.0 - 0.001) * 1e6)


def test_percentiles_are_never_too_low_and_at_most_19_percent_too_high() -> None:
    rng = Random(3)
    values = sorted(round(rng.lognormvariate(9, 2)) + 2 for _ in range(2000))
    buckets: dict[int, int] = {}
    for value in values:
        assert value < upper_us(bucket_of(value)) <= value * 1.19 + 1e-6
        buckets[bucket_of(value)] = buckets.get(bucket_of(value), 0) + 1
    for share in (0.5, 0.9, 0.99, 1.0):
        true = values[max(0, round(len(values) * share) - 1)]
        found = percentile_us(buckets, share, values[-1])
        assert found is not None
        assert true <= found <= true * 1.19 + 1
    assert percentile_us({}, 0.5, 0) is None


@pytest.mark.parametrize("took_us", [0, 1, 2**60])
def test_every_duration_has_a_bucket(took_us: int) -> None:
    assert 0 <= bucket_of(took_us) < BUCKETS_MAX
