"""DescribeBrokers, and the time until all brokers have applied a record."""

from random import Random

import pytest
from deciding import Cell

from controller.rules import fencing
from controller.visibility.progress import COMMITS_MAX, VisibilitySketches
from raftlog.metadata.sketch import BUCKETS_MAX, bucket_of, percentile_us, upper_us
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def test_all_brokers_are_described_with_controller_state() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), (1, 3))
    cell.register(4, rack="r4")
    cell.silence(3)
    assert not cell.beat(1, want_shut_down=True).is_fenced
    cell.beat(2)
    cell.decider.state.lao_stall.update(
        cell.now, cell.lao.lao, cell.pending.offset, cell.lao.held_back_by(), ""
    )
    cell.now += 1.5
    body = cell.send(rpc.DescribeBrokersRequest())
    assert body.held_back_ms == 1500
    assert [broker.broker_id for broker in body.brokers] == [1, 2, 3, 4]
    states = [broker.state for broker in body.brokers]
    assert states == [rpc.STOPPING, rpc.ACTIVE, rpc.INACTIVE, rpc.INACTIVE]
    assert [broker.broker_epoch for broker in body.brokers] == [
        cell.broker(id_).epoch for id_ in (1, 2, 3, 4)
    ]
    assert [broker.leader_count for broker in body.brokers] == [0, 1, 0, 0]
    assert [broker.replica_count for broker in body.brokers] == [2, 1, 1, 0]
    assert [broker.last_contact_age_ms for broker in body.brokers][:3] == [1500, 1500, -1]
    assert [(broker.reason, broker.cause) for broker in body.brokers] == [
        ("controlled shutdown", pb.CONTROLLED_SHUTDOWN),
        ("caught up", pb.CAUGHT_UP),
        ("session timed out", pb.SESSION_TIMED_OUT),
        ("registered", pb.REGISTERED),
    ]
    assert body.brokers[3].rack == "r4"
    assert body.brokers[3].endpoint == "host-4:9004"
    assert body.brokers[3].applied_offset == -1
    assert body.brokers[1].applied_offset == cell.lao.applied_of(2) >= 0
    assert body.brokers[1].told_lowest_acknowledged_offset == cell.lao.known_lao_of(2) >= 0
    assert body.lowest_acknowledged_offset == cell.lao.lao
    assert body.high_watermark == cell.pending.offset + 1
    assert list(body.held_back_by) == [1]


def test_cause_is_described_whatever_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_WORDS", dict.fromkeys(fencing._WORDS, "registered"))
    cell = Cell(brokers=2)
    cell.silence(2)
    told = [broker.cause for broker in cell.send(rpc.DescribeBrokersRequest()).brokers]
    assert told == [pb.CAUGHT_UP, pb.SESSION_TIMED_OUT]


def ages(cell: Cell) -> list[tuple[int, bool]]:
    brokers = cell.send(rpc.DescribeBrokersRequest()).brokers
    return [(broker.state_age_ms, broker.state_age_is_at_least) for broker in brokers]


def test_duration_of_a_broker_state_is_described() -> None:
    cell = Cell(brokers=3)
    cell.now += 9
    assert ages(cell) == [(9000, False)] * 3
    cell.beats(1, 2, 3)
    cell.beat(1, want_fence=True)
    cell.beat(2, want_shut_down=True)
    cell.now += 2
    cell.register(3)
    assert ages(cell) == [(2000, False), (2000, False), (11000, False)], (
        "who registers again is what it was"
    )
    cell.beat(1)
    assert ages(cell)[0] == (0, False)
    cell.now += 9.1
    cell.due()
    cell.now += 1
    assert ages(cell) == [(1000, False), (12100, False), (1000, False)], (
        "brokers 1 and 3 were fenced for silence"
    )


def test_new_controller_knows_only_how_long_it_has_seen_a_state() -> None:
    cell = Cell(brokers=2)
    later = Cell(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now + 100)
    later.now += 9
    assert ages(later) == [(9000, True)] * 2
    later.beat(1, want_fence=True)
    assert ages(later) == [(0, False), (9000, True)]


def test_unknown_lao_is_described_with_its_reason() -> None:
    cell = Cell(brokers=2)
    later = Cell(brokers=0, image=cell.pending.snapshot(), epoch=2)
    body = later.send(rpc.DescribeBrokersRequest())
    assert body.lowest_acknowledged_offset == -1
    assert "have not reported" in body.lao_unknown_reason


def test_description_shows_committed_brokers_only() -> None:
    cell = Cell(brokers=1)
    cell.hold_commits = True
    end = cell.pending.offset + 1
    cell.register(2)
    body = cell.send(rpc.DescribeBrokersRequest())
    assert [broker.broker_id for broker in body.brokers] == [1]
    assert body.high_watermark == end


def test_partitions_with_too_few_replicas_or_below_min_insync_are_counted() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), (2, 3), name="a")
    cell.create_on((1, 2, 3), name="b")
    cell.create_on((3,), name="c")
    for name in "abc":
        cell.configure(name, "min.insync.replicas", "2")

    def short() -> tuple[int, int]:
        found = cell.send(rpc.DescribeBrokersRequest()).partitions
        return found.under_replicated, found.under_min_isr

    assert short() == (0, 0), "c cannot have two, and is served with one"
    cell.silence(3)
    assert short() == (2, 1), "one of a has its second replica on broker 3; b has two left"
    cell.silence(2)
    assert short() == (2, 2), "what has no leader is counted as that"


def test_unregistered_brokers_with_replicas_and_throttled_brokers_are_reported() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), name="a")
    for name, key in (("", "cordoned"), ("2", "follower.replication.throttled.rate")):
        cell.configure(name, key, "1000" if name else "false", kind=4)
    assert cell.send(rpc.DescribeBrokersRequest()).throttled_brokers == ["2"]
    for broker_id in (3, 2):
        cell.send(rpc.UnregisterBrokerRequest(broker_id=broker_id))
    found = cell.send(rpc.DescribeBrokersRequest())
    assert [one.broker_id for one in found.brokers] == [1]
    assert found.unregistered_replica_ids == [2], "3 has none"


def test_partitions_that_need_attention_are_counted() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), (1, 2), (2, 3), name="a")
    cell.create_on((3,), name="b")
    cell.reassign({0: [3, 2]}, "a")

    def counts() -> tuple[int, ...]:
        of = cell.send(rpc.DescribeBrokersRequest()).partitions
        return of.total, of.offline, of.not_led_by_preferred, of.reassigning, of.recovering

    assert counts() == (4, 0, 1, 1, 0)
    cell.silence(3)
    assert counts() == (4, 1, 2, 1, 0)
    cell.silence(1)
    assert counts() == (4, 1, 3, 1, 0)
    cell.silence(2)
    cell.beats(3, 3)
    assert counts() == (4, 3, 3, 1, 0)
    cell.send(rpc.ElectLeadersRequest(election_type=rpc.UNCLEAN))
    assert counts() == (4, 1, 2, 1, 2)


# --- How long records take until all brokers have them, as progress records say it ---------------


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


def test_sketches_bound_pending_commits_without_losing_any() -> None:
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
    for took_us in (0, 1, 2**60):
        assert 0 <= bucket_of(took_us) < BUCKETS_MAX
