"""Fetches of observers: answered at once when there is news, parked otherwise."""

from typing import Any

import pytest
from observer_kit import FakeSource, Turns, connect, fetch, observers_of, park
from quorum_world import KeepingLink

from controller.service.observers import Observers
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.transport.api import LinkClosedError
from raftlog.wire.controller.v1 import controller_pb2 as pb

World = tuple[FakeSource, Observers, KeepingLink]


@pytest.fixture
def world() -> World:
    source = FakeSource()
    observers = observers_of(source)
    link = connect(observers)
    # Hear the present LAO and epoch once, so that the next fetch finds no news in them.
    observers.received(link, [fetch(10)])
    link.sent.clear()
    return source, observers, link


def test_observer_fetch_is_answered_at_once_when_there_is_data(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(8)])
    [answer] = link.sent
    assert answer.records == b"8..10"
    assert answer.high_watermark == 10
    assert answer.lowest_acknowledged_offset == 5
    assert source.reports == [7, 7]


@pytest.mark.parametrize(
    ("field", "value"), [("lowest_acknowledged_offset", 8), ("controller_epoch", 5)]
)
def test_broker_fetch_is_answered_at_once_with_a_new_lao_or_epoch(field: str, value: int) -> None:
    source, turns = FakeSource(registered=frozenset((7,))), Turns()
    observers = observers_of(source, turns)
    link = connect(observers)
    observers.received(link, [fetch(10, broker_epoch=3)])
    turns.take(2)
    link.sent.clear()
    setattr(source, field, value)
    observers.received(link, [fetch(10, broker_epoch=3)])
    turns.take(2)
    assert [getattr(answer, field) for answer in link.sent] == [value]


@pytest.mark.parametrize(
    ("error", "ends"),
    [(LinkClosedError("closed"), False), (ApiError(ErrorCode.MESSAGE_TOO_LARGE, "large"), True)],
    ids=["closed", "too large"],
)
def test_observer_that_cannot_be_answered_delays_no_other(error: Exception, ends: bool) -> None:
    source = FakeSource(registered=frozenset((1, 2, 3)))
    turns = Turns()
    observers = observers_of(source, turns)
    links = first, broken, last = [connect(observers) for _ in range(3)]
    for number, link in enumerate(links, 1):
        park(observers, turns, link, replica_id=number, broker_epoch=3)

    def refuse(message: Any) -> None:
        raise error

    broken.send = refuse  # type: ignore[method-assign]
    source.committed_end = 11
    observers.release()
    assert [len(one.sent) for one in (first, last)] == [1, 1]
    assert bool(broken.closed_because) is ends


def applied(offset: int, epoch: int = 4) -> pb.AppliedBatch:
    return pb.AppliedBatch(base_offset=offset, epoch=epoch, crc=1, state_hash=2)


def test_observer_receives_the_point_of_divergence(world: World) -> None:
    source, observers, link = world
    source.diverges = (3, 6)
    observers.received(link, [fetch(8, last_applied=applied(7), controller_epoch=4)])
    [answer] = link.sent
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (3, 6)
    assert (answer.records, answer.generation) == (b"", 5)
    assert source.reports == [7], "what it has applied is not of this log"
    assert "the logs diverge at offset 6: committed records are lost" in observers.contradiction
    observers = observers_of(FakeSource(diverges=(4, 8)))
    link = connect(observers)
    # An older leader compares nothing: it may lack what a later one has committed.
    observers.received(link, [fetch(8, last_applied=applied(7), controller_epoch=5)])
    assert (link.sent[0].HasField("diverging_epoch"), observers.contradiction) == (False, "")
    observers.received(link, [fetch(8, last_applied=applied(7), controller_epoch=4)])
    assert link.sent[1].diverging_epoch.end_offset == 8
    assert "the logs are equal, but the states are not" in observers.contradiction


def test_observer_of_another_or_no_generation_receives_the_ancestors(world: World) -> None:
    _, observers, link = world
    observers.received(link, [fetch(8, generation=4), fetch(8, generation=9)])
    [answer] = link.sent
    assert answer.error.error_code == ErrorCode.INCONSISTENT_GENERATION
    assert (answer.generation, list(answer.previous_generations)) == (5, [3, 4])
    link = connect(observers)
    observers.received(link, [fetch(8, generation=0)])
    observers.received(link, [fetch(8)])
    assert [list(one.previous_generations) for one in link.sent] == [[3, 4], []]


def test_recovered_log_is_not_served_before_its_new_generation_is_committed(world: World) -> None:
    source, observers, link = world
    source.generation = 6
    reports = [*source.reports]
    observers.received(link, [fetch(8, generation=5)])
    assert link.sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER
    assert (source.reports, link.sent[-1].leader_endpoint) == (reports, "")
    source.committed_generation = 6
    observers.received(link, [fetch(8, generation=5)])
    assert link.sent[-1].error.error_code == ErrorCode.INCONSISTENT_GENERATION


def test_fetch_without_news_is_parked_until_a_commit_or_lao(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10)])
    assert link.sent == []
    observers.release()
    assert link.sent == []
    source.committed_end = 12
    observers.release()
    assert link.sent[-1].records == b"10..12"
    observers.received(link, [fetch(12, high_watermark=12)])
    assert len(link.sent) == 1
    source.lowest_acknowledged_offset = 11
    observers.release()
    assert (link.sent[-1].records, link.sent[-1].lowest_acknowledged_offset) == (b"", 11)


def test_lao_is_sent_without_ending_a_fetch_that_accepts_that(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10, takes_lao_alone=True)])
    for lao in (7, 8):
        source.lowest_acknowledged_offset = lao
        observers.release()
        told = link.sent[-1]
        assert told.fetch_stands
        assert told.lowest_acknowledged_offset == lao
        assert told.records == b""
    assert observers.unreported
    source.committed_end = 12
    observers.release()
    answer = link.sent[-1]
    assert (answer.fetch_stands, answer.records) == (False, b"10..12"), "the same fetch"
    assert len(link.sent) == 3
    observers.release()
    assert len(link.sent) == 3, "answered once"


def test_lao_answers_the_fetch_when_a_reply_waits_for_the_report(world: World) -> None:
    source, observers, link = world
    source.to_report = frozenset({7})
    observers.received(link, [fetch(10, takes_lao_alone=True)])
    source.lowest_acknowledged_offset = 7
    observers.release()
    assert not link.sent[-1].fetch_stands
    source.lowest_acknowledged_offset = 8
    observers.release()
    assert len(link.sent) == 1, "nothing is parked"
    assert not observers.unreported


def test_report_is_requested_when_a_reply_begins_to_wait_for_it(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10, takes_lao_alone=True)])
    source.lowest_acknowledged_offset = 7
    observers.release()
    observers.request_reports()
    assert [one.fetch_stands for one in link.sent] == [True, False]
    assert not observers.unreported


def test_parked_fetch_ends_at_its_deadline(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10)])
    source.time = 0.4
    observers.release(expired_only=True)
    assert link.sent == []
    source.time = 0.5
    observers.release(expired_only=True)
    assert len(link.sent) == 1


@pytest.mark.parametrize(
    ("request_", "code", "field_"),
    [
        (fetch(0, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id"),
        (fetch(-1), ErrorCode.INVALID_REQUEST, "fetch_offset"),
        (fetch(0, generation=3), ErrorCode.INCONSISTENT_GENERATION, "generation"),
        (fetch(3), ErrorCode.OFFSET_OUT_OF_RANGE, "fetch_offset"),
    ],
)
def test_invalid_fetch_is_refused_with_its_field(
    world: World, request_: pb.MetadataFetchRequest, code: ErrorCode, field_: str
) -> None:
    _, observers, link = world
    observers.received(link, [request_])
    assert (link.sent[-1].error.error_code, link.sent[-1].error.field) == (code, field_)


def test_observer_receives_the_leader_when_this_node_does_not_lead(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10)])
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=2)
    observers.refuse_all()
    assert link.sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER
    assert link.sent[-1].leader_endpoint == "c2:9093"
    link.listener = "/CLIENTS"
    observers.refuse_all()
    observers.received(link, [fetch(10)])
    assert link.sent[-1].leader_endpoint == "c2:9093/CLIENTS", "on the listener that was asked"
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=-1)
    observers.received(link, [fetch(10)])
    assert link.sent[-1].leader_endpoint == ""


def test_observer_that_is_not_a_broker_reports_nothing(world: World) -> None:
    source, observers, link = world
    source.reports.clear()
    observers.received(link, [fetch(8, replica_id=-1)])
    assert source.reports == []
    assert len(link.sent) == 1


def test_closed_link_is_sent_nothing(world: World) -> None:
    source, observers, link = world
    observers.received(link, [fetch(10)])
    observers.closed(link, "gone")
    source.committed_end = 20
    observers.release()
    assert link.sent == []


def test_fetch_below_the_log_start_is_answered_with_the_newest_snapshot(world: World) -> None:
    source, observers, link = world
    source.log_start_offset, source.newest_snapshot, source.reads = 6, SnapshotId(8, 3), 0
    observers.received(link, [fetch(5)])
    [answer] = link.sent
    assert answer.snapshot_id.end_offset == 8
    assert answer.snapshot_id.epoch == 3
    assert answer.log_start_offset == 6
    assert answer.records == b""
    assert answer.high_watermark == 10
    assert not answer.HasField("error")
    assert source.reads == 0
    observers.received(link, [fetch(6)])
    assert (link.sent[-1].records, link.sent[-1].log_start_offset) == (b"6..10", 6)
    assert not link.sent[-1].HasField("snapshot_id")


def test_observers_are_not_answered_after_damage_is_detected(world: World) -> None:
    source, observers, idle = world
    reader = connect(observers)
    observers.received(idle, [fetch(10)])

    def damaged(offset: int, until: int, max_bytes: int) -> bytes:
        raise CorruptLogError("batch at offset 4: CRC32C does not match", offset=4)

    source.read = damaged  # type: ignore[method-assign]
    observers.received(reader, [fetch(4)])
    source.committed_end, source.lowest_acknowledged_offset = 11, 6
    observers.release()
    observers.received(idle, [fetch(10)])
    assert reader.sent == idle.sent == []


def test_clients_never_take_the_slots_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.observers.OBSERVERS_MAX_STRANGERS", 4)
    source = FakeSource(registered=frozenset({7}))
    observers = observers_of(source)
    broker = connect(observers, "broker")
    observers.received(broker, [fetch(10, replica_id=7, broker_epoch=3)])
    strangers = [connect(observers, f"stranger {number}") for number in range(6)]
    for link in strangers[:4]:
        # Whoever names another epoch, or another id, is not a broker.
        observers.received(link, [fetch(10, replica_id=7, broker_epoch=2)])
    assert [bool(link.closed_because) for link in strangers] == [False] * 4 + [True] * 2
    # The broker comes back on another connection as soon as there is one place, and then takes
    # none.
    observers.closed(strangers[0], "gone")
    again = connect(observers, "broker again")
    observers.received(again, [fetch(12, replica_id=7, broker_epoch=3)])
    assert not again.closed_because
    assert not broker.closed_because, "a stranger again, for which there is a place"
    assert connect(observers, "one too many").closed_because
    observers.closed(broker, "gone")
    assert not connect(observers, "the next").closed_because


def test_one_connection_leaves_observer_slots_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.observers.OBSERVERS_MAX_STRANGERS", 10)
    observers = observers_of(FakeSource())
    greedy = [connect(observers) for _ in range(20)]
    assert sum(not link.closed_because for link in greedy) == 5
    assert not connect(observers, "other:1").closed_because


def test_fetch_that_replaces_a_parked_one_is_handled_at_once(world: World) -> None:
    _, observers, link = world
    observers.received(link, [fetch(10, replica_id=-1)])
    assert link.sent == []
    observers.received(link, [fetch(8, replica_id=-1)])
    assert [one.records for one in link.sent] == [b"8..10"]
    for _ in range(100):
        observers.received(link, [fetch(10, replica_id=-1)])
    assert sum(map(len, observers._lines)) <= 2
