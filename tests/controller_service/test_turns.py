"""Bounded turns of the controller."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from quorum_world import Node, World, alter, describing
from scenarios import simulated
from test_sessions_in_service import FakeBroker, unfenced_broker

from controller.decision import Decision, Write
from controller.service import turns as turns_module
from controller.service.turns import Leadership
from controller.state.epoch_log import EpochLog
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ErrorCode
from raftlog.metadata.records import record
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

LIMIT = 5


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of records of each turn from here on."""
    monkeypatch.setattr(turns_module, "MAX_TURN_RECORDS", LIMIT)
    counts = [0]
    add, propose = EpochLog.add, Leadership.propose

    def counted(self: EpochLog, records: list[Any], *rest: Any) -> None:
        counts[-1] += len(records)
        add(self, records, *rest)

    def cut(self: Leadership, *rest: Any, **named: Any) -> None:
        counts.append(0)
        propose(self, *rest, **named)

    monkeypatch.setattr(EpochLog, "add", counted)
    monkeypatch.setattr(Leadership, "propose", cut)
    return counts


@simulated
async def test_small_requests_with_many_records_share_no_turn(turns: list[int]) -> None:
    _, node, broker = await unfenced_broker()
    turns[:] = [0]
    topics = [
        pb.CreatableTopic(name=f"t{index}", num_partitions=2, replication_factor=1)
        for index in range(9)
    ]
    requests = [
        pb.ControllerRequest(create_topics=pb.CreateTopicsRequest(topics=[topic]))
        for topic in topics
    ]
    await asyncio.gather(*(broker.client.send(request, 30.0) for request in requests))
    assert len(node.service.image.topics) == 9
    assert sum(turns) >= 27
    assert max(turns) < LIMIT + 3


@simulated
async def test_due_work_bounds_a_turn_and_is_completed(
    turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node, broker = await unfenced_broker()
    active = node.service.node.decider
    assert active is not None
    turns[:] = [0]
    left = [Write([record(records_pb2.NoOpRecord())] * 2) for _ in range(10)]
    monkeypatch.setattr(active.due, "next", lambda now, **_: left.pop() if left else None)
    await asyncio.wait_for(broker.heartbeat(node), 5.0)
    for _ in range(20):
        await asyncio.wait_for(broker.heartbeat(node), 5.0)
    assert not left
    assert sum(turns) == 20
    assert max(turns) < LIMIT + 2


class SlowLoop:
    """A loop whose clock advances while something is decided."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.spent_s = loop, 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._loop.time() + self.spent_s


def slowed(
    monkeypatch: pytest.MonkeyPatch, node: Node, cost_s: float
) -> tuple[SlowLoop, list[tuple[str, float]]]:
    """Let each decision take this long; return the clock, and kind and time of the decisions."""
    slow, decided = SlowLoop(asyncio.get_running_loop()), list[tuple[str, float]]()
    monkeypatch.setattr(node.service.turns, "stopwatch", slow.time)
    decide = node.service.turns._decide

    def slowly(decider: Any, waiting: Any, now: float) -> Decision:
        decided.append((waiting.kind, slow.time()))
        slow.spent_s += cost_s
        return decide(decider, waiting, now)

    monkeypatch.setattr(node.service.turns, "_decide", slowly)
    return slow, decided


def listings(broker: FakeBroker) -> asyncio.Future:
    return asyncio.gather(*(broker.client.send(describing(), 30.0) for _ in range(9)))


@simulated
async def test_long_turn_is_continued_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Listings of a large cluster: each costs a tenth of a second, and writes nothing.]"""
    _, node, broker = await unfenced_broker()
    slow, decided = slowed(monkeypatch, node, 0.04)
    monkeypatch.setattr(turns_module, "READS_TURN_MAX_S", 0.1)
    decide_all, ends = node.service.turns.decide_all, [0]

    def turn(*rest: Any) -> None:
        decide_all(*rest)
        ends.append(len(decided))
        slow.spent_s = 0.0

    monkeypatch.setattr(node.service.turns, "decide_all", turn)
    await listings(broker)
    assert len(decided) == 9
    assert max(after - before for before, after in pairwise(ends)) == 3


@simulated
async def test_writes_are_proposed_before_queued_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """[One client with envelopes of 500 listings: each turn was full of them, and the writes of
    others waited for its end.]
    """
    _, node, _ = await unfenced_broker()
    slow, happened = slowed(monkeypatch, node, 0.001)
    propose = Leadership.propose

    def proposed(*rest: Any, **named: Any) -> None:
        happened.append(("propose", slow.time()))
        propose(*rest, **named)

    monkeypatch.setattr(Leadership, "propose", proposed)
    greedy, other = SlowLink(slow, "greedy:1"), SlowLink(slow, "other:1")
    write = pb.ControllerRequest(open_client=pb.OpenClientRequest(name="c"))
    node.service.reception.received(greedy, [describing()] * 50)  # type: ignore[arg-type]
    for _ in range(10):
        happened.clear()
        node.service.reception.received(other, [write])  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        # The write of another connection first, and of the backlog two listings at a time.
        kinds = [kind for kind, _ in happened]
        assert kinds[:2] == ["open_client", "propose"]
        assert kinds.count("open_client") == 1
    assert len(other.answers) == 10
    while len(greedy.answers) < 50:
        await asyncio.sleep(0.01)


@simulated
async def test_reads_that_use_all_time_cause_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node, _ = await unfenced_broker()
    slow, decided = slowed(monkeypatch, node, 0.004)
    greedy = SlowLink(slow, "greedy:1")
    node.service.reception.received(greedy, [describing()] * 20)  # type: ignore[arg-type]
    while len(greedy.answers) < 20:
        await asyncio.sleep(0.001)
    assert len(decided) == 20
    pauses = [after - before for (_, before), (_, after) in pairwise(decided)]
    assert min(pauses) >= 0.004 * (1 + turns_module.READS_PAUSES) - 1e-9


@pytest.mark.parametrize(("cost_s", "decided_before"), [(0.04, 3), (0.0, 9)])
@simulated
async def test_follower_fetches_precede_the_next_turn_after_long_reads(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, decided_before: int
) -> None:
    """[A flood of listings: turn follows turn, no fetch of a follower is answered in time, and the
    leadership is lost.]
    """
    _, node, broker = await unfenced_broker()
    _, decided = slowed(monkeypatch, node, cost_s)
    monkeypatch.setattr(turns_module, "READS_TURN_MAX_S", 0.1)
    monkeypatch.setattr(turns_module, "READS_PAUSES", 0)
    request_read_index, later = node.service.replica.request_read_index, 1_000
    # No follower confirms a round any more.
    monkeypatch.setattr(
        node.service.replica, "request_read_index", lambda: request_read_index() + later
    )
    answers = listings(broker)
    await asyncio.sleep(0.2)
    assert len(decided) == decided_before
    assert not answers.done()
    monkeypatch.setattr(node.service.replica, "request_read_index", request_read_index)
    node.service.read_index_confirmed(request_read_index() + later)
    await answers
    assert len(decided) == 9


class SlowLink:
    """A link whose sends take time by a stopwatch."""

    listener = ""

    def __init__(self, slow: SlowLoop, peer: str) -> None:
        self.slow, self.peer = slow, peer
        self.answers: list[pb.ControllerResponse] = []

    def send(self, message: pb.ControllerResponse) -> None:
        self.slow.spent_s += 0.001
        self.answers.append(message)


@pytest.mark.parametrize(
    "end", ["lost leadership", "time is up", "parked, lost leadership", "parked, time is up"]
)
@simulated
async def test_waiting_requests_are_refused_over_several_turns(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """[65,536 requests waited when the leadership was lost, and were refused at once: for a second
    the new leader was not heard.]
    """
    _, node, _ = await unfenced_broker()
    slow = SlowLoop(asyncio.get_running_loop())
    monkeypatch.setattr(node.service.refusals, "stopwatch", slow.time)
    # Nothing is confirmed any more, and nothing decided, unless it is to be parked.
    monkeypatch.setattr(node.service.replica, "request_read_index", lambda: 1_000_000)
    if "parked" not in end:
        monkeypatch.setattr(node.service.turns, "decide_all", lambda *_: None)
    link = SlowLink(slow, "somebody:1")
    listing = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest(), timeout_ms=500)
    count = 60
    for _ in range(count):
        node.service.reception.received(link, [listing])  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    assert link.answers == []
    answer_due, told = node.service.refusals.answer_due, []

    def refused() -> None:
        before = len(link.answers)
        answer_due()
        told.append(len(link.answers) - before)

    monkeypatch.setattr(node.service.refusals, "answer_due", refused)
    if "lost" in end:
        node.service.replica.resign("for the test")
        assert len(link.answers) < count
    await asyncio.sleep(0.5)
    assert sum(told) == count
    assert max(told) <= 6, told
    code = ErrorCode.NOT_CONTROLLER if "lost" in end else ErrorCode.REQUEST_TIMED_OUT
    assert {one.error.error_code for one in link.answers} == {code}
    await asyncio.sleep(1.0)
    assert len(link.answers) == count


@simulated
async def test_defect_in_one_decision_fails_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    decider = (await world.active()).service.node.decider
    assert decider is not None
    decide = decider.decide

    def failing(request: Any, now: float, kind: str, first: int) -> Any:
        if isinstance(request, ConfigWrites):
            request = next(request.requests(first))
        if request.incremental_alter_configs.resources[0].resource_name == "bad":
            raise LookupError("a bug")
        return decide(request, now, kind)

    monkeypatch.setattr(decider, "decide", failing)
    requests = [
        pb.ControllerRequest(incremental_alter_configs=alter(name, "1"))
        for name in ("a", "bad", "b")
    ]
    answers = await asyncio.gather(*map(world.client.send, requests))
    codes = [one.error.error_code for one in answers]
    assert codes == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    assert not answers[1].error.outcome_unknown
