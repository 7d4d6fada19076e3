"""Differences between the ISRs of leaders and of the controller."""

from typing import Any

from raftlog.client.leaders import LeaderAnswer
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.ops.isr_compare import Compared, Why, compare, marks
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec

A, B = b"a" * 16, b"b" * 16
EPOCHS = {1: 0, 2: 1, 3: 2}
"""Broker epochs: the offsets of their registrations."""


def committed(*changes: object) -> Image:
    """Brokers 1 to 3, a topic b with one partition of leader 1, a topic a with two of leader 2;
    then ``changes``.
    """
    messages = [
        *(rec.RegisterBrokerRecord(broker_id=id_, incarnation_id=f"i{id_}", broker_epoch=EPOCHS[id_]) for id_ in EPOCHS),
        rec.TopicRecord(name="b", topic_id=B),
        rec.PartitionRecord(topic_id=B, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1),
        rec.TopicRecord(name="a", topic_id=A),
        *(rec.PartitionRecord(topic_id=A, partition_id=n, replicas=[2, 3], isr=[2, 3], leader=2) for n in (0, 1)),
        *changes,
    ]  # fmt: skip
    builder = ImageBuilder(Image())
    builder.apply_batch([record(one) for one in messages], base_offset=0, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def states(*ids: int) -> list[rec.BrokerState]:
    return [rec.BrokerState(broker_id=id_, broker_epoch=EPOCHS[id_]) for id_ in ids]


def led(
    topic: bytes,
    index: int,
    isr: tuple[int, ...],
    *,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    proposed: tuple[int, ...] = (),
) -> pb.LedPartition:
    return pb.LedPartition(
        topic_id=topic,
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        isr=states(*isr),
        proposed_isr=states(*proposed),
        topic_name="of-leader",
    )


def answers(*led_by: tuple[int, list[pb.LedPartition]], **failures: str) -> dict[int, LeaderAnswer]:
    found = {id_: LeaderAnswer(id_, EPOCHS[id_]) for id_ in EPOCHS}
    found.update(
        {id_: LeaderAnswer(id_, EPOCHS[id_], tuple(partitions)) for id_, partitions in led_by}
    )
    found.update(
        {int(id_[1:]): LeaderAnswer(int(id_[1:]), failure=why) for id_, why in failures.items()}
    )
    return found


A_BOTH = [led(A, 0, (2, 3)), led(A, 1, (2, 3))]
B_ONE = [led(B, 0, (1, 2, 3))]


def why(rows: list[Compared]) -> dict[tuple[str, int], list[Why]]:
    return {
        (row.topic, row.key[1]): [one.why for one in row.differences]
        for row in rows
        if row.differences
    }


def shrink(topic: bytes = B, **fields: Any) -> rec.PartitionChangeRecord:
    return rec.PartitionChangeRecord(topic_id=topic, isr=rec.IdList(ids=[1, 2]), **fields)


def test_agreement_yields_no_difference() -> None:
    rows = compare(committed(), answers((1, B_ONE), (2, A_BOTH)))
    assert [(row.topic, row.key, row.leader_id) for row in rows] == [
        ("a", (A, 0), 2),
        ("a", (A, 1), 2),
        ("b", (B, 0), 1),
    ]
    assert why(rows) == {}
    assert marks(rows) == set()
    assert [
        row.key for row in compare(committed(), answers((1, B_ONE), (2, A_BOTH)), [(B, 0)])
    ] == [(B, 0)]


def test_unanswered_isr_proposal_is_its_own_kind_of_difference() -> None:
    proposing = [led(B, 0, (1, 2), partition_epoch=1, proposed=(1, 3))]
    (row,) = compare(committed(shrink()), answers((1, proposing)), [(B, 0)])
    (found,) = row.differences
    assert (found.why, found.text) == (Why.PROPOSED, "broker 1 has proposed +3 -2")
    same_members = [led(B, 0, (1, 2), partition_epoch=1, proposed=(1, 2))]
    (row,) = compare(committed(shrink()), answers((1, same_members)), [(B, 0)])
    assert row.differences[0].text == "broker 1 has proposed the same members with different epochs"


def test_leader_that_is_behind_and_proposes_has_both_differences() -> None:
    (row,) = compare(
        committed(shrink()), answers((1, [led(B, 0, (1, 2, 3), proposed=(1, 2))])), [(B, 0)]
    )
    assert [one.why for one in row.differences] == [Why.LEADER_BEHIND, Why.PROPOSED]


def test_leader_with_an_older_image_is_behind() -> None:
    for change, behind in (
        (shrink(), B_ONE),
        (rec.PartitionChangeRecord(topic_id=B, leader=1), B_ONE),
        (shrink(), []),
    ):
        (row,) = compare(committed(change), answers((1, behind)), [(B, 0)])
        assert [one.why for one in row.differences] == [Why.LEADER_BEHIND], change
    (row,) = compare(committed(shrink()), answers((1, B_ONE)), [(B, 0)])
    assert (
        "is at leader epoch 0, partition epoch 0, but leader epoch 0, partition epoch 1 is committed"
        in row.differences[0].text
    )


def test_leader_with_an_older_epoch_of_a_member_is_behind() -> None:
    again = rec.RegisterBrokerRecord(broker_id=3, incarnation_id="i3-again", broker_epoch=8)
    (row,) = compare(committed(again), answers((1, B_ONE)), [(B, 0)])
    (found,) = row.differences
    assert found.why == Why.LEADER_BEHIND
    assert found.text == "broker 1 has broker 3 in epoch 2, but 8 is registered"


def test_stale_leader_beside_the_real_one_is_reported() -> None:
    moved = rec.PartitionChangeRecord(topic_id=B, leader=2)
    real = led(B, 0, (1, 2, 3), leader_epoch=1, partition_epoch=1)
    rows = compare(committed(moved), answers((1, B_ONE), (2, [*A_BOTH, real])))
    assert why(rows) == {("b", 0): [Why.STALE_LEADER]}
    assert rows[-1].led == real
    assert rows[-1].differences[0].text == "broker 1 believes it is the leader in leader epoch 0"


def test_leader_of_a_deleted_topic_is_stale_and_names_it() -> None:
    rows = compare(committed(rec.RemoveTopicRecord(topic_id=B)), answers((1, B_ONE), (2, A_BOTH)))
    assert why(rows) == {("of-leader", 0): [Why.STALE_LEADER]}
    assert rows[-1].committed is None


def test_unresponsive_leader_and_partition_without_leader_are_reported() -> None:
    unled = rec.PartitionChangeRecord(topic_id=A, partition_id=1, leader=-1)
    rows = compare(committed(unled), answers((2, A_BOTH[:1]), b1="REQUEST_TIMED_OUT"))
    assert why(rows) == {("a", 1): [Why.NO_LEADER], ("b", 0): [Why.NO_ANSWER]}
    assert rows[-1].differences[0].text == "broker 1: REQUEST_TIMED_OUT"
    gone = rec.UnregisterBrokerRecord(broker_id=1, broker_epoch=0)
    assert why(compare(committed(gone), {}, [(B, 0)])) == {("b", 0): [Why.NO_ANSWER]}


def test_impossible_isr_difference_is_a_conflict() -> None:
    for impossible in (
        led(B, 0, (1, 2)),
        led(B, 0, (1, 2, 3), partition_epoch=1),
        led(B, 0, (1, 2, 3), leader_epoch=1),
    ):
        assert why(compare(committed(), answers((1, [impossible])), [(B, 0)])) == {
            ("b", 0): [Why.CONFLICT]
        }


def test_difference_persists_while_its_leader_does_not_move() -> None:
    first = compare(committed(shrink()), answers((1, B_ONE)), [(B, 0)])
    # The controller goes on, the leader stays where it was.
    later = compare(committed(shrink(), shrink()), answers((1, B_ONE)), [(B, 0)])
    assert marks(first) == marks(later) != set()
    moved = compare(
        committed(shrink(), shrink()),
        answers((1, [led(B, 0, (1, 2), partition_epoch=1)])),
        [(B, 0)],
    )
    assert why(moved) == {("b", 0): [Why.LEADER_BEHIND]}
    assert not marks(first) & marks(moved)
