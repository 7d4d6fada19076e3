"""The high watermark below ``min.insync.replicas``, and with eligible leader replicas (KIP-966)."""

from replica_kit import EPOCHS, KEY, ME, TOPIC, Stand, first_image, partition, recovered

from broker.partition import events as ev


def stand_of(*members: int, elr: tuple[int, ...] = (), min_isr: int = 2, end: int = 0) -> Stand:
    """Broker 1 leads (1, 2, 3). ``end``: initial end of its log."""
    image = first_image(partition(replicas=(1, 2, 3), isr=members, elr=elr, leader_epoch=3))
    stand = Stand(*([recovered(end)] if end else []), image=image, serve=False)
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1e6))
    stand.config(2, TOPIC, min_insync_replicas=str(min_isr))
    return stand


def test_high_watermark_stays_while_too_few_replicas_are_in_sync() -> None:
    stand = stand_of(1, 2)
    stand.produce("a", acks=1)
    stand.fetch(2, 1)
    assert stand.high_watermark == 1
    stand.change(isr=(1,))
    number = stand.produce("b", acks=1)
    assert not stand.outcome(number).error_code, "one copy is what acks=1 asks for"
    assert stand.high_watermark == 1
    stand.change(isr=(1, 2))
    stand.fetch(2, 2)
    assert stand.high_watermark == 2


def test_high_watermark_stays_while_a_replica_is_eligible_whatever_the_config_says() -> None:
    """[``min.insync.replicas`` was raised to 2, and the leader's image does not show it yet]"""
    stand = stand_of(1, 2, min_isr=1)
    stand.produce("a", acks=1)
    stand.fetch(2, 1)
    stand.change(isr=(1,), elr=(2,))
    stand.produce("b", acks=1)
    assert stand.high_watermark == 1


def test_high_watermark_stays_when_the_shrink_response_names_an_eligible_replica() -> None:
    stand = stand_of(1, 2, min_isr=1)
    stand.produce("a", acks=1)
    stand.fetch(2, 1)
    stand.produce("b", acks=1)
    stand.after(31.0)
    assert [one.broker_id for one in stand.proposals()[-1].new_isr_with_epochs] == [1]
    stand.answer_isr(elr=(2,))
    assert stand.high_watermark == 1


def test_leader_requests_clearing_of_eligible_replicas_when_its_isr_is_large_enough() -> None:
    stand = stand_of(1, elr=(2,))
    stand.produce("a", acks=1)
    assert stand.proposals() == []
    stand.config(2, TOPIC, min_insync_replicas="1")
    (proposal,) = stand.proposals()
    assert [one.broker_id for one in proposal.new_isr_with_epochs] == [1]
    assert stand.high_watermark == -1
    answer = stand.answer_of(stand.consume(0))
    assert answer.response.partitions[0].error_message.endswith("too few replicas are in sync")
    stand.answer_isr()
    assert stand.high_watermark == 1


def test_leader_does_not_repeat_the_request_at_once_if_eligible_replicas_are_kept() -> None:
    """The controller has seen a later ``min.insync.replicas``."""
    stand = stand_of(1, elr=(2,))
    stand.config(2, TOPIC, min_insync_replicas="1")
    (proposal,) = stand.proposals()
    stand.answer_isr(partition_epoch=proposal.partition_epoch)
    assert len(stand.proposals()) == 1
    stand.after(0.6)
    assert len(stand.proposals()) == 2


def test_new_leader_with_eligible_replicas_keeps_the_high_watermark_that_it_knows() -> None:
    image = first_image(partition(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=3))
    stand = Stand(recovered(5, (3, 0)), image=image)
    stand.core._host.replicas[KEY].high_watermark = 4
    stand.change(isr=(1,), elr=(2,), leader=1, leader_epoch=4)
    assert stand.high_watermark == 4
    stand.produce("a", acks=1)
    assert stand.high_watermark == 4


def test_new_leader_without_eligible_replicas_starts_with_its_whole_log() -> None:
    stand = stand_of(1, end=5)
    assert stand.high_watermark == 5
    stand.produce("a", acks=1)
    assert stand.high_watermark == 5


def test_follower_joins_although_the_high_watermark_is_unknown() -> None:
    stand = stand_of(1, elr=(2,), end=5)
    assert stand.high_watermark == -1
    stand.fetch(2, 4, 1)
    assert stand.proposals() == []
    stand.fetch(2, 5, 1)
    (proposal,) = stand.proposals()
    assert sorted(one.broker_id for one in proposal.new_isr_with_epochs) == [1, 2]
    stand.answer_isr()
    assert stand.high_watermark == 5
