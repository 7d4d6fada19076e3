"""The checkers of partitions, earlier incarnations and partition answers."""

from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, fencing, refused, registered

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.partitions import Incarnations, Partitions, ServedPartitions

TOPIC = bytes(range(16))


def change(**fields: Any) -> pb.PartitionChangeRecord:
    for name in ("isr", "replicas", "adding_replicas", "removing_replicas"):
        if name in fields:
            fields[name] = pb.IdList(ids=fields[name])
    return pb.PartitionChangeRecord(topic_id=TOPIC, partition_id=0, **fields)


def proposal(proposer: tuple[int, int], *members: tuple[int, int]) -> pb.PartitionChangeRecord:
    """Return the record of an AlterPartition with (broker id, broker epoch) of each member."""
    return change(
        isr=[broker_id for broker_id, _ in members],
        proposer_id=proposer[0],
        proposer_epoch=proposer[1],
        isr_with_epochs=[pb.BrokerState(broker_id=i, broker_epoch=epoch) for i, epoch in members],
    )


def created(isr: list[int], leader: int) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=TOPIC, partition_id=0, replicas=[1, 2, 3], isr=isr, leader=leader
    )


def _led() -> Trace:
    """Brokers 1 to 3 are registered at 1 to 3 and unfenced; broker 1 leads partition 0, with 1 and
    2 in its ISR (offsets 7 and 8).
    """
    trace = Trace(Partitions, Incarnations, brokers=3)
    trace.begin()
    for broker_id in (1, 2, 3):
        trace.committed(1, registered(broker_id, broker_id))
    for broker_id in (1, 2, 3):
        trace.committed(1, fencing(broker_id, broker_id, False))
    trace.committed(1, pb.TopicRecord(name="t", topic_id=TOPIC), created([1, 2], 1))
    return trace


def _partitions(trace: Trace) -> Any:
    return next(checker for checker in trace.checkers if isinstance(checker, Partitions))


def test_proposer_of_an_earlier_incarnation_is_refused() -> None:
    trace = _led()
    with refused("proposed by broker 1 of epoch 0: registered under 1"):
        trace.committed(1, proposal((1, 0), (1, 1)))


def test_isr_proposal_of_a_broker_that_does_not_lead_is_refused() -> None:
    trace = _led()
    with refused("the leader is broker 1"):
        trace.committed(1, proposal((2, 2), (1, 1), (2, 2)))


def test_unproposed_isr_is_refused() -> None:
    trace = _led()
    wrong = proposal((1, 1), (1, 1), (2, 2))
    wrong.isr.ids[:] = [1]
    with refused("is not what was proposed"):
        trace.committed(1, wrong)


@pytest.mark.parametrize(
    "last",
    [registered(2, 9), fencing(2, 2, True), pb.UnregisterBrokerRecord(broker_id=2, broker_epoch=2)],
)
def test_replaced_fenced_or_unregistered_broker_must_leave_the_isr_in_its_batch(last: Any) -> None:
    with refused("broker 2 is .* and in ISR"):
        _led().committed(1, last)
    _led().committed(1, change(isr=[1]), last)


def test_fenced_leader_is_refused_even_alone() -> None:
    trace = _led()
    trace.committed(1, change(isr=[1]))
    with refused("broker 1 is .* and in ISR .1,."):
        trace.committed(1, fencing(1, 1, True))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (change(isr=[2]), "the leader 1 is not in the ISR"),
        (change(isr=[]), "the leader 1 is not in the ISR"),
        (change(isr=[1, 1]), "is not a part of the replicas"),
        (change(isr=[1, 4]), "nobody proposed that"),
        (proposal((1, 1), (1, 1), (4, -1)), "has broker 4: it is"),
    ],
)
def test_invalid_isr_is_refused(wrong: Any, why: str) -> None:
    with refused(why):
        _led().committed(1, wrong)


def test_fold_with_different_epochs_is_refused() -> None:
    trace = _led()
    folded = trace.ledger.golden.partition((TOPIC, 0))
    assert folded is not None
    trace.ledger.golden.partition = lambda key: SimpleNamespace(  # type: ignore[method-assign, assignment, return-value]
        replicas=folded.replicas,
        isr=(1,),
        leader=1,
        leader_epoch=1,
        partition_epoch=1,
        leader_recovery_state=0,
        elr=(),
        last_known_elr=(),
    )
    with refused("the records say .* the fold"):
        trace.committed(1, change(isr=[1]))


def test_replica_may_enter_an_isr_only_by_proposal() -> None:
    with refused("nobody proposed that, and it is not an unclean leader"):
        _led().committed(1, change(isr=[1, 2, 3]))


def unclean(**fields: Any) -> pb.PartitionChangeRecord:
    return change(**{"isr": [3], "leader": 3, "leader_recovery_state": 1, **fields})


def allowed(value: str, *, topic: str = "t") -> pb.ConfigRecord:
    kind = 2 if topic else 4
    return pb.ConfigRecord(
        resource_type=kind, resource_name=topic, name="unclean.leader.election.enable", value=value
    )


def test_broker_unregistered_in_the_same_batch_is_not_a_live_member() -> None:
    """Members leave the ISR in records before the one that unregisters them."""
    one, two = (
        pb.UnregisterBrokerRecord(broker_id=broker, broker_epoch=broker) for broker in (1, 2)
    )
    trace = _led()
    trace.committed(1, allowed("true"))
    with refused(r"an unclean leader: .2. of its ISR are live"):
        trace.committed(1, unclean(), one)
    trace = _led()
    trace.committed(1, allowed("true"))
    trace.committed(1, unclean(), one, two)
    assert _partitions(trace).unclean == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            change(replicas=[1, 2, 3, 4], adding_replicas=[], removing_replicas=[]),
            "complete, and .4. not in sync",
        ),
        (
            change(replicas=[4, 1, 2, 3], adding_replicas=[4], removing_replicas=[4]),
            "adds .4,. and removes .4,.",
        ),
        (change(replicas=[1, 2, 3], adding_replicas=[4]), "adds .4,. and removes"),
        (change(replicas=[4, 1, 2], adding_replicas=[4]), "but its replicas were .1, 2, 3."),
        (change(replicas=[4, 1, 2, 3], removing_replicas=[1]), "but its replicas were .1, 2, 3."),
    ],
)
def test_reassignment_that_loses_or_invents_replicas_is_refused(wrong: Any, why: str) -> None:
    with refused(why):
        _led().committed(1, wrong)


def test_incomplete_cancellation_is_refused() -> None:
    trace = _led()
    trace.committed(1, change(replicas=[4, 3, 1, 2], adding_replicas=[4], removing_replicas=[1, 2]))
    with refused("complete, and .4. not in sync"):
        trace.committed(1, change(replicas=[4, 3, 1, 2], adding_replicas=[], removing_replicas=[]))


# --- former incarnations ------------------------------------------------------------------------


def _beat(trace: Trace, *, error: bool = False, controller_epoch: int = 1) -> None:
    """Broker 1 of epoch 1 sends a heartbeat to c1, and is answered."""
    beat = rpc.BrokerHeartbeatRequest(broker_id=1, broker_epoch=1)
    trace.send("b1", "c1", rpc.ControllerRequest(correlation_id=7, broker_heartbeat=beat))
    _answer(trace, error=error, controller_epoch=controller_epoch)


def _answer(trace: Trace, *, error: bool = False, controller_epoch: int = 1) -> None:
    response = rpc.ControllerResponse(correlation_id=7, controller_epoch=controller_epoch)
    if error:
        response.error.CopyFrom(common_pb2.Error(error_code=77))
    else:
        response.broker_heartbeat.SetInParent()
    trace.send("c1", "b1", response)


def test_accepted_heartbeat_of_an_earlier_incarnation_is_refused() -> None:
    trace = _led()
    trace.time = 1.0
    _beat(trace)
    trace.committed(1, change(isr=[2], leader=2), registered(1, 9))
    trace.time = 2.0
    _beat(trace, error=True)
    assert trace.last.stale == 1
    with refused("c1 accepts a heartbeat of b1, broker 1 of epoch 1"):
        _beat(trace)


def test_stale_heartbeat_passes_if_in_flight_or_answered_by_a_deposed_controller() -> None:
    trace = _led()
    trace.time = 1.0
    beat = rpc.BrokerHeartbeatRequest(broker_id=1, broker_epoch=1)
    trace.send("b1", "c1", rpc.ControllerRequest(correlation_id=7, broker_heartbeat=beat))
    trace.committed(1, change(isr=[2], leader=2), registered(1, 9))
    _answer(trace)
    trace.time = 2.0
    _beat(trace, controller_epoch=0)
    assert trace.last.stale == 0


# --- What brokers tell of partitions -------------------------------------------------------------


T = bytes(15) + b"t"


def made() -> tuple[Trace, list[int]]:
    """A partition of brokers 1 to 3, led by 1, that 3 leaves; 3 is fenced. Return the offsets."""
    trace = Trace(lambda ledger: ServedPartitions(ledger, Partitions(ledger)), brokers=3)
    trace.begin()
    for broker_id in (1, 2, 3):
        trace.committed(1, registered(broker_id, broker_id, fenced=False))
    offsets = [
        trace.committed(
            1,
            pb.TopicRecord(name="t", topic_id=T),
            pb.PartitionRecord(topic_id=T, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1),
        ),
        trace.committed(1, pb.PartitionChangeRecord(topic_id=T, isr=pb.IdList(ids=[1, 2]))),
        trace.committed(1, fencing(3, 3, True)),
    ]
    return trace, offsets


def told(trace: Trace, offset: int, **fields: Any) -> None:
    partition = {"leader_id": 1, "replica_nodes": [1, 2, 3], "leader_epoch": 0, **fields}
    topic = broker_pb2.MetadataTopic(
        name="t",
        topic_id=T,
        partitions=[broker_pb2.MetadataPartition(partition_index=0, **partition)],
    )
    response = SimpleNamespace(metadata=broker_pb2.MetadataResponse(topics=[topic]))
    trace.give(trace.invoke("read_topics", ""), offset=offset, response=response)


def led(trace: Trace, host: str, isr: list[int], **fields: Any) -> None:
    said = data_pb2.LedPartition(
        topic_id=T, isr=[pb.BrokerState(broker_id=one) for one in isr], **fields
    )
    answer = data_pb2.BrokerMetadataResponse(partitions=[said])
    trace.send(host, "client", broker_pb2.BrokerResponse(broker_metadata=answer))


def test_correct_partition_answers_pass() -> None:
    trace, (created, shrunk, fenced) = made()
    told(trace, created)
    told(trace, shrunk)
    told(trace, fenced, offline_replicas=[3])
    led(trace, "b1", [3, 2, 1])
    led(trace, "b1", [1, 2], partition_epoch=1)
    led(trace, "b2", [1], error_code=6, leader_epoch=9)
    assert (trace.last.partitions, trace.last.led) == (3, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"replica_nodes": [1, 2]},
        {"offline_replicas": [3]},
        {"leader_id": 2},
        {"leader_id": -1},
        {"leader_epoch": 1},
    ],
)
def test_metadata_that_differs_from_the_log_is_refused(fields: dict[str, Any]) -> None:
    trace, (_, shrunk, _) = made()
    with pytest.raises(CheckFailedError, match="KIP-24"):
        told(trace, shrunk, **fields)


def test_metadata_of_a_missing_partition_is_refused() -> None:
    trace, (created, _, _) = made()
    with pytest.raises(CheckFailedError, match="where it is not"):
        told(trace, created - 2)


@pytest.mark.parametrize(
    ("host", "isr", "fields"),
    [
        ("b1", [1, 2], {}),
        ("b1", [1, 2, 3], {"partition_epoch": 1}),
        ("b2", [1, 2], {"partition_epoch": 1}),
        ("b1", [1, 2], {"partition_epoch": 1, "leader_epoch": 1}),
        ("b1", [1, 2], {"partition_epoch": 2}),
    ],
)
def test_isr_of_another_epoch_or_another_leader_is_refused(
    host: str, isr: list[int], fields: dict[str, int]
) -> None:
    trace, _ = made()
    with pytest.raises(CheckFailedError, match="KIP-24"):
        led(trace, host, isr, **fields)


def test_leader_epoch_must_grow_when_a_replica_is_removed() -> None:
    trace, _ = made()
    offset = trace.committed(
        1, pb.PartitionChangeRecord(topic_id=T, replicas=pb.IdList(ids=[1, 2]))
    )
    told(trace, offset, replica_nodes=[1, 2], leader_epoch=1)
    led(trace, "b1", [1, 2], partition_epoch=2, leader_epoch=1)
    with pytest.raises(CheckFailedError, match="KIP-24"):
        told(trace, offset, replica_nodes=[1, 2])
