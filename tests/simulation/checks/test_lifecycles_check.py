"""The checkers of broker lifecycles, feature levels and existence."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, fencing, registered

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as controller_pb
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.existence import Asked, Existence
from simulation.checks.levels import Levels
from simulation.checks.lifecycles import Lifecycles
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import run

SESSION_S = 4.0
BOUND_S = SESSION_S * 1.15 + 1.0
FENCES_ITSELF_S = 7.0
EPOCH = 1


def in_a_world(test: Callable[[], None]) -> Callable[[], None]:
    """Hosts have clocks only where a virtual loop runs."""

    def tested() -> None:
        async def body() -> None:
            test()
            await asyncio.sleep(0)

        run(body())

    tested.__name__ = test.__name__
    return tested


def led() -> Trace:
    """c1 leads and decides; b1 is registered, unfenced, and has fenced itself."""
    trace = Trace(
        Lifecycles, brokers=1, config=SwarmConfig(session_timeout_ms=int(SESSION_S * 1000))
    )
    trace.begin()
    trace.committed(1, registered(1, EPOCH))
    trace.committed(1, fencing(1, EPOCH, False))
    broker = trace.host("b1").service
    broker.settings = SimpleNamespace(
        broker_id=1, lifecycle=SimpleNamespace(fencing_timeout_ms=FENCES_ITSELF_S * 1000)
    )
    broker.now = lambda: 0.0
    broker.lifecycle = SimpleNamespace(epoch=EPOCH, self_fenced=lambda _now: True)
    controller = trace.host("c1").service
    controller.node = SimpleNamespace(
        decider=True, controller_epoch=1, committed_end=3, now=lambda: 0.0, leadership=None
    )
    controller.replica.log_end_offset = 3
    controller.settings = SimpleNamespace(broker_session_timeout_ms=SESSION_S * 1000)
    controller.image = SimpleNamespace(
        features={}, brokers={1: SimpleNamespace(epoch=EPOCH, fenced=False)}
    )
    for other in ("c2", "c3"):
        trace.host(other).service.node = SimpleNamespace(decider=None)
    trace.tell("sample")
    return trace


def beats(trace: Trace, epoch: int = EPOCH, controller: str = "c1") -> None:
    request = rpc.ControllerRequest(
        broker_heartbeat=rpc.BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch)
    )
    trace.last.message_arrived(trace.host(controller), "b1", request)


@in_a_world
def test_self_fenced_broker_must_be_fenced_within_a_session() -> None:
    trace = led()
    trace.time += BOUND_S
    trace.tell("sample")
    trace.time += 0.1
    with pytest.raises(CheckFailedError, match=r"b1 has fenced itself for 5.700 s, c1 not"):
        trace.tell("sample")
    assert trace.last.alone == 1


@in_a_world
def test_only_a_heartbeat_restarts_the_session() -> None:
    trace = led()
    trace.time += SESSION_S
    beats(trace)
    trace.time += BOUND_S
    trace.tell("sample")
    trace.time += 0.1
    with pytest.raises(CheckFailedError, match=f"has fenced itself for {BOUND_S + 0.1:.3f} s"):
        trace.tell("sample")

    trace = led()
    trace.time += SESSION_S
    # Of an earlier registration; to who decides nothing; and what is not a heartbeat.
    beats(trace, EPOCH - 1)
    trace.host("c1").service.node.decider, decider = None, True
    beats(trace)
    trace.host("c1").service.node.decider = decider
    trace.last.message_arrived(trace.host("c1"), "b1", rpc.ControllerRequest())
    trace.time += BOUND_S - SESSION_S + 0.1
    with pytest.raises(CheckFailedError, match="has fenced itself for"):
        trace.tell("sample")


# --- heartbeats that are not in force -----------------------------------------------------------


def answered(trace: Trace, *, off: bool) -> None:
    """b1 registers again, and learns whether heartbeats are enabled."""
    asked = rpc.ControllerRequest(
        correlation_id=1, register_broker=rpc.RegisterBrokerRequest(broker_id=1)
    )
    trace.send("b1", "c1", asked)
    reply = rpc.RegisterBrokerResponse(
        broker_id=1, broker_epoch=10, metadata_offset=11, heartbeats_off=off
    )
    trace.send("c1", "b1", rpc.ControllerResponse(correlation_id=1, register_broker=reply))


def shows(trace: Trace, offset: int, level: int) -> None:
    image = SimpleNamespace(
        offset=offset, features={"metadata.version": 2, "broker.heartbeat.version": level}
    )
    trace.host("b1").service.image = image
    trace.tell("broker_moved", trace.host("b1"))


def test_silence_counts_from_when_a_broker_learns_that_heartbeats_are_enabled() -> None:
    trace = Trace(Lifecycles, brokers=1)
    trace.begin()
    trace.host("b1").service.settings = SimpleNamespace(
        lifecycle=SimpleNamespace(fencing_timeout_ms=FENCES_ITSELF_S * 1000)
    )
    answered(trace, off=True)
    # What it shows of before says nothing; and it has been away for long.
    shows(trace, 5, 1)
    trace.time += 100.0
    trace.tell("broker_asked", trace.host("b1"), "")
    shows(trace, 20, 1)
    trace.tell("broker_asked", trace.host("b1"), "")
    trace.time += FENCES_ITSELF_S * 1.2
    with pytest.raises(CheckFailedError, match="takes a new request"):
        trace.tell("broker_asked", trace.host("b1"), "")


def test_broker_unaware_of_disabled_heartbeats_must_fence_itself() -> None:
    trace = Trace(Lifecycles, brokers=1)
    trace.begin()
    trace.host("b1").service.settings = SimpleNamespace(
        lifecycle=SimpleNamespace(fencing_timeout_ms=FENCES_ITSELF_S * 1000)
    )
    answered(trace, off=False)
    trace.time += FENCES_ITSELF_S * 1.2
    shows(trace, 20, 1)
    with pytest.raises(CheckFailedError, match="takes a new request"):
        trace.tell("broker_asked", trace.host("b1"), "")


# --- No level is raised beside builds that do not know it, and none is offered too early (KIP-5---


def led_at_level(level: int) -> Trace:
    trace = Trace(Levels)
    trace.begin()
    trace.committed(1, level_of(level))
    return trace


def level_of(level: int) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(name="metadata.version", feature_level=level)


def registered_with(highest: int) -> pb.RegisterBrokerRecord:
    feature = pb.FeatureRange(
        name="metadata.version", min_supported_version=1, max_supported_version=highest
    )
    return pb.RegisterBrokerRecord(broker_id=7, features=[feature])


def test_level_unsupported_by_a_registered_broker_is_refused() -> None:
    trace = led_at_level(1)
    trace.committed(1, registered_with(1))
    with pytest.raises(
        CheckFailedError, match=r"metadata.version is 2 .* unknown to \['broker 7 \(1\)'\]"
    ):
        trace.committed(1, level_of(2))
    gone = led_at_level(1)
    gone.committed(1, registered_with(1))
    gone.committed(1, pb.UnregisterBrokerRecord(broker_id=7))
    gone.committed(1, level_of(2))


def test_level_unsupported_by_a_voter_is_refused() -> None:
    trace = led_at_level(1)
    trace.host("c2").service.quorum.max_metadata_version = 1
    with pytest.raises(CheckFailedError, match=r"unknown to \['c2 \(1\)'\]"):
        trace.committed(1, level_of(2))


def test_registration_that_does_not_support_the_level_is_refused() -> None:
    with pytest.raises(
        CheckFailedError, match=r"broker 7 is registered at .* up to 1, the cluster is at 2"
    ):
        led_at_level(2).committed(1, registered_with(1))


def test_level_offered_before_an_unfenced_broker_has_applied_it_is_refused() -> None:
    trace = Trace(Levels, brokers=2)
    trace.begin()
    first = registered_with(2)
    first.broker_id, first.broker_epoch, first.fenced = 2, 1, True
    trace.committed(1, first)
    unfenced = trace.committed(1, fencing(2, 1, False))
    raised = trace.committed(1, level_of(2))
    behind = trace.host("b2").service
    behind.lifecycle.epoch = 1
    offered = broker_pb2.ApiVersionsResponse(finalized_features_epoch=raised)
    notice = broker_pb2.BrokerResponse(api_versions=offered)
    behind.image.offset = unfenced - 1
    trace.send("b1", "client", notice)  # It has not heard yet that it is unfenced.
    behind.image.offset = unfenced
    with pytest.raises(CheckFailedError, match=f"b1 offers the levels as of {raised}, and b2"):
        trace.send("b1", "client", notice)
    behind.image.offset = raised
    trace.send("b1", "client", notice)
    trace.committed(1, fencing(2, 1, True))
    behind.image.offset = unfenced
    trace.send("b1", "client", notice)
    assert trace.last.offers == 4


# --- What a controller says of a topic must be so in an image between the question and the answ---


THERE = ("t",)


def _led() -> Trace:
    trace = Trace(Existence)
    trace.begin()
    return trace


def create(trace: Trace) -> None:
    trace.committed(1, pb.TopicRecord(name="t", topic_id=bytes(15) + b"t"))


def delete(trace: Trace) -> None:
    trace.committed(1, pb.RemoveTopicRecord(topic_id=bytes(15) + b"t"))


def ask(trace: Trace, found: tuple[str, ...]) -> None:
    trace.give(trace.invoke("ask_topic", "t"), found=found)


def test_correct_existence_answers_pass() -> None:
    trace = _led()
    ask(trace, ())
    create(trace)
    ask(trace, THERE)
    trace.give(trace.invoke("create_topic", "t"), "failed", error="TOPIC_ALREADY_EXISTS")
    delete(trace)
    ask(trace, ())
    trace.give(trace.invoke("delete_topic", "t"), "failed", error="UNKNOWN_TOPIC_OR_PARTITION")
    assert trace.last.answers == 5


@pytest.mark.parametrize("found", [THERE, ()])
def test_either_existence_answer_passes_when_it_changes_during_the_read(
    found: tuple[str, ...],
) -> None:
    trace = _led()
    question = trace.invoke("ask_topic", "t")
    create(trace)
    trace.give(question, found=found)
    delete(trace)
    late = trace.invoke("ask_topic", "t")
    create(trace)
    delete(trace)
    trace.give(late, found=found)


@pytest.mark.parametrize("changes", [[], [create, delete]])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ask_topic", {"found": THERE}),
        ("create_topic", {"outcome": "failed", "error": "TOPIC_ALREADY_EXISTS"}),
    ],
)
def test_answer_that_affirms_a_missing_topic_is_refused(
    kind: str, fields: dict[str, Any], changes: list[Any]
) -> None:
    trace = _led()
    for change in changes:
        change(trace)
    with pytest.raises(CheckFailedError, match=r"I13: .* there"):
        trace.give(trace.invoke(kind, "t"), **fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ask_topic", {"found": ()}),
        ("delete_topic", {"outcome": "failed", "error": "UNKNOWN_TOPIC_OR_PARTITION"}),
    ],
)
def test_answer_that_denies_an_existing_topic_is_refused(kind: str, fields: dict[str, Any]) -> None:
    trace = _led()
    create(trace)
    with pytest.raises(CheckFailedError, match=r"I13: .* not there"):
        trace.give(trace.invoke(kind, "t"), **fields)


def test_answer_that_depends_on_uncommitted_records_is_refused() -> None:
    trace = _led()
    question = trace.invoke("ask_topic", "t")
    trace.append("c1", 1, pb.TopicRecord(name="t", topic_id=bytes(15) + b"t"))
    with pytest.raises(CheckFailedError, match="I13"):
        trace.give(question, found=THERE)


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_answers_without_a_statement_on_existence_are_not_checked(outcome: str) -> None:
    trace = _led()
    for kind in ("ask_topic", "create_topic", "delete_topic"):
        trace.give(trace.invoke(kind, "t"), outcome, error="NOT_CONTROLLER", found=THERE)
    trace.give(trace.invoke("create_topic", "t"), "unknown", error="TOPIC_ALREADY_EXISTS")
    assert trace.last.answers == 0


# --- Two hosts have several links, and each counts its requests from 1 on ------------------------


BEAT = controller_pb.ControllerRequest(
    correlation_id=4, broker_heartbeat=controller_pb.BrokerHeartbeatRequest(broker_id=1)
)
ANSWER = controller_pb.ControllerResponse(
    correlation_id=4, broker_heartbeat=controller_pb.BrokerHeartbeatResponse()
)
ERROR = controller_pb.ControllerResponse(correlation_id=4, error=common_pb2.Error(error_code=7))
CREATED = controller_pb.ControllerResponse(
    correlation_id=4, create_topics=controller_pb.CreateTopicsResponse()
)


def test_answer_on_another_link_leaves_the_request_pending() -> None:
    asked = Asked[str]("broker_heartbeat")
    asked.note("b1", "c2", 4, "at 7.1 s")
    assert asked.answered("c2", "b1", ERROR) == "at 7.1 s"
    assert asked.answered("c2", "b1", CREATED) is None
    assert asked.answered("c3", "b1", ANSWER) is None
    assert asked.answered("c2", "b1", ANSWER) == "at 7.1 s"
    assert asked.answered("c2", "b1", ANSWER) is None


def test_pending_requests_note_the_requested_kinds_only() -> None:
    asked = Asked[str]("broker_heartbeat")
    assert asked.kind_of(BEAT) == "broker_heartbeat"
    assert (
        asked.kind_of(
            controller_pb.ControllerRequest(create_topics=controller_pb.CreateTopicsRequest())
        )
        == ""
    )
    assert asked.kind_of(ANSWER) == ""
