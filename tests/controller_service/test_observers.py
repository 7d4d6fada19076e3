"""Fetches of observers: answered at once when there is news, parked otherwise."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quorum_world import KeepingLink

from controller.service.observers import (
    LONG_S,
    PAUSES,
    REST_MAX_S,
    SHARED_MAX_BYTES,
    SHORT_S,
    TURN_ANSWERS,
    Bursts,
    Observers,
)
from raftlog.bounds import OBSERVER_ANSWER_MAX_BYTES, OBSERVERS_TURN_MAX_BYTES, TURN_MAX_MS
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.transport.api import LinkClosedError
from raftlog.wire.controller.v1 import controller_pb2 as pb


@dataclass
class FakeSource:
    cluster_id: str = "c"
    generation: int = 5
    committed_generation: int = 5
    previous_generations: tuple[int, ...] = (3, 4)
    diverges: tuple[int, int] | None = None
    controller_epoch: int = 4
    committed_end: int = 10
    leader_id: int = 1
    lowest_acknowledged_offset: int = 5
    time: float = 0.0
    refusal: ApiError | None = None
    log_start_offset: int = 0
    newest_snapshot: SnapshotId | None = None
    reports: list[int] = field(default_factory=list)
    reads: int = 0
    registered: frozenset[int] = frozenset()
    to_report: frozenset[int] = frozenset()

    def now(self) -> float:
        return self.time

    def not_controller(self) -> ApiError | None:
        return self.refusal

    def leader_endpoint(self, leader_id: int, listener: str) -> str:
        return f"c{leader_id}:9093{listener}" if leader_id >= 0 else ""

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        self.reads += 1
        if offset == 3:
            raise ValueError("offset 3 is not a batch boundary")
        return f"{offset}..{until}".encode()

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        self.reports.append(fetch.replica_id)

    def divergence(self, end_offset: int, applied: pb.AppliedBatch) -> tuple[int, int] | None:
        return self.diverges

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id in self.registered and broker_epoch == 3


def fetch(offset: int, **fields: Any) -> pb.MetadataFetchRequest:
    values = {
        "replica_id": 7,
        "high_watermark": 10,
        "max_wait_ms": 500,
        "max_bytes": 1 << 20,
        "generation": 5,
        **fields,
    }
    return pb.MetadataFetchRequest(fetch_offset=offset, **values)


class Turns:
    """The loop's turns, executed when the test wants them, and a stopwatch."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.time_s = self.cpu_s = 0.0
        self.pauses_s: list[float] = []

    def soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        self.pauses_s.append(pause_s)
        self.due.append(callback)

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            due, self.due = self.due, []
            for callback in due:
                callback()


def observers_of(source: FakeSource, turns: Turns | None = None) -> Observers:
    turns = turns or Turns()
    return Observers(
        cast(Any, source),
        source.report,
        lambda: source.to_report,
        turns.soon,
        lambda: turns.time_s,
        lambda: turns.cpu_s,
    )


def connect(observers: Observers, peer: str = "somebody:1") -> KeepingLink:
    link = KeepingLink(peer)
    observers.accept(link)
    return link


def park(observers: Observers, turns: Turns, link: KeepingLink, **fields: Any) -> None:
    """Fetch twice: the second time there is no news."""
    for _ in range(2):
        observers.received(link, [fetch(10, **fields)])
        turns.take(3)
    link.sent.clear()


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


def test_diverging_state_is_reported_at_its_offset(world: World) -> None:
    source, observers, link = world
    source.diverges = (4, 8)
    observers.received(link, [fetch(8, last_applied=applied(7), controller_epoch=4)])
    assert link.sent[0].diverging_epoch.end_offset == 8
    assert "the logs are equal, but the states are not" in observers.contradiction


def test_older_leader_compares_nothing(world: World) -> None:
    """It may lack what a later one has committed."""
    source, observers, link = world
    source.diverges = (3, 6)
    observers.received(link, [fetch(8, last_applied=applied(7), controller_epoch=5)])
    assert not link.sent[0].HasField("diverging_epoch")
    assert observers.contradiction == ""


def test_observer_of_another_generation_receives_the_ancestors(world: World) -> None:
    _, observers, link = world
    observers.received(link, [fetch(8, generation=4), fetch(8, generation=9)])
    [answer] = link.sent
    assert answer.error.error_code == ErrorCode.INCONSISTENT_GENERATION
    assert (answer.generation, list(answer.previous_generations)) == (5, [3, 4])


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


def test_observer_without_a_generation_receives_all_generations(world: World) -> None:
    _, observers, link = world
    observers.received(link, [fetch(8, generation=0)])
    assert list(link.sent[0].previous_generations) == [3, 4]
    observers.received(link, [fetch(8)])
    assert list(link.sent[1].previous_generations) == []


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


def test_observers_at_the_same_offset_share_one_read() -> None:
    source = FakeSource()
    observers = observers_of(source)
    links = [connect(observers) for _ in range(5)]
    for link in links:
        park(observers, Turns(), link)
    source.committed_end, source.reads = 11, 0
    observers.release()
    assert source.reads == 1
    assert all(link.sent[-1].records == b"10..11" for link in links)


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


def far_ones(observers: Observers, count: int, **fields: Any) -> list[KeepingLink]:
    """Streams of this many clients, all of which ask for the whole log."""
    links = []
    for number in range(count):
        links.append(link := connect(observers, f"stranger:{number % 3}"))
        observers.received(link, [fetch(0, replica_id=-1, max_bytes=2**31 - 1, **fields)])
    return links


def in_megabytes(source: FakeSource) -> None:
    def read(offset: int, until: int, max_bytes: int) -> bytes:
        source.reads += 1
        return bytes(min(max_bytes, 10 << 20))

    source.read = read  # type: ignore[method-assign]


def test_bytes_sent_in_one_turn_are_bounded() -> None:
    """[1,200 streams ask for 10 MB: all answered at once, and the leadership was lost.]"""
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    in_megabytes(source)
    links = far_ones(observers, 60)
    counts = []
    while sum(len(link.sent) for link in links) < 60:
        before = sum(len(one.records) for link in links for one in link.sent)
        turns.take()
        counts.append(sum(len(one.records) for link in links for one in link.sent) - before)
        assert counts[-1] > 0
    assert max(counts) <= OBSERVERS_TURN_MAX_BYTES + OBSERVER_ANSWER_MAX_BYTES
    assert all(len(one.records) == OBSERVER_ANSWER_MAX_BYTES for link in links for one in link.sent)
    # Their connections took turns.
    assert {link.peer for link in links} == {"stranger:0", "stranger:1", "stranger:2"}
    turns.take(3)
    assert turns.due == []


def test_time_spent_on_clients_in_one_turn_is_bounded() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)

    def read(offset: int, until: int, max_bytes: int) -> bytes:
        turns.time_s += 0.002
        turns.cpu_s += 0.002
        return b"x"

    source.read = read  # type: ignore[method-assign]
    source.committed_end = 100
    links = [connect(observers, f"stranger:{offset}") for offset in range(30)]
    for offset, link in enumerate(links):
        # Nobody is as far as another: each costs a read.
        observers.received(link, [fetch(offset, replica_id=-1)])
    served = sum(len(link.sent) for link in links)
    while served < 30:
        before = turns.time_s
        turns.take()
        assert 0 < turns.time_s - before <= TURN_MAX_MS / 1000 + 0.002
        served = sum(len(link.sent) for link in links)
        # As long a pause follows, in which calls that are new are met.
        assert turns.pauses_s[-1] >= TURN_MAX_MS / 1000 or served == 30


def test_cpu_time_of_other_processes_ends_no_turn() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = parked_brokers(source, observers, turns, 20, 0.0)

    def read(offset: int, until: int, max_bytes: int) -> bytes:
        turns.time_s += 1.0
        return b"x"

    source.read = read  # type: ignore[method-assign]
    source.committed_end = 11
    observers.release()
    assert [len(link.sent) for link in links] == [1] * 20
    assert turns.pauses_s[-1] == 0.0


def test_burst_does_not_visit_waiting_observers_out_of_turn() -> None:
    turns, waiting = Turns(), [True]
    bursts = Bursts(
        turns.soon, lambda: turns.time_s, lambda: turns.cpu_s, lambda: waiting[0], lambda: None
    )
    turns.time_s = REST_MAX_S
    bursts.begin()
    turns.take()
    assert turns.due == [], "somebody is left, and it is not asked in every turn of the loop"
    turns.cpu_s += REST_MAX_S + 2 * SHORT_S
    waiting[0] = False
    bursts.check_soon()
    turns.take()
    assert bool(bursts.pausing), "the burst went on meanwhile"
    turns.take()
    assert not bursts.pausing
    bursts.check_soon()
    assert turns.due == [], "there is no burst"


def test_observers_at_the_same_offset_share_one_answer() -> None:
    source, turns = FakeSource(registered=frozenset(range(3))), Turns()
    observers = observers_of(source, turns)
    links = [connect(observers) for _ in range(3)]
    for broker_id, link in enumerate(links):
        observers.received(link, [fetch(8, replica_id=broker_id, broker_epoch=3)])
        turns.take(3)
    assert all(link.sent[0] is links[0].sent[0] for link in links)
    assert source.reads == 1
    for change in ("committed_end", "lowest_acknowledged_offset", "controller_epoch"):
        setattr(source, change, getattr(source, change) + 1)
        observers.received(links[0], [fetch(8, replica_id=0, broker_epoch=3)])
        turns.take(3)
        answer = links[0].sent[-1]
        assert answer.records == f"8..{source.committed_end}".encode()
        assert answer.lowest_acknowledged_offset == source.lowest_acknowledged_offset
        assert answer.controller_epoch == source.controller_epoch


def test_shared_answers_are_bounded() -> None:
    source, turns = FakeSource(registered=frozenset({0})), Turns()
    observers = observers_of(source, turns)
    link, many = connect(observers), 4 * SHARED_MAX_BYTES // 1000

    def ask(which: int) -> bool:
        """Return whether the log was not read for it."""
        before = source.reads
        observers.received(link, [fetch(8, replica_id=0, broker_epoch=3, max_bytes=1000 + which)])
        turns.take(3)
        return source.reads == before

    def read(offset: int, until: int, max_bytes: int) -> bytes:
        source.reads += 1
        return b"x" * 1000

    source.read = read  # type: ignore[method-assign]
    assert not any(ask(which) for which in range(many))
    kept = 0
    while ask(many - 1 - kept):
        kept += 1
    assert 1 <= kept <= SHARED_MAX_BYTES // 1000


@pytest.mark.parametrize("left", [False, True])
def test_brokers_that_ask_without_pause_are_made_to_wait(left: bool) -> None:
    turns, over = Turns(), list[float]()
    bursts = Bursts(
        turns.soon,
        lambda: turns.time_s,
        lambda: turns.cpu_s,
        lambda: left,
        lambda: over.append(turns.cpu_s),
    )
    turns.time_s = REST_MAX_S
    bursts.begin()
    for _ in range(100):
        # Others ask before each look.
        turns.cpu_s += REST_MAX_S / 10
        if bursts.pausing:
            break
        bursts.begin()
        turns.take()
    assert turns.cpu_s > REST_MAX_S + SHORT_S, "a round is finished"
    assert turns.cpu_s < 2 * REST_MAX_S + LONG_S * left, "what they take has a bound"
    assert turns.pauses_s[-1] == pytest.approx(
        PAUSES * (turns.cpu_s - REST_MAX_S), abs=REST_MAX_S / 4
    )
    turns.take()
    assert over
    assert not bursts.pausing


def test_brokers_are_served_before_clients() -> None:
    source, turns = FakeSource(registered=frozenset({7})), Turns()
    observers = observers_of(source, turns)
    in_megabytes(source)
    broker = connect(observers)
    park(observers, turns, broker, broker_epoch=3)
    links = far_ones(observers, 60)
    served = sum(len(link.sent) for link in links)
    assert 0 < served < 5
    # In the turn in which strangers have had all there is, and at once in the next one: its parked
    # fetch, and then a new one.
    source.committed_end = 11
    observers.release()
    turns.take()
    assert len(broker.sent) == 1
    observers.received(broker, [fetch(4, high_watermark=11, broker_epoch=3)])
    turns.take()
    assert len(broker.sent) == 2
    assert sum(len(link.sent) for link in links) < 60


class SlowLink(KeepingLink):
    """A link to a broker; each send takes this much CPU in the next turn of the loop."""

    def __init__(self, turns: Turns, cost_s: float) -> None:
        super().__init__()
        self.turns, self.cost_s = turns, cost_s

    def send(self, message: Any) -> None:
        super().send(message)
        self.turns.due.append(self.write)

    def write(self) -> None:
        self.turns.cpu_s += self.cost_s


def parked_brokers(
    source: FakeSource, observers: Observers, turns: Turns, count: int, cost_s: float
) -> list[SlowLink]:
    source.registered = frozenset(range(count))
    links = [SlowLink(turns, cost_s) for _ in range(count)]
    for broker_id, link in enumerate(links):
        observers.accept(link)
        park(observers, turns, link, replica_id=broker_id, broker_epoch=3)
    turns.take(3)
    turns.pauses_s.clear()
    return links


def test_many_brokers_are_answered_in_several_turns_of_the_loop() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = parked_brokers(source, observers, turns, 3 * TURN_ANSWERS, 0.0)
    source.committed_end = 11
    observers.release()
    answered = [sum(len(link.sent) for link in links)]
    while answered[-1] < len(links):
        turns.take()
        answered.append(sum(len(link.sent) for link in links))
    assert answered == [TURN_ANSWERS, 2 * TURN_ANSWERS, 3 * TURN_ANSWERS]
    assert set(turns.pauses_s) == {0.0}


def test_burst_is_followed_by_a_pause_whose_requests_are_answered_together() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = parked_brokers(source, observers, turns, 40, 0.0001)
    source.committed_end = 11
    observers.release()
    while max(turns.pauses_s) == 0:
        turns.take()
    assert all(len(link.sent) == 1 for link in links), "the burst is not cut"
    assert turns.pauses_s[-1] == pytest.approx(PAUSES * 40 * 0.0001)
    # Two more commits and a late fetch, in the pause: nobody is answered before it is over.
    due, turns.due = turns.due, []
    for end in (12, 13):
        source.committed_end = end
        observers.release()
    for broker_id, link in enumerate(links):
        observers.received(link, [fetch(11, replica_id=broker_id, broker_epoch=3)])
    assert all(len(link.sent) == 1 for link in links)
    turns.due = due
    turns.take(4)
    assert [link.sent[-1].records for link in links] == [b"11..13"] * 40


def bursts_of(turns: Turns) -> Bursts:
    return Bursts(turns.soon, lambda: turns.time_s, lambda: turns.cpu_s, bool, lambda: None)


def burst(turns: Turns, bursts: Bursts, cost_s: float) -> float:
    """Run a burst that costs this much; return the duration of its pauses in seconds."""
    bursts.begin()
    turns.cpu_s += cost_s
    turns.time_s += cost_s
    turns.pauses_s.clear()
    turns.take()
    paused_s = sum(turns.pauses_s)
    if bursts.pausing:
        turns.time_s += paused_s
        turns.take()
    assert not bursts.pausing
    return paused_s


def test_idle_time_before_a_burst_shortens_the_pause_after_it() -> None:
    turns = Turns()
    bursts = bursts_of(turns)
    turns.time_s = 0.004
    assert burst(turns, bursts, 0.003) == 0
    # A millisecond of the rest is left, and none was taken since.
    assert burst(turns, bursts, 0.003) == pytest.approx(PAUSES * 0.002)
    assert burst(turns, bursts, 0.003) == pytest.approx(PAUSES * 0.003), "a pause counts once"


def test_long_idle_time_counts_no_more_than_a_short_one() -> None:
    turns = Turns()
    bursts = bursts_of(turns)
    turns.time_s = 3600.0
    assert burst(turns, bursts, REST_MAX_S) == 0
    assert burst(turns, bursts, 0.002) == pytest.approx(PAUSES * 0.002)


@given(st.lists(st.tuples(st.floats(0, 0.01), st.floats(0, 0.02)), max_size=40))
def test_bursts_take_at_most_half_of_the_time(steps: list[tuple[float, float]]) -> None:
    turns = Turns()
    bursts, short = bursts_of(turns), 0
    for rest_s, cost_s in steps:
        turns.time_s += rest_s
        short += burst(turns, bursts, cost_s) == 0
        # What is too short for a pause is forgiven, as the first rest is.
        assert turns.cpu_s <= turns.time_s / 2 + REST_MAX_S + SHORT_S * short


def test_few_brokers_need_no_pause() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = parked_brokers(source, observers, turns, 3, 0.0001)
    for end in (11, 12):
        source.committed_end = end
        observers.release()
        turns.take(3)
        for broker_id, link in enumerate(links):
            assert link.sent[-1].high_watermark == end
            observers.received(
                link, [fetch(end, high_watermark=end, replica_id=broker_id, broker_epoch=3)]
            )
    assert set(turns.pauses_s) == {0.0}


def test_lost_leadership_is_announced_during_a_pause_too() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = parked_brokers(source, observers, turns, 20, 0.001)
    source.committed_end = 11
    observers.release()
    while max(turns.pauses_s) == 0:
        turns.take()
    observers.received(links[0], [fetch(11, replica_id=0, broker_epoch=3)])
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=2)
    observers.refuse_all()
    assert links[0].sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER


def test_client_is_served_despite_many_streams_of_another_connection() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    in_megabytes(source)
    far_ones(observers, 600)
    honest = connect(observers, "exporter:1")
    observers.received(honest, [fetch(0, replica_id=-1)])
    for _ in range(4):
        turns.take()
    assert len(honest.sent) == 1


def test_waiting_clients_receive_a_commit_over_several_turns() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = [connect(observers, f"stranger:{number % 5}") for number in range(300)]
    for link in links:
        park(observers, turns, link, replica_id=-1)

    def read(offset: int, until: int, max_bytes: int) -> bytes:
        return bytes(200 << 10)

    source.read = read  # type: ignore[method-assign]
    source.committed_end = 11
    observers.release()
    assert 0 < sum(len(link.sent) for link in links) < 20
    # Another commit meanwhile starves nobody.
    source.committed_end = 12
    observers.release()
    for _ in range(40):
        turns.take()
    assert [len(link.sent) for link in links] == [1] * 300


def test_fetch_that_replaces_a_parked_one_is_handled_at_once(world: World) -> None:
    _, observers, link = world
    observers.received(link, [fetch(10, replica_id=-1)])
    assert link.sent == []
    observers.received(link, [fetch(8, replica_id=-1)])
    assert [one.records for one in link.sent] == [b"8..10"]
    for _ in range(100):
        observers.received(link, [fetch(10, replica_id=-1)])
    assert sum(map(len, observers._lines)) <= 2


def test_parked_observers_are_refused_over_several_turns() -> None:
    source, turns = FakeSource(), Turns()
    observers = observers_of(source, turns)
    links = [connect(observers, f"stranger:{number % 5}") for number in range(100)]
    for link in links:
        park(observers, turns, link, replica_id=-1)

    def slow(link: KeepingLink, message: Any) -> None:
        turns.time_s += 0.001
        turns.cpu_s += 0.001
        link.sent.append(message)

    for link in links:
        link.send = partial(slow, link)  # type: ignore[method-assign]
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=2)
    observers.refuse_all()
    assert 0 < sum(len(link.sent) for link in links) < 10
    for _ in range(30):
        turns.take()
    assert all(link.sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER for link in links)
