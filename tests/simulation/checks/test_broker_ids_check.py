"""The checker of broker ids and host mappings (KIP-426)."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, refused

from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.broker_ids import BrokerIds


def led() -> Trace:
    trace = Trace(BrokerIds)
    trace.begin()
    return trace


def register(trace: Trace, broker_id: int, host: str, *further: Any) -> None:
    epoch = trace.ledger.golden.end
    trace.committed(
        1,
        pb.RegisterBrokerRecord(
            broker_id=broker_id,
            broker_epoch=epoch,
            end_points=[pb.Listener(name="P", host=host, port=9092)],
        ),
        *further,
    )


def mapped(host: str, broker_id: int) -> pb.HostnameRecord:
    return pb.HostnameRecord(hostname=host, broker_id=broker_id)


def test_hosts_that_keep_their_ids_and_newcomers_pass() -> None:
    trace = led()
    register(trace, 201, "b1", mapped("b1", 201))
    register(trace, 201, "b1")
    register(trace, 1001, "n1", mapped("n1", 1001))
    register(trace, 1002, "n2", mapped("n2", 1002))
    # A twin moved the broker: then its host may get another id.
    register(trace, 201, "b1twin", mapped("b1twin", 201))
    register(trace, 1003, "b1", mapped("b1", 1003))


@pytest.mark.parametrize("further", [(), (mapped("b1", 202),), (mapped("b2", 201),)])
def test_registration_that_does_not_map_its_host_is_refused(further: tuple[Any, ...]) -> None:
    trace = led()
    with refused(r"broker 201 registers at .* b1 is mapped to"):
        register(trace, 201, "b1", *further)


def test_deleted_mapping_does_not_count() -> None:
    trace = led()
    register(trace, 201, "b1", mapped("b1", 201))
    trace.committed(1, pb.HostnameRecord(hostname="b1"))
    with refused(r"b1 is mapped to None"):
        register(trace, 201, "b1")


def test_host_with_another_id_is_refused() -> None:
    trace = led()
    register(trace, 201, "b1", mapped("b1", 201))
    with refused(r"b1 registers as 1001 .* it is broker 201's"):
        register(trace, 1001, "b1", mapped("b1", 1001))


def test_newcomer_with_the_id_of_another_broker_is_refused() -> None:
    trace = led()
    register(trace, 201, "b1", mapped("b1", 201))
    with refused(r"newcomer n1 registers as broker 201 .* that is b1's"):
        register(trace, 201, "n1", mapped("n1", 201))


def partition(index: int, *replicas: int) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=b"t" * 16, partition_id=index, replicas=replicas, isr=replicas, leader=replicas[0]
    )


def two_that_hold_replicas() -> Trace:
    trace = led()
    for number in (1, 2):
        register(trace, 200 + number, f"b{number}", mapped(f"b{number}", 200 + number))
    trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))
    trace.committed(1, partition(0, 201, 202))
    for number in (1, 2):
        trace.last.broker_started(SimpleNamespace(name=f"b{number}", id=200 + number))
    return trace


def dies(trace: Trace, number: int) -> None:
    trace.last.broker_stopped(SimpleNamespace(name=f"b{number}", id=200 + number), "killed")


def asks(trace: Trace, name: str) -> None:
    request = rpc.ControllerRequest(
        register_broker=rpc.RegisterBrokerRequest(id_wanted=rpc.BrokerIdWanted())
    )
    trace.last.message_sent(SimpleNamespace(name=name), "c1", request)


def test_broker_id_is_adopted_only_once_it_has_been_missing_long_enough() -> None:
    trace = two_that_hold_replicas()
    dies(trace, 1)
    trace.time += 700.0
    register(trace, 201, "n1", mapped("n1", 201))
    trace.time += 400.0
    with refused(r"newcomer n2 registers as broker 201 .* not missing"):
        register(trace, 201, "n2", mapped("n2", 201))


def test_broker_id_is_not_guessed_when_two_brokers_are_away() -> None:
    trace = two_that_hold_replicas()
    dies(trace, 1)
    dies(trace, 2)
    trace.time += 700.0
    with refused(r"n1 registers as broker 201 .* no process has run as \[202\]"):
        register(trace, 201, "n1", mapped("n1", 201))


def test_new_id_is_refused_while_one_with_replicas_is_missing() -> None:
    trace = two_that_hold_replicas()
    asks(trace, "n1")
    dies(trace, 1)
    trace.time += 20.0
    register(trace, 1001, "n1", mapped("n1", 1001))
    asks(trace, "n2")
    with refused(r"n2 registers as broker 1002 .* no process has run as \[201\]"):
        register(trace, 1002, "n2", mapped("n2", 1002))


def by_hand(host: str, broker_id: int) -> pb.HostnameRecord:
    return pb.HostnameRecord(
        hostname=host, broker_id=broker_id, reason="set by hand", cause=pb.BY_HAND
    )


def test_host_gets_the_broker_id_of_its_manual_mapping() -> None:
    trace = led()
    trace.committed(1, by_hand("n1", 700))
    with refused("700 is mapped by hand"):
        register(trace, 1001, "n1", mapped("n1", 1001))
    trace = led()
    trace.committed(1, by_hand("n1", 700))
    register(trace, 700, "n1", mapped("n1", 700))


def test_manual_mapping_is_recognised_by_its_cause_not_its_text() -> None:
    for caused in (
        pb.HostnameRecord(hostname="n1", broker_id=700, cause=pb.BY_HAND, reason="registered"),
        pb.HostnameRecord(hostname="n1", broker_id=700, cause=pb.BY_HAND),
    ):
        trace = led()
        trace.committed(1, caused)
        with refused("kept for host n1"):
            register(trace, 700, "n2", mapped("n2", 700))
    trace = led()
    worded = pb.HostnameRecord(
        hostname="n1", broker_id=700, cause=pb.BY_REGISTRATION, reason="set by hand"
    )
    trace.committed(1, worded)
    register(trace, 700, "n2", mapped("n2", 700))


def test_id_kept_for_another_host_is_refused() -> None:
    trace = led()
    trace.committed(1, by_hand("n1", 700))
    with refused("kept for host n1"):
        register(trace, 700, "n2", mapped("n2", 700))


def takes_201(trace: Trace, *, free: bool) -> None:
    """Let host n1 register as 201, which it may once that id is free."""
    with nullcontext() if free else refused("was heard from within a session"):
        register(trace, 201, "n1", mapped("n1", 201))


@pytest.mark.parametrize("late", ["unfencing", "response"])
@pytest.mark.parametrize("slow_s", [0.0, 8.0])
def test_session_begins_at_a_heartbeat_whenever_its_effects_come(late: str, slow_s: float) -> None:
    trace = two_that_hold_replicas()
    register(trace, 201, "b1")
    epoch = trace.ledger.golden.end - 1
    trace.time += 100.0
    trace.committed(1, by_hand("n1", 201))
    beats(trace, 201, "b1")
    # Proposed, or answered, at once; no majority has it for a while.
    trace.time += slow_s
    if late == "unfencing":
        trace.committed(
            1, pb.BrokerRegistrationChangeRecord(broker_id=201, broker_epoch=epoch, fenced=False)
        )
    else:
        beaten = rpc.BrokerHeartbeatResponse(broker_id=201)
        trace.send("c1", "b1", rpc.ControllerResponse(correlation_id=1, broker_heartbeat=beaten))
    trace.time += 7.0 if slow_s else 6.0
    # 15 s after it was heard: its session of 9 s is over, and it is fenced.
    takes_201(trace, free=slow_s > 0)


def beats(trace: Trace, broker_id: int, host: str) -> None:
    """Let c1, which leads, receive its heartbeat."""
    trace.host("c1").service.node = SimpleNamespace(decider=True)
    request = rpc.ControllerRequest(
        correlation_id=1, broker_heartbeat=rpc.BrokerHeartbeatRequest(broker_id=broker_id)
    )
    trace.last.message_arrived(trace.host("c1"), host, request)


@pytest.mark.parametrize("which", ["dies", "lives"])
def test_broker_id_is_free_when_its_process_has_died(which: str) -> None:
    trace = two_that_hold_replicas()
    trace.time += 100.0
    register(trace, 201, "b1")
    trace.committed(1, by_hand("n1", 201))
    if which == "dies":
        dies(trace, 1)
        # Its successor has asked for the id, and has no answer.
        trace.last.broker_started(SimpleNamespace(name="b1", id=201))
    trace.time += 1.0
    takes_201(trace, free=which == "dies")
