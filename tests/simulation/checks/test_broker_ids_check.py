"""A registration maps its host, and a host's broker keeps its id (KIP-426)."""

from typing import Any

import pytest
from checks_harness import Trace

from raftlog.quorum import events as ev
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.broker_ids import BrokerIds


def led(level: int = 3) -> Trace:
    trace = Trace(BrokerIds)
    trace.append("c1", 1, pb.LeaderChangeRecord(leader_id=1))
    trace.step("c1", ev.BecameLeader(1, (1, 2)))
    for name in ("c2", "c3"):
        trace.replicate("c1", name)
    trace.commit("c1", 1)
    trace.committed(1, pb.FeatureLevelRecord(name="metadata.version", feature_level=level))
    return trace


def register(trace: Trace, broker_id: int, host: str, *further: Any) -> None:
    epoch = trace.ledger.golden.end
    trace.committed(
        1,
        pb.RegisterBrokerRecord(
            broker_id=broker_id, broker_epoch=epoch, end_points=[pb.Listener(name="P", host=host, port=9092)]
        ),
        *further,
    )


def mapped(host: str, broker_id: int) -> pb.HostnameRecord:
    return pb.HostnameRecord(hostname=host, broker_id=broker_id)


def test_hosts_that_keep_their_ids_and_newcomers_pass() -> None:
    trace = led()
    register(trace, 1, "b1", mapped("b1", 1))
    register(trace, 1, "b1")
    register(trace, 1001, "n1", mapped("n1", 1001))
    register(trace, 1002, "n2", mapped("n2", 1002))
    # A twin moved the broker: then its host may get another id.
    register(trace, 1, "b1twin", mapped("b1twin", 1))
    register(trace, 1003, "b1", mapped("b1", 1003))


def test_below_the_level_nothing_is_mapped() -> None:
    register(led(2), 1, "b1")


@pytest.mark.parametrize("further", [(), (mapped("b1", 2),), (mapped("b2", 1),)])
def test_a_registration_that_does_not_map_its_host(further: tuple[Any, ...]) -> None:
    trace = led()
    with pytest.raises(CheckFailedError, match=r"broker 1 is registered from b1 .* and b1 is mapped to"):
        register(trace, 1, "b1", *further)


def test_a_mapping_that_is_gone_does_not_count() -> None:
    trace = led()
    register(trace, 1, "b1", mapped("b1", 1))
    trace.committed(1, pb.HostnameRecord(hostname="b1"))
    with pytest.raises(CheckFailedError, match=r"b1 is mapped to None"):
        register(trace, 1, "b1")


def test_a_host_that_is_given_another_id() -> None:
    trace = led()
    register(trace, 1, "b1", mapped("b1", 1))
    with pytest.raises(CheckFailedError, match=r"b1 registers as broker 1001 .* it is broker 1's"):
        register(trace, 1001, "b1", mapped("b1", 1001))


def test_a_newcomer_that_is_given_somebody_elses_id() -> None:
    trace = led()
    register(trace, 1, "b1", mapped("b1", 1))
    with pytest.raises(CheckFailedError, match=r"newcomer n1 registers as broker 1 .* that is b1's"):
        register(trace, 1, "n1", mapped("n1", 1))
