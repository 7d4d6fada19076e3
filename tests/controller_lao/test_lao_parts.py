"""Broker positions, sessions, progress records, and the timing of LAO announcements."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.service.service import HOLD_MAX_S, REMEMBERED, CommitRate
from controller.state.liveness import SessionTracker
from controller.visibility.lao import NOWHERE, Positions
from controller.visibility.progress import ProgressPolicy
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

# --- Positions of brokers, beside a sorted list of them ------------------------------------------


WHO = st.tuples(st.integers(0, 3), st.integers(0, 2))
STEPS = st.lists(st.tuples(WHO, st.integers(-1, 6)), max_size=40)


@given(STEPS, st.integers(-2, 8))
def test_positions_agree_with_a_list(steps: list[tuple[tuple[int, int], int]], until: int) -> None:
    positions, at = Positions(), dict[tuple[int, int], int]()
    for who, offset in steps:
        if who in at and offset == 0:
            positions.move((at[who], *who), 3)
            at[who] = 3
        elif who in at:
            positions.remove((at.pop(who), *who))
        # Above 5: it goes.
        if offset <= 5 and who not in at:
            positions.add((offset, *who))
            at[who] = offset
        expected = sorted((offset, *who) for who, offset in at.items())
        assert list(positions) == expected
        assert len(positions) == len(expected)
        assert bool(positions) == bool(expected)
        assert list(positions.until(until)) == [one for one in expected if one[0] <= until]
        if expected:
            assert positions.lowest == expected[0][0]


def test_absent_position_cannot_be_removed_or_moved() -> None:
    positions = Positions()
    positions.add((5, 1, 7))
    for absent in [(4, 1, 7), (5, 1, 8)]:
        with pytest.raises(KeyError):
            positions.remove(absent)
    assert list(positions) == [(5, 1, 7)]
    with pytest.raises(KeyError):
        positions.move((4, 1, 7), 5)
    assert Positions().lowest == NOWHERE


# --- Sessions of brokers -------------------------------------------------------------------------


def tracker(*broker_ids: int) -> SessionTracker:
    sessions = SessionTracker(10.0)
    sessions.start([(broker_id, broker_id * 100) for broker_id in broker_ids], 0.0)
    return sessions


def test_session_lasts_for_its_timeout_after_the_last_contact() -> None:
    sessions = tracker(1)
    sessions.touch(1, 100, 4.0)
    assert sessions.is_alive(1, 13.9)
    assert not sessions.is_alive(1, 14.0)
    assert sessions.expired(13.9) is None
    assert sessions.expired(14.0) == 1
    assert sessions.last_contact(1) == 4.0
    assert not sessions.is_alive(2, 0.0)
    assert sessions.last_contact(2) is None


def test_longest_expired_session_comes_first_then_the_lower_id() -> None:
    sessions = tracker(3, 1, 2)
    sessions.touch(1, 100, 1.0)
    assert sessions.next_expiry() == (10.0, 2)
    fenced = []
    while (broker_id := sessions.expired(20.0)) is not None:
        fenced.append(broker_id)
        sessions.end(broker_id)
    assert fenced == [2, 3, 1]
    assert sessions.next_expiry() is None


def test_older_broker_epoch_and_a_late_contact_change_nothing() -> None:
    sessions = tracker(1)
    sessions.touch(1, 100, 5.0)
    sessions.touch(1, 99, 9.0)
    sessions.touch(1, 100, 3.0)
    assert sessions.next_expiry() == (15.0, 1)
    sessions.touch(1, 101, 6.0)
    sessions.touch(1, 100, 8.0)
    assert sessions.next_expiry() == (16.0, 1)


def test_gap_in_the_loop_extends_every_session() -> None:
    sessions = tracker(1, 2)
    sessions.extend_all(0.1, 0.1)
    assert sessions.next_expiry() == (10.0, 1)
    sessions.extend_all(5.0, 5.0)
    assert sessions.next_expiry() == (15.0, 1)
    sessions.touch(1, 100, 2.0)
    assert sessions.next_expiry() == (15.0, 1), "a contact shortens no session"
    assert sessions.last_contact(1) == 2.0
    sessions.touch(2, 200, 6.0)
    sessions.touch(3, 300, 6.0)
    assert sessions.is_alive(3, 15.9)
    assert not sessions.is_alive(3, 16.0)
    assert not sessions.is_alive(2, 16.0)


def test_session_renewed_before_a_gap_is_noticed_is_not_extended_twice() -> None:
    sessions = tracker(1, 2)
    sessions.touch(1, 100, 60.0)
    sessions.touch(3, 300, 59.5)
    sessions.extend_all(59.0, 60.0)
    assert sessions.next_expiry() == (69.0, 2)
    sessions.end(2)
    assert sessions.next_expiry() == (70.0, 1)
    assert sessions.expired(69.9) is None
    assert not sessions.is_alive(3, 70.0)
    sessions.touch(1, 100, 61.0)
    assert sessions.next_expiry() == (70.0, 3)
    assert sessions.is_alive(1, 70.9)


def test_start_discards_earlier_sessions() -> None:
    sessions = tracker(1, 2)
    sessions.start([(2, 200)], 100.0)
    assert sessions.last_contact(1) is None
    assert sessions.next_expiry() == (110.0, 2)
    sessions.end(1)


# --- Progress records ----------------------------------------------------------------------------


WRITE = record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k"))
NO_OP = record(pb.NoOpRecord())


def log(policy: ProgressPolicy, offset: int, *records: Record) -> None:
    policy.observe_proposed(records, offset)


def write(
    policy: ProgressPolicy, lao: int, now: float, *applied: tuple[int, int, int]
) -> pb.ProgressRecord | None:
    message = policy.decide(lao, lao + 1, applied, now)
    if message is not None:
        policy.proposed(message, now)
    return message


def test_progress_is_written_when_lao_passes_a_record() -> None:
    policy = ProgressPolicy(1.0)
    log(policy, 5, WRITE)
    assert policy.next_due(4) == math.inf
    assert policy.decide(-1, 0, (), 0.0) is None
    assert policy.decide(4, 6, (), 0.0) is None
    assert policy.next_due(5) == 0.0
    message = policy.decide(5, 7, [(1, 10, 5), (2, 20, 6)], 0.0)
    assert message == pb.ProgressRecord(
        lowest_acknowledged_offset=5,
        high_watermark=7,
        applied=[
            pb.AppliedOffset(broker_id=1, broker_epoch=10, applied_offset=5),
            pb.AppliedOffset(broker_id=2, broker_epoch=20, applied_offset=6),
        ],
    )


def test_progress_and_no_op_records_cause_no_progress_record() -> None:
    """Otherwise a record causes the acknowledgement that causes the next record."""
    policy = ProgressPolicy(0.0)
    log(policy, 0, WRITE)
    message = write(policy, 0, 1.0)
    assert message is not None
    log(policy, 1, record(message))
    log(policy, 2, NO_OP, NO_OP)
    assert write(policy, 3, 2.0) is None
    assert policy.next_due(3) == math.inf
    log(policy, 4, NO_OP, WRITE)
    assert write(policy, 3, 3.0) is None
    assert write(policy, 5, 3.0) is not None


def test_progress_records_are_rate_limited() -> None:
    policy = ProgressPolicy(2.0)
    log(policy, 0, WRITE, WRITE)
    first, second = (policy.decide(0, 1, [(1, 10, 0)], 10.0) for _ in range(2))
    assert first == second is not None, "deciding changes no state"
    assert write(policy, 0, 10.0) is not None
    log(policy, 2, WRITE)
    assert policy.next_due(2) == 12.0
    assert write(policy, 2, 11.9) is None
    assert write(policy, 2, 12.0) is not None


def test_progress_record_names_only_brokers_that_changed() -> None:
    policy = ProgressPolicy(0.0)
    log(policy, 0, WRITE)
    write(policy, 0, 0.0, (1, 10, 0), (2, 20, 0))
    log(policy, 1, WRITE)
    message = write(policy, 1, 0.0, (1, 11, 0), (2, 20, 0), (3, 30, 1))
    assert message is not None
    assert [entry.broker_id for entry in message.applied] == [1, 3]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=3), max_size=12),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_progress_is_due_exactly_when_a_batch_with_news_was_passed(
    batches: list[list[bool]], laos: list[int]
) -> None:
    policy = ProgressPolicy(0.0)
    news = []
    offset = 0
    for batch in batches:
        log(policy, offset, *(WRITE if loud else NO_OP for loud in batch))
        news += [offset + index for index in range(len(batch)) if any(batch)]
        offset += len(batch)
    recorded = -1
    for lao in sorted(laos):
        due = any(recorded < at <= lao for at in news)
        assert (write(policy, lao, 0.0) is not None) == due
        if due:
            recorded = lao


# --- Announcing LAO: at once, or with the next records -------------------------------------------


def rhythm(interval_s: float, count: int = 40) -> tuple[CommitRate, float, int]:
    """Commits at this interval, the last one just now and not yet covered by LAO."""
    rate = CommitRate()
    now, end = 100.0, 0
    for _ in range(count):
        now, end = now + interval_s, end + 1
        rate.hold_s(end - 2, now)
        rate.committed(end, now)
    return rate, now, end


@pytest.mark.parametrize(
    ("after_s", "hold_s"),
    [(0.003, 0), (0.008, 0.008), (3.0, HOLD_MAX_S)],
    ids=["next commit is far", "next commit is imminent", "bounded"],
)
def test_lao_announcement_waits_for_an_imminent_commit(after_s: float, hold_s: float) -> None:
    rate, now, end = rhythm(0.010)
    assert rate.hold_s(end - 1, now + after_s) == pytest.approx(hold_s, abs=0.0001)


def test_lone_write_is_announced_at_once_however_long_it_took() -> None:
    rate = CommitRate()
    rate.committed(7, 5.0)
    assert rate.hold_s(6, 5.4) == 0


def test_lao_announcement_forgets_its_rhythm_after_a_pause() -> None:
    rate, now, end = rhythm(0.010)
    for _ in range(8):
        now, end = now + 5.0, end + 1
        rate.committed(end, now)
    assert rate.hold_s(end - 1, now + 0.1) == 0


def test_lao_without_a_new_commit_is_announced_at_once() -> None:
    rate, now, end = rhythm(0.010)
    assert rate.hold_s(end - 1, now + 0.009) > 0
    assert rate.hold_s(end - 1, now + 0.009) == 0


def test_remembered_commits_are_bounded() -> None:
    rate, now, end = rhythm(0.001, 10 * REMEMBERED)
    for n in range(10 * REMEMBERED):
        rate.committed(end + n, now)
    assert len(rate._commits) == REMEMBERED
