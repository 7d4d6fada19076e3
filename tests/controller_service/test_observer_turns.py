"""A turn of the loop answers a bounded number of observers; the others wait for a later turn."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observer_kit import FakeSource, Turns, connect, fetch, observers_of, park
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
from raftlog.errors import ApiError, ErrorCode

Paced = tuple[FakeSource, Turns, Observers]


@pytest.fixture
def paced() -> Paced:
    source, turns = FakeSource(), Turns()
    return source, turns, observers_of(source, turns)


def far_ones(observers: Observers, count: int, **fields: Any) -> list[KeepingLink]:
    """Streams of this many clients, all of which ask for the whole log."""
    links = []
    for number in range(count):
        links.append(link := connect(observers, f"stranger:{number % 3}"))
        observers.received(link, [fetch(0, replica_id=-1, max_bytes=2**31 - 1, **fields)])
    return links


def test_bytes_sent_in_one_turn_are_bounded(paced: Paced) -> None:
    """[1,200 streams ask for 10 MB: all answered at once, and the leadership was lost.]"""
    source, turns, observers = paced
    source.size = 10 << 20
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


def test_time_spent_on_clients_in_one_turn_is_bounded(paced: Paced) -> None:
    source, turns, observers = paced
    source.size, source.committed_end = 1, 100
    source.on_read = partial(turns.spend, 0.002)
    links = [connect(observers, f"stranger:{offset}") for offset in range(30)]
    for offset, link in enumerate(links, 4):
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


def test_cpu_time_of_other_processes_does_not_end_a_turn(paced: Paced) -> None:
    source, turns, observers = paced
    links = parked_brokers(source, observers, turns, 20, 0.0)

    def run_others() -> None:
        turns.time_s += 1.0

    source.on_read = run_others
    source.committed_end = 11
    observers.release()
    assert [len(link.sent) for link in links] == [1] * 20
    assert turns.pauses_s[-1] == 0.0


def test_burst_does_not_visit_waiting_observers_out_of_turn() -> None:
    turns, waiting = Turns(), [True]
    bursts = bursts_of(turns, lambda: waiting[0])
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


def test_observers_at_the_same_offset_share_one_answer(paced: Paced) -> None:
    source, turns, observers = paced
    source.registered = frozenset(range(3))
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


def test_shared_answers_are_bounded(paced: Paced) -> None:
    source, turns, observers = paced
    source.registered = frozenset({0})
    link, many = connect(observers), 4 * SHARED_MAX_BYTES // 1000

    def ask(which: int) -> bool:
        """Return whether the log was not read for it."""
        before = source.reads
        observers.received(link, [fetch(8, replica_id=0, broker_epoch=3, max_bytes=1000 + which)])
        turns.take(3)
        return source.reads == before

    source.size = 1000
    assert not any(ask(which) for which in range(many))
    kept = 0
    while ask(many - 1 - kept):
        kept += 1
    assert 1 <= kept <= SHARED_MAX_BYTES // 1000


@pytest.mark.parametrize("left", [False, True])
def test_brokers_that_ask_without_pause_are_made_to_wait(left: bool) -> None:
    turns, over = Turns(), list[float]()
    bursts = bursts_of(turns, lambda: left, lambda: over.append(turns.cpu_s))
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


def test_brokers_are_served_before_clients(paced: Paced) -> None:
    source, turns, observers = paced
    source.registered = frozenset({7})
    source.size = 10 << 20
    broker = connect(observers)
    park(observers, turns, broker, broker_epoch=3)
    links = far_ones(observers, 60)
    served = sum(len(link.sent) for link in links)
    assert 0 < served <= OBSERVERS_TURN_MAX_BYTES // OBSERVER_ANSWER_MAX_BYTES
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


def bursts_of(
    turns: Turns, left: Callable[[], bool] = bool, over: Callable[[], None] = lambda: None
) -> Bursts:
    return Bursts(turns.soon, lambda: turns.time_s, lambda: turns.cpu_s, left, over)


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


def test_many_brokers_are_answered_in_several_turns_of_the_loop(paced: Paced) -> None:
    source, turns, observers = paced
    links = parked_brokers(source, observers, turns, 3 * TURN_ANSWERS, 0.0)
    source.committed_end = 11
    observers.release()
    answered = [sum(len(link.sent) for link in links)]
    while answered[-1] < len(links):
        turns.take()
        answered.append(sum(len(link.sent) for link in links))
    assert answered == [TURN_ANSWERS, 2 * TURN_ANSWERS, 3 * TURN_ANSWERS]
    assert set(turns.pauses_s) == {0.0}


def test_burst_is_followed_by_a_pause_whose_requests_are_answered_together(paced: Paced) -> None:
    source, turns, observers = paced
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


def burst(turns: Turns, bursts: Bursts, cost_s: float) -> float:
    """Run a burst that costs this much; return the duration of its pauses in seconds."""
    bursts.begin()
    turns.spend(cost_s)
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


def test_few_brokers_need_no_pause(paced: Paced) -> None:
    source, turns, observers = paced
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


def test_lost_leadership_is_announced_during_a_pause_too(paced: Paced) -> None:
    source, turns, observers = paced
    links = parked_brokers(source, observers, turns, 20, 0.001)
    source.committed_end = 11
    observers.release()
    while max(turns.pauses_s) == 0:
        turns.take()
    observers.received(links[0], [fetch(11, replica_id=0, broker_epoch=3)])
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=2)
    observers.refuse_all()
    assert links[0].sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER


def test_client_is_served_despite_many_streams_of_another_connection(paced: Paced) -> None:
    source, turns, observers = paced
    source.size = 10 << 20
    far_ones(observers, 600)
    honest = connect(observers, "exporter:1")
    observers.received(honest, [fetch(0, replica_id=-1)])
    for _ in range(4):
        turns.take()
    assert len(honest.sent) == 1


def test_waiting_clients_receive_a_commit_over_several_turns(paced: Paced) -> None:
    source, turns, observers = paced
    links = [connect(observers, f"stranger:{number % 5}") for number in range(300)]
    for link in links:
        park(observers, turns, link, replica_id=-1)
    source.size = 200 << 10
    source.committed_end = 11
    observers.release()
    assert 0 < sum(len(link.sent) for link in links) < 20
    # Another commit meanwhile starves nobody.
    source.committed_end = 12
    observers.release()
    for _ in range(40):
        turns.take()
    assert [len(link.sent) for link in links] == [1] * 300


def test_parked_observers_are_refused_over_several_turns(paced: Paced) -> None:
    source, turns, observers = paced
    links = [connect(observers, f"stranger:{number % 5}") for number in range(100)]
    for link in links:
        park(observers, turns, link, replica_id=-1)

    def slow(link: KeepingLink, message: Any) -> None:
        turns.spend(0.001)
        link.sent.append(message)

    for link in links:
        link.send = partial(slow, link)  # type: ignore[method-assign]
    source.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no", leader_id=2)
    observers.refuse_all()
    assert 0 < sum(len(link.sent) for link in links) < 10
    for _ in range(30):
        turns.take()
    assert all(link.sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER for link in links)
