"""No level is raised beside builds that do not know it, and none is offered too early (KIP-584)."""

import pytest
from checks_harness import Trace, fencing

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.levels import Levels


def led(level: int) -> Trace:
    trace = Trace(Levels)
    trace.begin()
    trace.committed(1, level_of(level))
    return trace


def level_of(level: int) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(name="metadata.version", feature_level=level)


def registered(highest: int) -> pb.RegisterBrokerRecord:
    feature = pb.FeatureRange(
        name="metadata.version", min_supported_version=1, max_supported_version=highest
    )
    return pb.RegisterBrokerRecord(broker_id=7, features=[feature])


def test_level_that_a_registered_broker_does_not_know() -> None:
    trace = led(1)
    trace.committed(1, registered(1))
    with pytest.raises(
        CheckFailedError, match=r"metadata.version is 2 .* do not know it: \['broker 7 \(1\)'\]"
    ):
        trace.committed(1, level_of(2))
    gone = led(1)
    gone.committed(1, registered(1))
    gone.committed(1, pb.UnregisterBrokerRecord(broker_id=7))
    gone.committed(1, level_of(2))


def test_level_that_a_voter_does_not_know() -> None:
    trace = led(1)
    trace.host("c2").service.quorum.max_metadata_version = 1
    with pytest.raises(CheckFailedError, match=r"do not know it: \['c2 \(1\)'\]"):
        trace.committed(1, level_of(2))


def test_registration_that_does_not_know_the_level() -> None:
    with pytest.raises(
        CheckFailedError, match=r"broker 7 is registered at .* up to 1, the cluster is at 2"
    ):
        led(2).committed(1, registered(1))


def test_level_that_is_offered_before_an_unfenced_broker_has_applied_it() -> None:
    trace = Trace(Levels, brokers=2)
    trace.begin()
    first = registered(2)
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
