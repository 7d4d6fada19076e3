"""Roles of replicas: derived from images that show this registration of the broker."""

from replica_kit import (
    EPOCHS,
    KEY,
    ME,
    TOPIC_ID,
    Stand,
    broker,
    first_image,
    of_kind,
    partition,
    recovered,
)

from broker.partition import events as ev
from raftlog.bounds import REPLICA_LOGS_MAX
from raftlog.errors import ErrorCode
from raftlog.metadata.image import Image, ImageDraft
from raftlog.wire.data.v1 import data_pb2 as pb

OTHER = (TOPIC_ID, 1)


def role(stand: Stand, key: tuple[bytes, int] = KEY) -> str:
    return type(stand.core._host.replicas[key].role).__name__


def test_image_of_an_earlier_registration_assigns_no_role_and_deletes_nothing() -> None:
    stand = Stand(recovered(10), recovered(3, key=(b"U" * 16, 0)), serve=False)
    stand.do(ev.BrokerStatusChanged(900, stand.now + 1e6))
    stand.do(ev.ImageMoved(stand.image))
    assert role(stand) == "NoneType"
    assert not of_kind(stand.got, ev.Delete)
    stand.broker(ME, epoch=900)
    assert role(stand) == "Leader"
    assert of_kind(stand.got, ev.Delete) == [ev.Delete((b"U" * 16, 0))]


def test_new_registration_ends_all_roles_until_the_image_shows_it() -> None:
    stand = Stand(image=first_image(partition(), partition(OTHER, leader=2)))
    number = stand.produce("a")
    stand.do(ev.BrokerStatusChanged(900, stand.now + 1e6))
    result = stand.outcome(number)
    assert (result.error_code, result.outcome_unknown) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, True)
    assert result.current_leader.leader_id == -1
    assert role(stand) == role(stand, OTHER) == "NoneType"
    assert of_kind(stand.got, ev.DropLink) == [ev.DropLink(2)]


def test_image_older_than_the_registration_assigns_no_role_and_deletes_nothing() -> None:
    # Another generation of the log, read from its beginning: it shows this registration long before
    # what was created since.
    stand = Stand(recovered(10), recovered(3, key=(b"U" * 16, 0)), serve=False)
    shown_from = stand.image.offset + 1
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1e6, shown_from=shown_from))
    stand.do(ev.ImageMoved(stand.image))
    assert role(stand) == "NoneType"
    assert not of_kind(stand.got, ev.Delete)
    draft = ImageDraft(stand.image)
    draft.offset = shown_from
    stand.image = draft.snapshot()
    stand.do(ev.ImageMoved(stand.image, ev.Changes()))
    assert role(stand) == "Leader"
    assert of_kind(stand.got, ev.Delete) == [ev.Delete((b"U" * 16, 0))]


def test_re_decided_registration_ends_all_roles_until_the_image_is_as_new() -> None:
    stand = Stand(image=first_image(partition(), partition(OTHER, leader=2)))
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1e6, shown_from=stand.image.offset + 1))
    assert role(stand) == role(stand, OTHER) == "NoneType"


def test_broker_that_considers_itself_fenced_rejects_requests_and_completes_pending_ones() -> None:
    stand = Stand()
    stand.followers_fetch(0)
    number = stand.produce("a")
    stand.followers_fetch(1)
    assert stand.produced(number) is not None
    waiting, parked = stand.produce("b", acks=1, timeout_ms=5000), stand.consume(1, wait_ms=3000)
    late = stand.produce("c", timeout_ms=1000)
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 0.5))
    stand.after(0.6)
    assert stand.produced(waiting) is not None
    refused = stand.outcome(stand.produce("d"))
    assert (refused.error_code, refused.outcome_unknown) == (ErrorCode.BROKER_FENCED, False)
    answer = stand.answer_of(stand.consume(0, wait_ms=3000))
    assert answer.response.partitions[0].error_code == ErrorCode.BROKER_FENCED
    (refusal,) = of_kind(stand.fetch(2, 3, session="new"), ev.AnswerReplicaFetch)
    assert refusal.response.error_code == ErrorCode.BROKER_FENCED
    asked = pb.ListOffsetsRequest(
        partitions=[pb.ListOffsetsPartition(topic_id=TOPIC_ID, timestamp=-2)]
    )
    assert (
        stand.core.list_offsets(asked, stand.now).partitions[0].error_code
        == ErrorCode.BROKER_FENCED
    )
    stand.after(3)
    assert stand.answer_of(parked).response.partitions[0].error_code == 0
    assert stand.produced(late) is not None
    assert stand.described().log_end_offset == 3
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 10))
    assert stand.outcome(stand.produce("e", acks=1)).error_code == 0


def test_replica_of_a_partition_without_leader_has_no_role() -> None:
    stand = Stand(image=first_image(partition(leader=2)))
    stand.change(leader=-1, leader_epoch=6)
    assert role(stand) == "NoneType"
    assert stand.outcome(stand.produce("a")).error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_deleted_topic_loses_its_data_and_its_waiting_requests() -> None:
    stand = Stand(recovered(10), image=first_image(partition(), partition(OTHER, leader=2)))
    number, parked = stand.produce("a"), stand.consume(0)
    stand.remove_topic()
    assert of_kind(stand.got, ev.Delete) == [ev.Delete(KEY), ev.Delete(OTHER)]
    assert of_kind(stand.got, ev.Flush)
    assert stand.outcome(number).outcome_unknown
    assert stand.consumed(parked) is not None
    assert list(stand.core.keys()) == []
    assert stand.outcome(stand.produce("a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stand.core.counters()["LeaderCount"] == 0


def test_replica_that_the_image_does_not_assign_is_deleted_after_the_delay() -> None:
    stand = Stand(recovered(10), log_segment_delete_delay_ms=1000)
    stand.remove_topic()
    assert list(stand.core.keys()) == []
    stand.after(0.9)
    assert of_kind(stand.got, ev.Delete) == []
    stand.after(0.2)
    assert of_kind(stand.got, ev.Delete) == [ev.Delete(KEY)]
    assert of_kind(stand.got, ev.Flush)


def test_replica_keeps_its_records_when_it_is_assigned_again_within_the_delay() -> None:
    image = first_image(partition(leader=2))
    stand = Stand(recovered(10), image=image, log_segment_delete_delay_ms=1000)
    stand.do(ev.LinkOpened(2))
    stand.change(replicas=(2, 3), isr=(2, 3), leader_epoch=6)
    stand.change(replicas=(2, 3, 1), adding_replicas=(1,))
    stand.do(ev.LinkOpened(2))
    fetch = of_kind(stand.got, ev.SendReplicaFetch)[-1].request
    assert [one.fetch_offset for one in fetch.partitions] == [10]
    stand.after(2.0)
    assert of_kind(stand.got, ev.Delete) == []


def test_reassigned_replica_is_deleted_and_starts_empty_when_it_returns() -> None:
    stand = Stand(recovered(10), image=first_image(partition(leader=2)))
    stand.do(ev.LinkOpened(2))
    stand.change(replicas=(2, 3), isr=(2, 3), leader_epoch=6)
    assert of_kind(stand.got, ev.Delete) == [ev.Delete(KEY)]
    stand.change(replicas=(2, 3, 1), adding_replicas=(1,))
    stand.do(ev.LinkOpened(2))
    fetch = of_kind(stand.got, ev.SendReplicaFetch)[-1].request
    assert [(one.fetch_offset, one.current_leader_epoch) for one in fetch.partitions] == [(0, 6)]


def test_added_replica_is_fetched_without_a_new_leader_epoch() -> None:
    stand = Stand(image=first_image(partition(replicas=(1, 2), isr=(1, 2))))
    stand.fetch(2, 0)
    stand.change(replicas=(1, 2, 3), adding_replicas=(3,))
    assert stand.high_watermark == 0, "the role goes on"
    stand.fetch(3, 0)
    assert [m.broker_id for m in stand.proposals()[-1].new_isr_with_epochs] == [1, 2, 3]
    assert stand.core.counters()["ReassigningPartitions"] == 1


def test_change_touches_only_the_partitions_that_it_names() -> None:
    keys = [(TOPIC_ID, index) for index in range(50)]
    stand = Stand(image=first_image(*(partition(key) for key in keys)))
    roles = {key: stand.core._host.replicas[key].role for key in keys}
    looked_up: list[tuple[bytes, int]] = []
    found = stand.core._host.partition
    stand.core._host.partition = lambda key: looked_up.append(key) or found(key)  # type: ignore[method-assign,func-returns-value]
    stand.change(keys[7], leader=2, leader_epoch=6)
    assert set(looked_up) == {keys[7]}
    changed = [key for key in keys if stand.core._host.replicas[key].role is not roles[key]]
    assert changed == [keys[7]]


def test_unchanged_leaders_keep_their_state_in_a_full_review() -> None:
    stand = Stand()
    stand.followers_fetch(0)
    stand.do(ev.ImageMoved(stand.image))
    assert stand.high_watermark == 0


def test_led_partition_is_described_with_its_epochs() -> None:
    stand = Stand(image=first_image(partition(isr=(1, 2)), partition(OTHER, leader=2)))
    stand.fetch(2, 0)
    stand.fetch(3, 0)
    stand.produce("a")
    stand.after(0.25)
    everything = stand.core.describe_led(pb.BrokerMetadataRequest(), stand.now)
    assert (everything.broker_id, everything.broker_epoch) == (ME, EPOCHS[ME])
    (led,) = everything.partitions
    assert (led.topic_name, led.leader_epoch, led.partition_epoch) == ("t", 5, 7)
    assert [(m.broker_id, m.broker_epoch) for m in led.isr] == [(1, 101), (2, 102)]
    assert [(m.broker_id, m.broker_epoch) for m in led.proposed_isr] == [
        (1, 101),
        (2, 102),
        (3, 103),
    ]
    assert (led.high_watermark, led.log_end_offset) == (0, 1)
    assert [
        (f.replica_id, f.replica_epoch, f.log_end_offset, f.last_caught_up_age_ms)
        for f in led.followers
    ] == [(2, 102, 0, 250), (3, 103, 0, 250)]
    asked = pb.BrokerMetadataRequest(
        partitions=[pb.PartitionKey(topic_id=TOPIC_ID, partition_index=index) for index in (1, 7)]
    )
    codes = [one.error_code for one in stand.core.describe_led(asked, stand.now).partitions]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_isr_counters_follow_the_isr() -> None:
    stand = Stand(image=first_image(partition(isr=(1, 2)), partition(OTHER)))
    counters = stand.core.counters()
    assert (counters["PartitionCount"], counters["LeaderCount"]) == (2, 2)
    assert counters["UnderReplicatedPartitions"] == 1
    stand.change(isr=(1, 2, 3))
    assert stand.core.counters()["UnderReplicatedPartitions"] == 0
    stand.change(leader=2, leader_epoch=6)
    assert stand.core.counters()["LeaderCount"] == 1


def test_broker_without_an_address_is_dialled_once_it_has_one() -> None:
    stand = Stand(image=first_image(partition(leader=2)), serve=False)
    draft = ImageDraft(stand.image)
    del draft.brokers[2]
    stand.image = draft.snapshot()
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1e6))
    stand.do(ev.ImageMoved(stand.image))
    assert not of_kind(stand.got, ev.WantLink)
    draft = ImageDraft(stand.image)
    draft.brokers[2] = broker(2, EPOCHS[2])
    stand.do(ev.ImageMoved(draft.snapshot(), ev.Changes(brokers=(2,))))
    assert len(of_kind(stand.got, ev.WantLink)) == 1


def test_restored_metadata_log_may_register_followers_under_lower_epochs() -> None:
    stand = Stand()
    stand.fetch(2, 0)
    # Restored to where nobody was registered: all register anew, each under an offset of the log as
    # it is now.
    stand.do(ev.ImageMoved(Image()))
    stand.do(ev.BrokerStatusChanged(-1, float("-inf")))
    stand.do(ev.BrokerStatusChanged(51, stand.now + 1e6))
    draft = ImageDraft(stand.image)
    draft.brokers[ME], draft.brokers[2] = broker(ME, 51), broker(2, 52)
    stand.image = draft.snapshot()
    stand.do(ev.ImageMoved(stand.image))
    (answer,) = of_kind(
        stand.fetch(2, 0, epoch=52, session="new", wait_ms=0), ev.AnswerReplicaFetch
    )
    assert answer.response.error_code == 0


# --- Reports of replicas without a leader (KIP-966, part 2) --------------------------------------


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
