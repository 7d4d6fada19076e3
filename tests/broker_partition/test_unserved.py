"""What the metadata says is led here and cannot be used is counted, by reason, and counted no more
when that is over.
"""

from __future__ import annotations

from typing import Any

from replica_kit import EPOCHS, KEY, ME, TOPIC_ID, Stand, first_image, partition, recovered

from broker.partition import events as ev
from broker.partition.describe import FENCED, LOG_AHEAD, LOW_SPACE, NO_HIGH_WATERMARK, REASONS
from raftlog.errors import ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

OTHER = (TOPIC_ID, 1)


def counts(stand: Stand, *, low_space: bool = False) -> dict[str, int]:
    found = stand.core.unserved(stand.now, low_space=low_space).counts
    assert set(found) == set(REASONS)
    return {reason: count for reason, count in found.items() if count}


def alone(**fields: Any) -> Stand:
    return Stand(image=first_image(partition(isr=(ME,), **fields)))


def test_all_is_well() -> None:
    stand = alone()
    assert counts(stand) == {}
    assert stand.core.unserved(stand.now, low_space=False).example == ""


def test_a_log_ahead_of_the_metadata_is_counted_until_the_leader_epoch_is_raised_above_it() -> None:
    stand = Stand(
        recovered(3, (5, 0)), image=first_image(partition(isr=(ME,)), partition(OTHER, isr=(ME,)))
    )
    assert counts(stand) == {LOG_AHEAD: 1}
    example = stand.core.unserved(stand.now, low_space=False).example
    assert example == "t:0: the log has records of leader epoch 5, the metadata is at 5"
    assert stand.core.counters()["OfflineReplicaCount"] == 1
    key = pb.PartitionKey(topic_id=KEY[0], partition_index=KEY[1])
    (described,) = stand.core.describe_led(
        pb.BrokerMetadataRequest(partitions=[key]), stand.now
    ).partitions
    assert (described.error_code, described.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        example[5:],
    )
    stand.change(leader_epoch=6)
    assert counts(stand) == {}
    assert stand.core.counters()["OfflineReplicaCount"] == 0
    result = stand.produced(stand.produce("a"))
    assert result is not None
    assert result.error_code == 0


def test_it_is_counted_no_more_when_another_leads_or_the_topic_is_gone() -> None:
    stand = Stand(recovered(3, (5, 0)))
    assert counts(stand) == {LOG_AHEAD: 1}
    stand.change(leader=2, leader_epoch=6)
    assert counts(stand) == {}
    stand = Stand(recovered(3, (5, 0)))
    stand.remove_topic()
    assert counts(stand) == {}


def test_who_waits_for_a_member_of_its_isr_cannot_be_read_yet() -> None:
    stand = Stand()
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}
    stand.fetch(2, 0)
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}
    stand.fetch(3, 0)
    assert counts(stand) == {}
    stand.change(leader=2, leader_epoch=6)
    stand.change(leader=ME, leader_epoch=7)
    assert counts(stand) == {NO_HIGH_WATERMARK: 1}, "in each leader epoch anew"
    stand.change(leader=-1, leader_epoch=8)
    assert counts(stand) == {}


def test_a_broker_that_takes_itself_for_fenced_serves_nothing_of_what_it_leads() -> None:
    stand = alone()
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1))
    stand.after(2)
    assert counts(stand) == {FENCED: 1}
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 10))
    assert counts(stand) == {}


def test_without_space_producers_are_refused_everywhere() -> None:
    assert counts(alone(), low_space=True) == {LOW_SPACE: 1}
