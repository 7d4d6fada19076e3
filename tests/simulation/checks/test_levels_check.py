"""Nothing is committed above the level of metadata.version, and no level is lowered below what is
there (KIP-584).
"""

from typing import Any

import pytest
from checks_harness import Trace

from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.levels import Levels


def led(level: int) -> Trace:
    trace = Trace(Levels)
    trace.begin()
    trace.committed(1, lowered(level))
    return trace


def lowered(level: int) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(name="metadata.version", feature_level=level)


HOST, NO_HOST = pb.HostnameRecord(hostname="h", broker_id=1), pb.HostnameRecord(hostname="h")
ENTRY = pb.AccessControlEntryRecord(id=bytes(16))
NO_ENTRY = pb.RemoveAccessControlEntryRecord(id=bytes(16))
CURSOR, NO_CURSOR = pb.ExportCursorRecord(name="e", end_offset=1), pb.ExportCursorRecord(name="e")


@pytest.mark.parametrize(
    ("level", "record", "name"),
    [
        (2, HOST, "HOSTNAME"),
        (3, CURSOR, "EXPORT_CURSOR"),
        (1, pb.OpenClientRecord(), "OPEN_CLIENT"),
        (6, ENTRY, "ACCESS_CONTROL_ENTRY"),
    ],
)
def test_a_record_above_the_level(level: int, record: Any, name: str) -> None:
    with pytest.raises(CheckFailedError, match=rf"{name} is committed at \d+, at level {level}"):
        led(level).committed(1, record)
    led(level + 1).committed(1, record)


@pytest.mark.parametrize(
    ("there", "gone", "level"), [(HOST, NO_HOST, 2), (CURSOR, NO_CURSOR, 3), (ENTRY, NO_ENTRY, 6)]
)
def test_a_level_below_what_is_there(there: Any, gone: Any, level: int) -> None:
    trace = led(7)
    trace.committed(1, there)
    with pytest.raises(CheckFailedError, match="there is still something of"):
        trace.committed(1, lowered(level))
    trace = led(7)
    trace.committed(1, there)
    trace.committed(1, gone)
    trace.committed(1, lowered(level))


def test_a_client_is_open_until_it_is_closed() -> None:
    trace = led(2)
    client_id = trace.ledger.golden.end
    trace.committed(1, pb.OpenClientRecord(name="c"))
    with pytest.raises(CheckFailedError, match="OPEN_CLIENT"):
        trace.committed(1, lowered(1))
    trace = led(2)
    trace.committed(1, pb.OpenClientRecord(name="c"))
    trace.committed(1, pb.CloseClientRecord(client_id=client_id))
    trace.committed(1, lowered(1))


OWNED = pb.OpenClientRecord(name="c", principal="User:alice")


def test_a_client_of_somebody_above_the_level() -> None:
    with pytest.raises(CheckFailedError, match=r"a client's owner is committed at \d+, at level 6"):
        led(6).committed(1, OWNED)
    led(7).committed(1, OWNED)


def test_a_level_below_a_client_of_somebody() -> None:
    trace = led(7)
    client_id = trace.ledger.golden.end
    trace.committed(1, OWNED)
    with pytest.raises(CheckFailedError, match=rf"owners of clients \[{client_id}\]"):
        trace.committed(1, lowered(6))
    trace = led(7)
    trace.committed(1, OWNED)
    trace.committed(1, pb.CloseClientRecord(client_id=client_id))
    trace.committed(1, lowered(6))


def registered(highest: int) -> pb.RegisterBrokerRecord:
    feature = pb.FeatureRange(
        name="metadata.version", min_supported_version=1, max_supported_version=highest
    )
    return pb.RegisterBrokerRecord(broker_id=7, features=[feature])


def test_a_level_that_a_registered_broker_does_not_know() -> None:
    trace = led(3)
    trace.committed(1, registered(3))
    with pytest.raises(
        CheckFailedError, match=r"metadata.version is 4 .* do not know it: \['broker 7 \(3\)'\]"
    ):
        trace.committed(1, lowered(4))
    gone = led(3)
    gone.committed(1, registered(3))
    gone.committed(1, pb.UnregisterBrokerRecord(broker_id=7))
    gone.committed(1, lowered(4))


def test_a_level_that_a_voter_does_not_know() -> None:
    trace = led(3)
    trace.host("c2").service.quorum.max_metadata_version = 3
    with pytest.raises(CheckFailedError, match=r"do not know it: \['c2 \(3\)'\]"):
        trace.committed(1, lowered(4))


def test_a_registration_that_does_not_know_the_level() -> None:
    with pytest.raises(
        CheckFailedError, match=r"broker 7 is registered at .* up to 2, the cluster is at 3"
    ):
        led(3).committed(1, registered(2))
