"""Replies that wait for a commit, LAO or a read-index round."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scenarios import simulated
from test_sessions_in_service import unfenced_broker

from controller.decision import Decision, Defer, Write
from controller.service.intake import SLACK, Deadlines
from controller.service.replies import (
    ACKNOWLEDGED,
    COMMITTED,
    VISIBLE,
    Answers,
    Parked,
    Parking,
    failure,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.observability.figures import RequestFigures
from raftlog.transport.api import LinkClosedError
from raftlog.wire.controller.v1 import controller_pb2 as pb


def parking() -> tuple[Parking, list[Parked]]:
    sent: list[Parked] = []
    return Parking(sent.append), sent


def parked(
    offset: int, *, acks: int = COMMITTED, round_: int = 0, deadline: float = 10.0
) -> Parked:
    return Parked(
        SimpleNamespace(peer="a:1"), pb.ControllerResponse(), offset, round_, acks, deadline
    )


@pytest.mark.parametrize("again", [False, True])
def test_visible_reply_below_lao_waits_for_the_known_lao(again: bool) -> None:
    parks, sent = parking()
    parks.committed(5)
    parks.visibility(3, 2)
    park = parks.park_duplicate if again else parks.park
    park(parked(4, acks=ACKNOWLEDGED))
    park(parked(4, acks=VISIBLE))
    waits = []
    parks.committed(6)
    for lao, min_known_lao in ((3, 2), (4, 2), (4, 4)):
        parks.visibility(lao, min_known_lao)
        waits.append(parks.waits_for_known_lao(lao))
    assert waits == [False, True, False], "acknowledged, and not visible yet"
    assert len(sent) == 2


def test_read_waits_for_a_confirmed_round_and_the_commit_of_what_it_saw() -> None:
    parks, sent = parking()
    read, confirmed = parked(7, round_=3), parked(8, round_=4)
    late, later = parked(8, round_=3), parked(9, round_=4)
    parks.park(read)
    parks.read_index_confirmed(2)
    parks.committed(8)
    assert sent == []
    parks.read_index_confirmed(3)
    assert sent == [read]
    parks.park(confirmed)
    parks.read_index_confirmed(4)
    parks.release_reads()
    assert sent == [read], "not committed yet"
    parks.committed(9)
    assert sent == [read, confirmed]
    parks.park(late)
    parks.park(later)
    assert sent == [read, confirmed], "its round was confirmed before it came"
    parks.release_reads()
    assert sent == [read, confirmed, late]
    assert list(parks.drain()) == [(later, False)]
    parks.committed(10)
    assert sent == [read, confirmed, late]


def test_acknowledged_waits_for_lao_and_visible_for_the_lowest_known_lao() -> None:
    parks, sent = parking()
    acknowledged, visible = parked(5, acks=ACKNOWLEDGED), parked(6, acks=VISIBLE)
    parks.park(acknowledged)
    parks.park(visible)
    parks.visibility(9, 9)
    assert sent == []
    parks.committed(7)
    parks.visibility(4, 3)
    assert sent == [], "LAO moved, and does not cover the write"
    parks.visibility(5, 4)
    assert sent == [acknowledged]
    assert acknowledged.response.write.reached == ACKNOWLEDGED
    parks.visibility(6, 5)
    assert sent == [acknowledged]
    parks.visibility(6, 6)
    assert sent == [acknowledged, visible]
    assert visible.response.write.reached == VISIBLE


@pytest.mark.parametrize("again", [False, True])
def test_expired_reply_is_returned_once_and_never_sent(again: bool) -> None:
    parks, sent = parking()
    park = parks.park_duplicate if again else parks.park
    write, committed_one = parked(9, deadline=1.0), parked(3, acks=VISIBLE, deadline=1.0)
    kept = parked(100)
    park(committed_one)
    parks.committed(4)
    park(write)
    park(kept)
    assert list(parks.expired(0.5)) == []
    assert list(parks.expired(1.0)) == [(committed_one, True), (write, False)]
    assert list(parks.expired(2.0)) == []
    parks.committed(99)
    parks.visibility(99, 99)
    assert list(parks.drain()) == [(kept, False)]
    assert sent == []
    assert len(parks) == 0


def test_lost_leadership_returns_all_waiting_replies() -> None:
    parks, sent = parking()
    one, two, three = parked(3, acks=ACKNOWLEDGED), parked(9), parked(9, round_=1)
    parks.park(one)
    parks.committed(4)
    parks.park(two)
    parks.park(three)
    assert list(parks.drain()) == [(two, False), (three, False), (one, True)]
    assert sent == []
    assert len(parks) == 0


def test_retry_of_a_committed_write_is_answered_before_waiting_requests() -> None:
    parks, sent = parking()
    parks.committed(5)
    write, retry, early = parked(9), parked(4), parked(5)
    parks.park(write)
    parks.park_duplicate(retry)
    parks.park_duplicate(early)
    assert sent == [retry]
    parks.committed(6)
    assert sent == [retry, early]
    assert len(parks) == 1


def test_retry_waits_for_its_requested_visibility() -> None:
    parks, sent = parking()
    parks.committed(10)
    parks.visibility(6, 3)
    acknowledged, told = parked(6, acks=ACKNOWLEDGED), parked(3, acks=VISIBLE)
    later, latest = parked(7, acks=ACKNOWLEDGED), parked(6, acks=VISIBLE)
    for each in (latest, later, told, acknowledged):
        parks.park_duplicate(each)
    assert sent == [told, acknowledged]
    assert [each.response.write.reached for each in sent] == [VISIBLE, ACKNOWLEDGED]
    parks.visibility(7, 6)
    assert sent[2:] == [later, latest]


def test_parked_replies_of_a_closed_link_release_their_share() -> None:
    parking = Parking(lambda parked: None)
    here, gone = SimpleNamespace(peer="a:1"), SimpleNamespace(peer="a:2")
    for offset, link in enumerate((gone, here, gone, here)):
        parking.park(Parked(link, pb.ControllerResponse(), offset, 0, VISIBLE, 9.0))
    parking.park(Parked(gone, pb.ControllerResponse(), 0, 5, COMMITTED, 9.0))
    parking.committed(3)
    assert parking.shares.total == 5
    parking.abandon([gone])
    assert parking.shares.held("a:2") == 0
    assert parking.shares.held("a:1") == 2
    assert [parked.link for parked, _ in parking.drain()] == [here, here]
    assert parking.shares.total == 0


def test_connection_may_park_only_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.replies.CONTROLLER_MAX_PARKED_REPLIES", 10)
    parking = Parking(lambda parked: None)
    greedy, other = SimpleNamespace(peer="a:1"), SimpleNamespace(peer="a:2")
    count = 0
    while parking.has_room(greedy):
        parking.park(Parked(greedy, pb.ControllerResponse(), count, 0, VISIBLE, 9.0))
        count += 1
    assert count == 5
    assert parking.has_room(other)
    parking.committed(count)
    parking.visibility(count, count)
    assert parking.has_room(greedy)


def test_lost_and_expired_replies_are_returned_one_by_one() -> None:
    parks, sent = parking()
    for offset in range(10):
        parks.park(parked(offset, deadline=1.0))
    some = parks.expired(1.0)
    assert [next(some)[0].offset for _ in range(3)] == [0, 1, 2]
    parks.committed(5)
    assert [one.offset for one in sent] == [3, 4]
    left = parks.drain()
    assert [next(left)[0].offset for _ in range(2)] == [5, 6]
    assert [one.offset for one, _ in left] == [7, 8, 9]
    assert parks.shares.total == 0


def test_many_retries_are_not_examined_at_each_commit() -> None:
    """[Each retry of a write that waits for a slow broker was examined at each commit and for each
    other retry.]
    """
    parks, sent = parking()
    parks.committed(1)
    looked = 0

    class Counted(Parked):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "offset"
            return super().__getattribute__(name)

    for number in range(500):
        link: Any = SimpleNamespace(peer="a:1")
        response = pb.ControllerResponse()
        parks.park_duplicate(Counted(link, response, 10 + number, 0, ACKNOWLEDGED, 9.0))
    for high_watermark in range(2, 500):
        parks.committed(high_watermark)
    assert sent == []
    assert looked < 2_000


def test_expired_replies_do_not_accumulate() -> None:
    parks, _ = parking()
    parks.park(parked(1, acks=VISIBLE, deadline=900.0))
    parks.committed(2)
    for turn in range(20):
        for _ in range(1_000):
            parks.park(parked(1, acks=VISIBLE, deadline=turn + 0.1))
            parks.committed(2)
        assert len(list(parks.expired(turn + 0.5))) == 1_000
    assert len(parks) < 3_000
    assert len(parks._deadlines) < 3_000


class Client:
    """A link that rejects messages with a body above a limit."""

    peer, listener = "10.0.0.6:5000", ""

    def __init__(self, *, small: bool = False, gone: bool = False) -> None:
        self.sent: list[Any] = []
        self._small, self._gone = small, gone

    def send(self, message: Any) -> None:
        if self._gone:
            raise LinkClosedError("gone")
        if self._small and message.HasField("describe_acls"):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large", field="describe_acls")
        self.sent.append(message)


def refused(correlation_id: int, error: ApiError, _: str) -> pb.ControllerResponse:
    return failure(correlation_id, error, controller_epoch=1, leader_endpoint="")


def parked_response(client: Client, number: int, *, round: int) -> Parked:
    response = pb.ControllerResponse(correlation_id=number, describe_acls=pb.DescribeAclsResponse())
    return Parked(client, response, 4, round, COMMITTED, 10.0, kind="describe_acls")


@pytest.mark.parametrize("is_write", [False, True])
def test_oversized_reply_becomes_an_error_and_later_ones_are_sent(is_write: bool) -> None:
    node: Any = SimpleNamespace(directory=SimpleNamespace(failure=refused), closed=False)
    parking = Parking(Answers(node, RequestFigures(lambda: 0.0)).send)
    clients = Client(small=True), Client(gone=True), Client()
    for number, client in enumerate(clients):
        parking.park(parked_response(client, number, round=0 if is_write else 1))
    parking.read_index_confirmed(1)
    parking.committed(5)
    (told,) = clients[0].sent
    assert (told.correlation_id, told.error.error_code) == (0, ErrorCode.MESSAGE_TOO_LARGE)
    assert told.error.field == "describe_acls"
    # A write is in the log by then.
    assert told.error.outcome_unknown is is_write
    (answered,) = clients[2].sent
    assert answered.HasField("describe_acls")
    assert len(parking) == 0


WRITE = pb.ControllerRequest(open_client=pb.OpenClientRequest(name="c"))
READ = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest())
REFUSED = pb.ControllerRequest(acks=cast("Any", 9), describe_brokers=pb.DescribeBrokersRequest())
AWAY = pb.ControllerRequest(transfer_leadership=pb.TransferLeadershipRequest(target_id=-1))


def copy(request: pb.ControllerRequest) -> pb.ControllerRequest:
    copied = pb.ControllerRequest()
    copied.CopyFrom(request)
    return copied


@pytest.mark.parametrize(
    "request_", [WRITE, READ, REFUSED, AWAY], ids=["write", "read", "refused", "redirected"]
)
@pytest.mark.parametrize("how", ["as it comes", "when appended", "put off"])
@simulated
async def test_answered_request_frees_its_slot(
    request_: pb.ControllerRequest, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node, broker = await unfenced_broker()
    decide, put_off, written = node.service.turns._decide, 0, 0

    def decided(active: Any, request: Any, now: float) -> Decision:
        nonlocal put_off, written
        if how == "put off" and not put_off:
            put_off += 1
            return Defer(now + 0.3)
        decision = decide(active, request, now)
        written += isinstance(decision, Write)
        if how == "when appended" and isinstance(decision, Write):
            return decision._replace(answer_when_appended=True)
        return decision

    monkeypatch.setattr(node.service.turns, "_decide", decided)
    shares = node.service.node.leadership.parking.shares
    for _ in range(3):
        await broker.client.send(copy(request_), 5.0)
    assert put_off == (how == "put off")
    assert written == (3 if request_ is WRITE else 0)
    assert shares.total == 0


@simulated
async def test_request_without_a_reply_slot_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node, broker = await unfenced_broker()
    clients = len(node.service.image.clients)
    monkeypatch.setattr(
        node.service.node.leadership.parking, "take_place", lambda peer, count: False
    )
    answer = await broker.client.send(copy(WRITE), 5.0)
    assert answer.error.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(node.service.image.clients) == clients


@dataclass(eq=False)
class One:
    deadline: float
    done: bool = False
    looks: int = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("deadline", "done"):
            object.__setattr__(self, "looks", object.__getattribute__(self, "looks") + 1)
        return object.__getattribute__(self, name)


def late(deadlines: Deadlines[One], now: float, waiting: int, most: int = 1 << 30) -> list[One]:
    found = []
    for one in deadlines.late(now, waiting):
        one.done = True
        found.append(one)
        if len(found) == most:
            break
    return found


def test_replies_expire_once_in_order_of_their_deadlines() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(at) for at in (5.0, 1.0, 3.0, 1.0, 2.0)]
    for one in ones:
        deadlines.add(one)
    ones[2].done = True
    assert late(deadlines, 0.9, 4) == []
    assert late(deadlines, 1.0, 4) == [ones[1], ones[3]]
    ones[4].done = True
    assert late(deadlines, 9.0, 1) == [ones[0]]
    assert len(deadlines) == 0


def test_deadline_sweep_resumes_at_the_next_call() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(1.0) for _ in range(10)]
    for one in ones:
        deadlines.add(one)
    assert late(deadlines, 2.0, 10, most=4) == ones[:4]
    deadlines.add(another := One(0.5))
    assert late(deadlines, 2.0, 7, most=4) == [another, *ones[4:7]]
    assert late(deadlines, 2.0, 3) == ones[7:]


def test_deadline_sweep_does_not_visit_waiting_entries_each_time() -> None:
    """[65,536 requests wait for 30 s: ten checks of all of them per second took a quarter of the
    leader's time.]
    """
    deadlines: Deadlines[One] = Deadlines()
    ones = [One(30.0) for _ in range(2_000)]
    for one in ones:
        deadlines.add(one)
    for tick in range(100):
        assert late(deadlines, tick / 10, len(ones)) == []
    assert max(one.looks for one in ones) < 5


def test_finished_entries_do_not_accumulate_among_deadlines() -> None:
    deadlines: Deadlines[One] = Deadlines()
    for _ in range(20):
        ones = [One(300.0) for _ in range(SLACK)]
        for one in ones:
            deadlines.add(one)
        assert late(deadlines, 1.0, SLACK) == []
        for one in ones:
            one.done = True
    assert late(deadlines, 1.0, 0) == []
    assert len(deadlines) <= SLACK
