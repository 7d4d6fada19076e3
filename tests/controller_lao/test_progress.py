import math

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.visibility.progress import ProgressPolicy
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

WRITE = record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k"))
NO_OP = record(pb.NoOpRecord())


def log(policy: ProgressPolicy, offset: int, *records: Record) -> None:
    policy.observe_proposed(records, offset)


def write(
    policy: ProgressPolicy, lao: int, now: float, *applied: tuple[int, int, int]
) -> pb.ProgressRecord | None:
    """Decide, and propose what was decided."""
    message = policy.decide(lao, lao + 1, applied, now)
    if message is not None:
        policy.proposed(message, now)
    return message


def test_written_when_lao_passes_a_record() -> None:
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


def test_progress_and_no_ops_cause_no_progress() -> None:
    """Else the record causes the acknowledgement that causes the next record."""
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


def test_rate_limited() -> None:
    policy = ProgressPolicy(2.0)
    log(policy, 0, WRITE, WRITE)
    assert write(policy, 0, 10.0) is not None
    log(policy, 2, WRITE)
    assert policy.next_due(2) == 12.0
    assert write(policy, 2, 11.9) is None
    assert write(policy, 2, 12.0) is not None


def test_names_only_brokers_that_changed() -> None:
    policy = ProgressPolicy(0.0)
    log(policy, 0, WRITE)
    write(policy, 0, 0.0, (1, 10, 0), (2, 20, 0))
    log(policy, 1, WRITE)
    message = write(policy, 1, 0.0, (1, 11, 0), (2, 20, 0), (3, 30, 1))
    assert message is not None
    assert [entry.broker_id for entry in message.applied] == [1, 3]


def test_deciding_changes_nothing() -> None:
    policy = ProgressPolicy(1.0)
    log(policy, 0, WRITE)
    first = policy.decide(0, 1, [(1, 10, 0)], 0.0)
    assert first is not None
    assert policy.decide(0, 1, [(1, 10, 0)], 0.0) == first


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=3), max_size=12),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_due_exactly_when_a_batch_with_news_was_passed(
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
