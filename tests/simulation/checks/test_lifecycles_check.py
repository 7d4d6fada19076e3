"""A broker fences itself, the controller decides first, and what begins a session anew."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from checks_harness import Trace, fencing, registered

from raftlog.wire.controller.v1 import controller_pb2 as rpc
from simulation.checks.api import CheckFailedError
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
        broker_id=1,
        lifecycle=SimpleNamespace(fencing_timeout_ms=FENCES_ITSELF_S * 1000),
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
        features={},
        brokers={1: SimpleNamespace(epoch=EPOCH, fenced=False)},
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
    with pytest.raises(CheckFailedError, match=r"b1 has fenced itself .* has it unfenced"):
        trace.tell("sample")
    assert trace.last.alone == 1


@in_a_world
def test_heartbeat_that_comes_begins_the_session_anew_and_nothing_else_does() -> None:
    trace = led()
    trace.time += SESSION_S
    beats(trace)
    trace.time += BOUND_S
    trace.tell("sample")
    trace.time += 0.1
    with pytest.raises(CheckFailedError, match=f"has fenced itself {BOUND_S + 0.1:.3f} s ago"):
        trace.tell("sample")

    trace = led()
    trace.time += SESSION_S
    # Of an earlier registration; to who decides nothing; and what is no heartbeat.
    beats(trace, EPOCH - 1)
    trace.host("c1").service.node.decider, decider = None, True
    beats(trace)
    trace.host("c1").service.node.decider = decider
    trace.last.message_arrived(trace.host("c1"), "b1", rpc.ControllerRequest())
    trace.time += BOUND_S - SESSION_S + 0.1
    with pytest.raises(CheckFailedError, match="has it unfenced"):
        trace.tell("sample")


# --- heartbeats that are not in force -----------------------------------------------------------


def answered(trace: Trace, *, off: bool) -> None:
    """b1 registers anew, and is told whether heartbeats are in force."""
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
        offset=offset,
        features={"metadata.version": 2, "broker.heartbeat.version": level},
    )
    trace.host("b1").service.image = image
    trace.tell("broker_moved", trace.host("b1"))


def test_silence_counts_from_when_a_broker_learns_that_heartbeats_are_in_force() -> None:
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
    with pytest.raises(CheckFailedError, match="it has to fence itself"):
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
    with pytest.raises(CheckFailedError, match="it has to fence itself"):
        trace.tell("broker_asked", trace.host("b1"), "")
