"""A broker is a node that is registered, and has no vote."""

from __future__ import annotations

from msgspec.structs import replace

from controller.rules.node_roles import is_broker_alone
from raftlog.metadata import pmap
from raftlog.metadata.entities import Broker, Process, VoterEntry, Voters
from raftlog.metadata.image import Image


def broker(node_id: int) -> Broker:
    return Broker(
        node_id, 1, "i", (), (), "", False, False, (), 0, Process("", "", 0, 0), ""
    )  # fmt: skip


def test_an_id_that_is_both_is_no_broker_alone() -> None:
    brokers: pmap.Mutation[int, Broker] = pmap.empty().mutate()
    brokers[3], brokers[4] = broker(3), broker(4)
    image = replace(Image(), brokers=brokers.finish())
    found = [one for one in range(6) if is_broker_alone(image, (1, 2, 3), one)]
    assert found == [4]
    named = replace(image, voters=Voters(7, (VoterEntry(4, "d", "h:1"),)))
    assert [one for one in range(6) if is_broker_alone(named, (1, 2, 3), one)] == [3]
