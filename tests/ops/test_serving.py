"""Why a high watermark is not known yet."""

from __future__ import annotations

import pytest

from raftlog.client.leaders import LeaderAnswer
from raftlog.ops.serving import _judged
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

KEY = (b"t" * 16, 0)


@pytest.mark.parametrize(
    ("isr", "follower_ends", "why"),
    [
        ((1,), {2: -1}, "too few replicas are in sync"),
        ((1, 2), {2: 7, 3: -1}, "too few replicas are in sync"),
        ((1, 2), {2: -1}, "a member of the ISR has not fetched"),
    ],
)
def test_unknown_high_watermark_is_explained_by_the_missing_fetches(
    isr: tuple[int, ...], follower_ends: dict[int, int], why: str
) -> None:
    led = pb.LedPartition(
        topic_id=KEY[0],
        partition_index=KEY[1],
        high_watermark=-1,
        isr=[records_pb2.BrokerState(broker_id=one) for one in isr],
        followers=[
            pb.FollowerState(replica_id=one, log_end_offset=end)
            for one, end in follower_ends.items()
        ],
    )
    found = _judged(LeaderAnswer(1, 0, (led,)), [KEY])
    assert found == {KEY: f"broker 1 does not know the high watermark yet: {why}"}
