"""What a broker reports of its replicas without a leader (KIP-966, part 2)."""

from __future__ import annotations

from replica_kit import (
    KEY,
    TOPIC_ID,
    Stand,
    first_image,
    partition,
    recovered,
)

from raftlog.bounds import REPLICA_LOGS_MAX

Report = tuple[int, int, int, int]


def reports(stand: Stand) -> list[Report]:
    """(index, leader epoch, last epoch, end) of the next heartbeat."""
    found = stand.core.replica_logs()
    assert {one.topic_id for one in found} <= {TOPIC_ID}
    return [
        (one.partition_index, one.leader_epoch, one.last_epoch, one.log_end_offset) for one in found
    ]


def unreported(stand: Stand) -> bool:
    return stand.core.has_unreported


def test_partition_with_a_leader_is_not_reported() -> None:
    stand = Stand(recovered(5, (2, 0)), image=first_image(partition(leader_epoch=3)))
    assert reports(stand) == []
    assert not unreported(stand)


def test_partition_without_a_leader_is_reported_again_until_it_has_one() -> None:
    stand = Stand(recovered(5, (2, 0)), image=first_image(partition(leader_epoch=3)))
    stand.change(isr=(), leader=-1, leader_epoch=4)
    assert unreported(stand)
    assert reports(stand) == [(0, 4, 2, 5)]
    assert not unreported(stand)
    assert reports(stand) == [(0, 4, 2, 5)], "the controller may be another one"
    stand.change(isr=(1,), leader=1, leader_epoch=5)
    assert reports(stand) == []


def test_empty_replica_is_reported_as_empty() -> None:
    stand = Stand(image=first_image(partition(isr=(), leader=-1, leader_epoch=4)))
    assert reports(stand) == [(0, 4, -1, 0)]


def test_replica_with_unflushed_records_is_not_reported_before_they_are_on_the_disk() -> None:
    stand = Stand(image=first_image(partition(leader_epoch=3)), hold_flushes=True)
    stand.produce("a", acks=1)
    stand.change(isr=(), leader=-1, leader_epoch=4)
    assert reports(stand) == []
    stand.flush()
    assert reports(stand) == [(0, 4, 3, 1)]


def test_replica_is_not_reported_by_an_image_that_lacks_the_registration() -> None:
    stand = Stand(recovered(5), image=first_image(partition(isr=(), leader=-1)))
    assert len(reports(stand)) == 1
    stand.broker(1, epoch=5000)
    assert reports(stand) == []


def test_deleted_partition_is_not_reported() -> None:
    stand = Stand(recovered(5), image=first_image(partition(isr=(), leader=-1)))
    stand.remove_topic()
    assert reports(stand) == []


def test_number_of_reports_in_a_heartbeat_is_bounded() -> None:
    keys = [(KEY[0], index) for index in range(REPLICA_LOGS_MAX + 3)]
    stand = Stand(image=first_image(*(partition(key, isr=(), leader=-1) for key in keys)))
    first, second = reports(stand), reports(stand)
    assert len(first) == REPLICA_LOGS_MAX
    assert [index for index, *_ in first + second] == list(range(REPLICA_LOGS_MAX + 3))
    assert 0 < len(reports(stand)) < REPLICA_LOGS_MAX
