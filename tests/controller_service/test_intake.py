"""The queue of requests in front of the controller."""

from dataclasses import dataclass
from typing import Any

import pytest

from controller.service import intake
from controller.service.intake import Intake, PendingRequest
from raftlog import bounds as limits
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.security.permissions import CONTROLLER
from raftlog.wire.controller.v1 import controller_pb2 as pb


def request(name: str = "a", timeout_ms: int = 0) -> pb.ControllerRequest:
    return pb.ControllerRequest(cluster_id=name, timeout_ms=timeout_ms)


def taken(queue: Intake) -> PendingRequest:
    found = queue.take()
    assert found is not None
    return found


@pytest.fixture
def queue() -> Intake:
    return Intake(30_000)


def refusal(queue: Intake, *given: Any, **how: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        queue.add(*given, **how)
    assert not refused.value.outcome_unknown
    return refused.value


def test_too_large_and_too_many_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING", 2)
    queue = Intake(30_000)
    too_large = request()
    too_large.delete_topics.names.append("t" * intake.MAX_REQUEST_BYTES)
    error = refusal(queue, None, request("x" * (intake.MAX_REQUEST_BYTES + 1)), 0.0)
    assert error.code == ErrorCode.MESSAGE_TOO_LARGE
    error = refusal(queue, None, too_large, 0.0)
    assert (error.code, error.field) == (ErrorCode.MESSAGE_TOO_LARGE, "delete_topics")
    queue.add(None, request(), 0.0)
    queue.add(None, request(), 0.0)
    error = refusal(queue, None, request(), 0.0)
    assert error.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(queue) == 2


def test_heartbeats_go_first_and_are_bounded_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING", 2)
    queue = Intake(30_000)
    for name in ("a", "b"):
        queue.add(None, request(name), 0.0)
    for name in ("beat 1", "beat 2"):
        queue.add(None, request(name, 100), 0.0, heartbeat=True)
    error = refusal(queue, None, request("beat 3"), 0.0, heartbeat=True)
    assert error.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(queue) == 4
    assert taken(queue).message.cluster_id == "beat 1"
    assert [w.message.cluster_id for w in queue.expired(0.2)] == ["beat 2"]
    assert [w.message.cluster_id for w in queue.drain()] == ["a", "b"]
    assert queue.waiting_bytes == 0


READ = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest())


def test_reads_yield_to_all_others_but_not_to_later_requests_of_their_connection(
    queue: Intake,
) -> None:
    for peer, one in (("a", READ), ("a", request("a1")), ("a", READ), ("b", request("b1"))):
        queue.add(Peer(peer), one, 0.0)
    assert (len(queue), queue.reads) == (4, 1)
    order = [taken(queue) for _ in range(3)]
    assert [one.message.cluster_id for one in order] == ["a1", "b1", ""]
    assert [one.kind for one in order][2] == "describe_brokers"
    assert queue.take() is None
    (read,) = queue.drain()
    assert (read.peer, read.kind) == ("a", "describe_brokers")
    assert (len(queue), queue.reads) == (0, 0)


def test_reads_have_deadlines_and_take_turns_by_connection(queue: Intake) -> None:
    late = pb.ControllerRequest(timeout_ms=100, describe_brokers=pb.DescribeBrokersRequest())
    for _ in range(3):
        queue.add(Peer("a"), READ, 0.0)
    queue.add(Peer("b"), late, 0.0)
    queue.add(Peer("c"), READ, 0.0)
    assert [one.peer for one in queue.expired(1.0)] == ["b"]
    assert queue.reads == 4
    peers = [one.peer for _ in range(4) if (one := queue.take(reads=True)) is not None]
    assert peers == ["a", "c", "a", "a"]
    assert queue.take(reads=True) is None
    assert queue.waiting_bytes == 0


def test_every_read_only_request_waits_with_the_reads() -> None:
    listing = {body for body in CONTROLLER if body.startswith(("list_", "describe_"))}
    assert listing == intake.READS


def test_deferred_request_returns_at_its_time_and_keeps_its_deadline(queue: Intake) -> None:
    for name in ("a", "b", "c"):
        queue.add(None, request(name, 5000), 0.0)
    for until in (2.0, 3.0, 9.0):
        queue.defer(taken(queue), until)
    assert not queue.wake(1.9)
    assert queue.take() is None
    assert queue.wake(3.0)
    assert [queue.take().message.cluster_id for _ in range(2)] == ["a", "b"]
    assert [w.message.cluster_id for w in queue.expired(5.0)] == ["c"]
    assert not queue.wake(9.0)
    assert queue.waiting_bytes == 0
    queue.add(None, request("d"), 9.0)
    queue.defer(taken(queue), 16.0)
    assert [w.message.cluster_id for w in queue.drain()] == ["d"], "a deferred one, too"
    assert queue.take() is None


@dataclass(frozen=True)
class Peer:
    peer: str


def test_connections_take_turns_and_each_keeps_its_order(queue: Intake) -> None:
    for number in range(1000):
        queue.add(Peer("greedy"), request(f"g{number}"), 0.0)
    queue.add(Peer("other"), request("o1"), 0.0)
    queue.add(Peer("other"), request("o2"), 0.0)
    taken = [queue.take() for _ in range(5)]
    assert [w.message.cluster_id for w in taken if w] == ["g0", "o1", "g1", "o2", "g2"]
    assert len(queue) == 997


def test_no_connection_exceeds_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        limits, "CONTROLLER_MAX_WAITING_BYTES", 100 * (limits.CONTROLLER_WAITING_REQUEST_BYTES + 3)
    )
    queue = Intake(30_000)
    counts = {"a": 0, "b": 0}
    for name in counts:
        with pytest.raises(ApiError) as refused:  # noqa: PT012
            while True:
                queue.add(Peer(name), request(), 0.0)
                counts[name] += 1
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert refused.value.throttle_time_ms == limits.RETRY_AFTER_MS
        # Another link of the same connection has no share of its own.
        refusal(queue, Peer(name), request(), 0.0)
    assert counts == {"a": 50, "b": 25}
    queue.add(Peer("newcomer"), request(), 0.0)
    while queue.take() is not None:
        pass
    for _ in range(50):
        queue.add(Peer("b"), request(), 0.0)
    assert len(list(queue.expired(30.0))) == 50
    for _ in range(50):
        queue.add(Peer("b"), request(), 0.0)


def test_batched_heartbeats_wait_for_their_caller_or_an_urgent_one(queue: Intake) -> None:
    for name in ("beat 1", "beat 2"):
        queue.add(Peer(name), request(name), 0.0, heartbeat=True, patient=True)
    queue.add(Peer("w"), request("write"), 0.0)
    assert len(queue) == 1
    assert taken(queue).message.cluster_id == "write"
    assert (queue.take(), queue.next_kind()) == (None, "")
    queue.add(Peer("s"), request("stopping"), 0.0, heartbeat=True)
    queue.add(Peer("late"), request("beat 3"), 0.0, heartbeat=True, patient=True)
    assert len(queue) == 4
    assert [taken(queue).message.cluster_id for _ in range(4)] == [
        "beat 1", "beat 2", "stopping", "beat 3",
    ]  # fmt: skip
    queue.add(Peer("next"), request("beat 4"), 0.0, heartbeat=True, patient=True)
    assert queue.take() is None
    queue.gathering = False
    assert taken(queue).message.cluster_id == "beat 4"


def test_batched_heartbeats_are_drained_and_time_out(queue: Intake) -> None:
    queue.add(Peer("a"), request("late", 100), 0.0, heartbeat=True, patient=True)
    queue.add(Peer("b"), request("drained"), 0.0, heartbeat=True, patient=True)
    assert [one.message.cluster_id for one in queue.expired(0.2)] == ["late"]
    assert [one.message.cluster_id for one in queue.drain()] == ["drained"]
    assert (len(queue), queue.waiting_bytes) == (0, 0)


def test_excess_heartbeats_of_one_connection_wait_with_all_others(queue: Intake) -> None:
    queue.add(Peer("client"), request("write"), 0.0)
    for number in range(limits.CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER + 10):
        queue.add(Peer("greedy"), request(f"beat {number}"), 0.0, heartbeat=True)
    for _ in range(limits.CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER):
        assert taken(queue).message.cluster_id != "write"
    assert taken(queue).message.cluster_id == "write"


def test_timeout_has_a_default_and_a_cap_and_is_never_negative() -> None:
    queue = Intake(30_000, 300_000)
    queue.add(None, request("patient", 0), 0.0)
    error = refusal(queue, None, request("before it came", -1), 0.0)
    assert (error.code, error.field) == (ErrorCode.INVALID_REQUEST, "timeout_ms")
    assert queue.waiting_bytes == request("patient", 0).ByteSize()
    assert list(queue.expired(29.9)) == []
    assert len(list(queue.expired(30.0))) == 1
    queue.add(None, request("for 24 days", 2**31 - 1), 0.0)
    assert list(queue.expired(299.9)) == []
    assert len(list(queue.expired(300.0))) == 1


def test_deferred_request_is_dropped_with_its_link(queue: Intake) -> None:
    gone, there = Peer("gone"), Peer("there")
    for link in (gone, there):
        queue.add(link, request(), 0.0)
        queue.defer(taken(queue), 5.0)
    queue.abandon({gone})
    assert queue.wake(5.0)
    assert [w.link for w in queue.drain()] == [there]


def test_expired_requests_are_removed_in_slices_and_release_their_share(queue: Intake) -> None:
    here = Peer("a")
    for number in range(10):
        queue.add(here, request(str(number), 100), 0.0)
    queue.add(here, request("later"), 0.0)
    some = queue.expired(1.0)
    assert [next(some).message.cluster_id for _ in range(4)] == ["0", "1", "2", "3"]
    assert len(queue) == 7
    # What is left is taken as ever, and what was taken is not late any more.
    assert taken(queue).message.cluster_id == "4"
    assert [w.message.cluster_id for w in queue.expired(1.0)] == ["5", "6", "7", "8", "9"]
    assert [w.message.cluster_id for w in queue.drain()] == ["later"]
    assert (len(queue), queue.waiting_bytes, queue.shares.total) == (0, 0, 0)


def test_expired_requests_do_not_accumulate_behind_a_waiting_one(queue: Intake) -> None:
    queue.add(Peer("a"), request("first", 100_000), 0.0)
    for turn in range(20):
        for _ in range(1_000):
            queue.add(Peer("a"), request("x", 100), turn)
        assert len(list(queue.expired(turn + 0.5))) == 1_000
    assert len(queue) == 1
    assert len(queue._queue) < 3_000


def test_expired_requests_occupy_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING", 10)
    queue = Intake(30_000)
    for heartbeat in (False, True):
        for _ in range(10):
            queue.add(Peer("a"), request("x", 100), 0.0, heartbeat=heartbeat)
    assert len(list(queue.expired(1.0))) == 20
    for heartbeat in (False, True):
        for _ in range(10):
            queue.add(Peer("b"), request("y"), 1.0, heartbeat=heartbeat)
        refusal(queue, Peer("b"), request("y"), 1.0, heartbeat=heartbeat)
    assert [w.message.cluster_id for w in queue.drain()] == ["y"] * 20
    assert len(queue) == 0


def test_repeatedly_deferred_request_expires_once(queue: Intake) -> None:
    queue.add(None, request("a", 5_000), 0.0)
    for at in range(4):
        queue.defer(taken(queue), at + 1.0)
        assert list(queue.expired(at)) == []
        assert queue.wake(at + 1.0)
    assert [w.message.cluster_id for w in queue.expired(5.0)] == ["a"]
    assert list(queue.expired(6.0)) == []
    assert queue.take() is None


def test_newcomer_gets_a_slot_despite_ten_connections_at_their_limit(queue: Intake) -> None:
    """[160,000 listings on ten links: bytes but no slot left, every request refused.]"""
    listing = pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest())
    refused: set[int] = set()
    while len(refused) < 10:
        for number in range(10):
            try:
                queue.add(Peer(f"greedy {number}"), listing, 0.0)
            except ApiError:
                refused.add(number)
    for _ in range(1_000):
        queue.add(Peer("honest"), listing, 0.0)
    assert len(queue) <= limits.CONTROLLER_MAX_WAITING_REQUESTS
