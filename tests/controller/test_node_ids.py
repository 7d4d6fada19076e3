"""Controllers and brokers share no node id."""

import dataclasses
from typing import Any

import pytest
from deciding import Cell, registration
from msgspec.structs import replace
from request_fields import OBSERVER, VOTERS, quorum, replica

from controller.rules.node_roles import is_broker_alone
from raftlog.errors import ErrorCode
from raftlog.metadata import pmap
from raftlog.metadata.entities import Broker, Process, VoterEntry, Voters
from raftlog.metadata.image import Image
from raftlog.quorum.core import QuorumDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def cell(**settings: Any) -> Cell:
    return Cell(brokers=0, quorum=quorum, shared_node_ids=False, **settings)


@pytest.mark.parametrize("node_id", [*VOTERS, OBSERVER])
def test_broker_with_the_node_id_of_a_controller_is_refused_and_vice_versa(node_id: int) -> None:
    one = cell()
    one.refused(registration(node_id), ErrorCode.INVALID_REGISTRATION, "broker_id")
    assert one.register(9) > 0
    request = rpc.AddRaftVoterRequest(voter_id=9, voter_directory_id="dir-9", endpoint="c9:9093")
    one.refused(request, ErrorCode.INVALID_REQUEST, "voter_id")


def test_already_registered_broker_may_return() -> None:
    """A cluster from before this check keeps working."""
    one = cell()
    state = one.decider.state
    known, state.controller_ids = state.controller_ids, lambda now: frozenset()
    one.register(2)
    state.controller_ids = known
    one.now += 60
    assert one.register(2, "another process") > 0


def test_host_mapped_to_a_controller_is_refused() -> None:
    one = cell()
    one.send(
        rpc.AlterHostnamesRequest(alterations=[rpc.HostnameAlteration(hostname="h", broker_id=3)])
    )
    request = registration(-1, "x", id_wanted=rpc.BrokerIdWanted())
    request.listeners[0].host = "h"
    one.refused(request, ErrorCode.INVALID_REGISTRATION, "broker_id")


def test_controller_id_is_never_generated() -> None:
    def look(now: float) -> QuorumDescription:
        return dataclasses.replace(quorum(now), observers=(replica(1001),))

    one = Cell(brokers=0, quorum=look, shared_node_ids=False)
    wanted = registration(-1, "x", id_wanted=rpc.BrokerIdWanted())
    assert one.send(wanted).broker_id == 1002


# --- A broker is a node that is registered, and has no vote --------------------------------------


def broker(node_id: int) -> Broker:
    return Broker(
        node_id, 1, "i", (), (), "", False, False, (), 0, Process("", "", 0, 0), ""
    )  # fmt: skip


def test_broker_with_the_id_of_a_voter_is_not_a_broker_alone() -> None:
    brokers: pmap.Mutation[int, Broker] = pmap.empty().mutate()
    brokers[3], brokers[4] = broker(3), broker(4)
    image = replace(Image(), brokers=brokers.finish())
    found = [one for one in range(6) if is_broker_alone(image, (1, 2, 3), one)]
    assert found == [4]
    named = replace(image, voters=Voters(7, (VoterEntry(4, "d", "h:1"),)))
    assert [one for one in range(6) if is_broker_alone(named, (1, 2, 3), one)] == [3]
