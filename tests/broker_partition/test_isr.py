"""ISR changes: proposals, outcomes, and the broker epochs that they name (KIP-903)."""

import pytest
from replica_kit import (
    EPOCHS,
    KEY,
    ME,
    TOPIC,
    Stand,
    first_image,
    of_kind,
    partition,
    positions,
    recovered,
)

from broker.partition import events as ev
from broker.partition.isr import FollowerState
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import ResourceType
from raftlog.wire.controller.v1 import controller_pb2 as rpc

ALONE = partition(isr=(1,))


def alone(*found: object, **settings: object) -> Stand:
    """Broker 1 leads, alone in the ISR."""
    return Stand(*found, image=first_image(ALONE), **settings)  # type: ignore[arg-type]


def proposed(stand: Stand) -> list[list[tuple[int, int]]]:
    return [
        [(m.broker_id, m.broker_epoch) for m in data.new_isr_with_epochs]
        for data in stand.proposals()
    ]


def fail(stand: Stand, code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT, *, unknown: bool) -> None:
    stand.do(ev.AlterPartitionFailed(code, outcome_unknown=unknown))
    stand.after(0.06)


# --- expanding ----------------------------------------------------------------------------------


def test_caught_up_follower_is_proposed_with_the_epoch_of_its_fetch() -> None:
    stand = alone(recovered(10))
    stand.fetch(2, 4, last_epoch=1)
    assert not stand.proposals()
    stand.fetch(2, 10, last_epoch=1)
    (data,) = stand.proposals()
    assert (data.leader_epoch, data.partition_epoch, data.advance_partition_epoch) == (5, 7, False)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, EPOCHS[2])]]
    (request,) = [effect.request for effect in of_kind(stand.got, ev.SendAlterPartition)]
    assert (request.broker_id, request.broker_epoch) == (ME, EPOCHS[ME])
    assert stand.isr == [1]
    stand.answer_isr()
    assert stand.isr == [1, 2]
    assert stand.core.counters()["IsrExpands"] == 1


def test_member_low_on_space_leaves_when_it_lacks_a_record_and_rejoins_when_it_stores() -> None:
    stand = Stand(image=first_image(partition(isr=(1, 2), replicas=(1, 2))))
    stand.fetch(2, 0, low_on_space=True)
    stand.after(60)
    assert not stand.proposals(), "it has all records"
    number = stand.produce("a")
    assert stand.produced(number) is None
    stand.fetch(2, 0, low_on_space=True)
    assert proposed(stand) == [[(1, EPOCHS[1])]]
    stand.answer_isr()
    assert stand.produced(number) is not None
    stand.fetch(2, 0)
    assert len(stand.proposals()) == 1, "below the high watermark"
    stand.fetch(2, 1, low_on_space=True)
    assert proposed(stand)[1:] == [[(1, EPOCHS[1]), (2, EPOCHS[2])]]


def test_member_low_on_space_is_not_proposed_again_while_the_high_watermark_stays() -> None:
    """Below ``min.insync.replicas`` a follower has all up to the high watermark, and lacks the end."""
    stand = Stand(image=first_image(partition(isr=(1, 2), replicas=(1, 2))))
    stand.config(ResourceType.TOPIC, TOPIC, min_insync_replicas="2")
    stand.fetch(2, 0)
    stand.produce("a")
    stand.fetch(2, 0, low_on_space=True)
    stand.answer_isr(elr=(2,))
    assert (stand.isr, stand.high_watermark) == ([1], 0)
    stand.fetch(2, 0, low_on_space=True)
    stand.after(60)
    assert len(stand.proposals()) == 1
    stand.fetch(2, 0)
    assert len(stand.proposals()) == 2, "it stores again"


def test_high_watermark_waits_for_a_proposed_member_from_the_proposal_on() -> None:
    stand = alone()
    stand.fetch(2, 0)
    number = stand.produce("a")
    assert stand.produced(number) is None
    assert stand.high_watermark == 0
    stand.fetch(2, 1)
    assert stand.produced(number) is not None


def test_replica_behind_high_watermark_or_epoch_start_is_not_proposed() -> None:
    stand = alone(recovered(10))
    stand.fetch(2, 9, last_epoch=1)
    assert not stand.proposals()
    behind_start = Stand(recovered(10), image=first_image(partition(isr=(1, 3))))
    behind_start.fetch(3, 4, last_epoch=1)
    assert behind_start.high_watermark == 4
    behind_start.fetch(2, 5, last_epoch=1)
    assert not behind_start.proposals()
    behind_start.fetch(2, 10, last_epoch=1)
    assert len(behind_start.proposals()) == 1


def test_isr_is_not_extended_while_the_high_watermark_is_unknown() -> None:
    stand = Stand(recovered(10), image=first_image(partition(isr=(1, 3))))
    stand.fetch(2, 10, last_epoch=1)
    assert not stand.proposals()
    stand.fetch(3, 10, last_epoch=1)
    assert len(stand.proposals()) == 1


@pytest.mark.parametrize("state", ["fenced", "stopping"])
def test_ineligible_replica_is_not_proposed(state: str) -> None:
    stand = alone()
    stand.broker(2, **{state: True})
    stand.fetch(2, 0)
    assert not stand.proposals()
    stand.broker(2)
    assert len(stand.proposals()) == 1


def test_replica_is_not_proposed_between_registration_and_fetch() -> None:
    """The image shows that the broker is eligible again, but not that it still has its records."""
    stand = alone()
    stand.fetch(3, 0, session="keeps 3 out", leader_epoch=4)
    stand.broker(2, fenced=True)
    stand.fetch(2, 0)
    assert not stand.proposals()
    stand.broker(2, epoch=900)
    assert not stand.proposals()
    stand.fetch(2, 0, epoch=900, session="new life")
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, 900)]]


@pytest.mark.parametrize("epoch", [EPOCHS[2] + 1, 900, 2**31 - 1, 2**63 - 1])
def test_unknown_broker_epoch_is_refused_without_locking_anybody_out(epoch: int) -> None:
    stand = alone()
    (answer,) = of_kind(stand.fetch(2, 0, epoch=epoch, session="forged"), ev.AnswerReplicaFetch)
    assert answer.response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not stand.proposals()
    stand.fetch(2, 0)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, EPOCHS[2])]]


def test_follower_whose_registration_is_not_applied_by_the_leader_yet_retries() -> None:
    stand = alone()
    (answer,) = of_kind(stand.fetch(2, 0, epoch=900), ev.AnswerReplicaFetch)
    assert "does not know epoch 900 of broker 2 yet" in answer.response.error_message
    stand.broker(2, epoch=900)
    stand.fetch(2, 0, epoch=900)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, 900)]]
    assert stand.core.counters()["StaleReplicaEpochs"] == 0


def test_fetch_of_a_broker_that_the_image_lacks_is_refused() -> None:
    stand = alone()
    (answer,) = of_kind(stand.fetch(77, 0, epoch=5, session="nobody"), ev.AnswerReplicaFetch)
    assert answer.response.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_fetch_of_an_earlier_incarnation_is_refused_and_changes_nothing() -> None:
    stand = alone()
    stand.broker(2, epoch=900)
    stand.fetch(2, 0, epoch=900, session="new life")
    effects = stand.fetch(2, 0, session="old life")
    (answer,) = of_kind(effects, ev.AnswerReplicaFetch)
    assert answer.response.error_code == ErrorCode.STALE_BROKER_EPOCH
    (follower,) = [f for f in stand.described().followers if f.replica_id == 2]
    assert follower.replica_epoch == 900
    assert stand.core.counters()["StaleReplicaEpochs"] == 1


@pytest.mark.parametrize("level", [1, 2])
def test_broker_epoch_minus_1_is_accepted_only_below_the_feature_level(level: int) -> None:
    stand = Stand(image=first_image(ALONE, level=level))
    answers = of_kind(stand.fetch(2, 0, epoch=-1), ev.AnswerReplicaFetch)
    assert proposed(stand) == ([[(1, EPOCHS[1]), (2, -1)]] if level == 1 else [])
    if level == 2:
        assert [answer.response.error_code for answer in answers] == [ErrorCode.STALE_BROKER_EPOCH]
        assert not [one for one in stand.described().followers if one.log_end_offset >= 0], (
            "it was not heard"
        )


def test_member_that_has_not_fetched_yet_is_proposed_with_its_epoch_in_the_image() -> None:
    stand = Stand(image=first_image(partition(isr=(1, 2, 3))), replica_lag_time_max_ms=1000)
    stand.fetch(2, 0)
    stand.after(0.9)
    stand.fetch(2, 0)
    stand.after(0.3)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, EPOCHS[2])]]


# --- shrinking ----------------------------------------------------------------------------------


def test_removal_of_a_lagging_member_is_proposed() -> None:
    stand = Stand(replica_lag_time_max_ms=1000)
    stand.followers_fetch(0)
    number = stand.produce("a")
    stand.fetch(2, 1)
    stand.after(0.95)
    assert not stand.proposals()
    stand.after(0.1)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, EPOCHS[2])]]
    assert stand.produced(number) is None, "not before the controller has agreed"
    stand.answer_isr()
    assert stand.produced(number) is not None
    assert stand.core.counters()["IsrShrinks"] == 1


def test_replica_with_the_whole_log_does_not_lag_when_nothing_is_written() -> None:
    stand = Stand(replica_lag_time_max_ms=1000)
    stand.followers_fetch(0)
    stand.after(60)
    assert not stand.proposals()
    stand.produce("a")
    stand.after(0.9)
    assert not stand.proposals()
    stand.after(0.2)
    assert proposed(stand) == [[(1, EPOCHS[1])]]


def test_replica_lags_only_after_the_whole_lag_time() -> None:
    stand = Stand(replica_lag_time_max_ms=1000)
    stand.followers_fetch(0)
    stand.produce("a")
    stand.followers_fetch(1)
    stand.after(0.9)
    stand.produce("b")
    stand.after(0.95)
    assert not stand.proposals()
    stand.after(0.1)
    assert len(stand.proposals()) == 1


def test_replica_that_keeps_pace_does_not_lag() -> None:
    stand = Stand(replica_lag_time_max_ms=1000)
    stand.followers_fetch(0)
    for end in range(1, 40):
        stand.produce("a", acks=0)
        stand.after(0.1)
        stand.followers_fetch(end - 1 if end > 1 else 0)
    assert not stand.proposals()


def test_leader_waits_for_fetches_after_a_stall_before_it_removes_laggards() -> None:
    stand = Stand(replica_lag_time_max_ms=1000)
    stand.followers_fetch(0)
    stand.produce("a")
    stand.now += 40
    stand.do(ev.Tick())
    assert not stand.proposals()
    stand.followers_fetch(1)
    stand.after(5)
    assert not stand.proposals()


# --- outcomes -----------------------------------------------------------------------------------


def expanding() -> Stand:
    stand = alone(ineligible_backoff_ms=500)
    stand.fetch(2, 0)
    assert len(stand.proposals()) == 1
    return stand


def waits_for_2(stand: Stand) -> bool:
    """Return whether the high watermark waits for broker 2."""
    before = stand.high_watermark
    stand.produce("x", acks=0)
    return stand.high_watermark == before


def test_leader_waits_for_fetches_after_being_fenced_before_it_removes_laggards() -> None:
    stand = Stand(image=first_image(partition()))
    stand.followers_fetch(0)
    stand.produce("a")
    # No controller is reached, by nobody: the leader refuses all fetches, and with them the
    # acknowledgements.
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], float("-inf"), "no controller"))
    stand.after(100.0)
    assert not stand.proposals()
    stand.do(ev.BrokerStatusChanged(EPOCHS[ME], stand.now + 1e6))
    stand.after(0.2)
    stand.fetch(2, 1)
    stand.after(100.0)
    assert proposed(stand) == [[(1, EPOCHS[1]), (2, EPOCHS[2])]], "3 was given time, and is late"


def test_ineligible_replica_error_restores_the_committed_isr_and_is_retried_later() -> None:
    stand = expanding()
    number = stand.produce("a")
    stand.answer_isr(ErrorCode.INELIGIBLE_REPLICA)
    assert stand.produced(number) is not None, "the high watermark does not wait for it any more"
    assert list(stand.described().proposed_isr) == []
    stand.fetch(2, 1)
    assert len(stand.proposals()) == 1, "not at once"
    stand.after(0.6)
    assert len(stand.proposals()) == 2
    assert stand.core.counters()["FailedIsrUpdates"] == 1


def test_unknown_outcome_keeps_the_maximal_isr_and_resends_the_same_proposal() -> None:
    stand = expanding()
    fail(stand, unknown=True)
    assert waits_for_2(stand)
    first, second = stand.proposals()
    assert first == second
    stand.answer_isr()
    assert stand.isr == [1, 2]


def test_resent_proposal_keeps_its_original_broker_epochs() -> None:
    """[The follower re-registers with an empty disk: its new epoch would be accepted.]"""
    stand = expanding()
    stand.broker(2, epoch=900)
    fail(stand, unknown=True)
    first, second = proposed(stand)
    assert first == second == [(1, EPOCHS[1]), (2, EPOCHS[2])]


def test_refusal_after_an_unknown_outcome_withdraws_the_proposal() -> None:
    stand = expanding()
    fail(stand, unknown=True)
    stand.answer_isr(ErrorCode.INELIGIBLE_REPLICA)
    assert waits_for_2(stand)
    withdrawal = stand.proposals()[-1]
    assert withdrawal.advance_partition_epoch
    assert (proposed(stand)[-1], withdrawal.partition_epoch) == ([(1, EPOCHS[1])], 7)
    stand.answer_isr(partition_epoch=8)
    assert not waits_for_2(stand)
    assert stand.described().partition_epoch == 8


def test_unsupported_withdrawal_changes_nothing_and_is_retried() -> None:
    stand = expanding()
    fail(stand, unknown=True)
    stand.answer_isr(ErrorCode.INELIGIBLE_REPLICA)
    stand.answer_isr(partition_epoch=7)
    assert waits_for_2(stand)
    stand.after(0.6)
    assert [data.advance_partition_epoch for data in stand.proposals()] == [
        False,
        False,
        True,
        True,
    ]
    assert waits_for_2(stand)
    stand.change(isr=(1,))
    assert not waits_for_2(stand), "the image tells"


def test_definite_failure_of_a_request_is_retried_and_leaves_no_doubt() -> None:
    stand = expanding()
    fail(stand, ErrorCode.NOT_CONTROLLER, unknown=False)
    assert len(stand.proposals()) == 2
    stand.answer_isr(ErrorCode.INELIGIBLE_REPLICA)
    assert not waits_for_2(stand)
    assert not stand.proposals()[-1].advance_partition_epoch


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_refused_isr_is_proposed_again_only_in_the_next_leader_epoch(code: ErrorCode) -> None:
    stand = expanding()
    stand.answer_isr(code)
    stand.fetch(2, 0)
    stand.fetch(3, 0)
    stand.after(60)
    assert len(stand.proposals()) == 1
    assert waits_for_2(stand)
    stand.change(leader_epoch=6)
    stand.fetch(2, 1, last_epoch=5)
    assert len(stand.proposals()) == 2


def test_stale_partition_epoch_waits_for_the_image() -> None:
    stand = expanding()
    stand.answer_isr(ErrorCode.INVALID_UPDATE_VERSION)
    stand.after(60)
    assert len(stand.proposals()) == 1
    assert waits_for_2(stand)
    stand.change(isr=(1, 3))
    assert stand.isr == [1, 3]
    assert [data.partition_epoch for data in stand.proposals()] == [7, 8], (
        "a new one, from what holds now"
    )


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR, None])
def test_other_refusal_or_response_without_a_result_is_retried(code: ErrorCode | None) -> None:
    stand = expanding()
    if code is None:
        stand.do(ev.AlterPartitionAnswered(rpc.AlterPartitionResponse()))
    else:
        stand.answer_isr(code)
    assert waits_for_2(stand)
    stand.after(0.6)
    assert len(stand.proposals()) == 2


def test_image_older_than_a_response_reverts_nothing() -> None:
    stand = expanding()
    stand.answer_isr()
    stand.change(partition_epoch=7, isr=(1,))
    assert stand.isr == [1, 2]
    stand.change(partition_epoch=9, isr=(1,))
    assert stand.isr == [1]


def test_image_newer_than_the_proposal_voids_it() -> None:
    stand = expanding()
    assert waits_for_2(stand)
    stand.change(isr=(1, 3), partition_epoch=8)
    assert stand.isr == [1, 3]
    stand.answer_isr(ErrorCode.INVALID_UPDATE_VERSION)
    assert [data.partition_epoch for data in stand.proposals()] == [7, 8], (
        "the answer was to a proposal of before"
    )
    stand.answer_isr(ErrorCode.INELIGIBLE_REPLICA)
    assert not list(stand.described().proposed_isr)


def test_response_to_an_earlier_leader_epoch_is_ignored() -> None:
    stand = expanding()
    stand.change(leader_epoch=6)
    stand.answer_isr()
    assert stand.isr == [1]
    assert stand.core.counters()["IsrExpands"] == 0


def test_waiting_proposal_is_dropped_when_its_leader_epoch_ends() -> None:
    other = (KEY[0], KEY[1] + 1)
    keys = (other, KEY)
    stand = Stand(
        image=first_image(*(partition(key, isr=(1,)) for key in keys)), max_partitions_per_message=1
    )
    stand.fetch_of(2, positions(*keys))
    stand.change(leader=2, leader_epoch=6)
    fail(stand, unknown=True)
    assert [data.partition_index for data in stand.proposals()] == [other[1], other[1]]


def test_alter_partition_sends_waiting_partitions_in_bounded_requests() -> None:
    keys = [(KEY[0], index) for index in range(4)]
    stand = Stand(
        image=first_image(*(partition(key, isr=(1,)) for key in keys)), max_partitions_per_message=2
    )
    stand.fetch_of(2, positions(*keys))
    requests = of_kind(stand.got, ev.SendAlterPartition)
    assert [len(request.request.topics[0].partitions) for request in requests] == [2]
    fail(stand, unknown=True)
    requests = of_kind(stand.got, ev.SendAlterPartition)
    assert [len(request.request.topics[0].partitions) for request in requests] == [2, 2]
    sent = {data.partition_index for data in stand.proposals()}
    assert len(sent) == 4, "nobody waits behind the same two for ever"


def test_uncleanly_elected_leader_reports_its_recovery() -> None:
    stand = Stand(image=first_image(partition(isr=(1,), leader_recovery_state=1)))
    (data,) = stand.proposals()
    assert data.leader_recovery_state == 0
    stand.answer_isr()
    stand.fetch(2, 0)
    assert len(stand.proposals()) == 2


# --- the parts ----------------------------------------------------------------------------------


def test_follower_end_never_decreases_within_one_broker_epoch() -> None:
    state = FollowerState(2)
    state.fetched(10, 101, 20, 1.0)
    state.fetched(8, 101, 20, 2.0)
    assert (state.end_offset, state.caught_up_at) == (10, None)
    state.fetched(20, 101, 30, 3.0)
    assert state.caught_up_at == 1.0
    state.fetched(0, 102, 30, 4.0)
    assert (state.end_offset, state.broker_epoch) == (0, 102)
