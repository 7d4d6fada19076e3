"""What brokers tell of partitions must be what the log says there, and the ISR comes from who leads
alone (KIP-24).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, fencing, registered

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.served_partitions import ServedPartitions

T = bytes(15) + b"t"


def made() -> tuple[Trace, list[int]]:
    """Brokers 1 to 3; a partition of all of them, led by 1, that 3 leaves, and 3 is fenced; the
    offsets of these three.
    """
    trace = Trace(ServedPartitions, brokers=3)
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


def test_true_answers_pass() -> None:
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
def test_metadata_that_is_not_the_logs_fails(fields: dict[str, Any]) -> None:
    trace, (_, shrunk, _) = made()
    with pytest.raises(CheckFailedError, match="KIP-24"):
        told(trace, shrunk, **fields)


def test_metadata_of_a_partition_that_is_not_there_fails() -> None:
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
def test_isr_that_is_not_that_of_its_epoch_or_not_the_leaders_fails(
    host: str, isr: list[int], fields: dict[str, int]
) -> None:
    trace, _ = made()
    with pytest.raises(CheckFailedError, match="KIP-24"):
        led(trace, host, isr, **fields)


def test_leader_epoch_grows_when_a_replica_goes() -> None:
    trace, _ = made()
    offset = trace.committed(
        1, pb.PartitionChangeRecord(topic_id=T, replicas=pb.IdList(ids=[1, 2]))
    )
    told(trace, offset, replica_nodes=[1, 2], leader_epoch=1)
    led(trace, "b1", [1, 2], partition_epoch=2, leader_epoch=1)
    with pytest.raises(CheckFailedError, match="KIP-24"):
        told(trace, offset, replica_nodes=[1, 2])
