"""What a node asks of the voter set by itself, going by its own log."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from controller.service.upkeep import Joining, wish
from raftlog.endpoint import Voter
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc

ME = QuorumConfig("c", 4, "d4", (), endpoint="c4:1")
OTHERS = (Voter(1, "c1:1", "d1"), Voter(2, "c2:1", "d2"))


def seen(*voters: Voter, **fields: Any) -> QuorumDescription:
    plain = QuorumDescription("observer", 3, 1, -1, 0, 9, 9, 9, -1, (), (), (*OTHERS, *voters), 5)
    return replace(plain, **fields)


def test_a_caught_up_observer_asks_to_vote_if_it_may() -> None:
    asked = wish(seen(), ME, auto_join=True)
    assert asked == rpc.AddRaftVoterRequest(
        voter_id=4, voter_directory_id="d4", endpoint="c4:1", ack_when_appended=True
    )
    assert wish(seen(), ME, auto_join=False) is None


def test_who_is_not_caught_up_or_knows_no_leader_waits() -> None:
    for fields in (
        {"high_watermark": 10},
        {"high_watermark": -1},
        {"leader_id": -1},
        {"role": "unattached"},
        {"voters_offset": -1},
    ):
        assert wish(seen(**fields), ME, auto_join=True) is None, fields


def test_the_voter_on_the_lost_disk_goes_first() -> None:
    asked = wish(seen(Voter(4, "c4:1", "old")), ME, auto_join=True)
    assert asked == rpc.RemoveRaftVoterRequest(voter_id=4, voter_directory_id="old")
    assert wish(seen(Voter(4, "c4:1", "old")), ME, auto_join=False) is None


def test_a_voter_tells_where_it_is_whoever_may_join() -> None:
    there = Voter(4, "old:1", "d4")
    asked = wish(seen(there, role="follower"), ME, auto_join=False)
    assert asked == rpc.UpdateRaftVoterRequest(voter_id=4, voter_directory_id="d4", endpoint="c4:1")
    assert wish(seen(replace(there, endpoint="c4:1"), role="follower"), ME, auto_join=True) is None
    assert wish(seen(there, role="follower"), replace(ME, endpoint=""), auto_join=False) is None
    assert wish(seen(there, role="follower", voters_offset=-1), ME, auto_join=False) is None


def test_what_a_leader_asks_of_itself_it_asks_in_its_own_name() -> None:
    """Else its own authorizer would refuse it."""
    got: list[Any] = []

    async def ask() -> None:
        def receive(link: Any, requests: list[Any]) -> None:
            got.extend(requests)
            link.send(rpc.ControllerResponse())

        quorum = SimpleNamespace(fetch_timeout_ms=1000, node_id=3)
        node: Any = SimpleNamespace(quorum=quorum, cluster_id="c")
        unused: Any = None
        joining = Joining(node, receive, unused, random.Random(1), auto_join=True)
        await joining._ask_here(rpc.RemoveRaftVoterRequest(voter_id=3))

    asyncio.run(ask())
    (request,) = got
    assert (request.client.node_id, request.remove_raft_voter.voter_id) == (3, 3)


# --- several listeners --------------------------------------------------------------------------

BOTH = "SSL://c4:2,PLAINTEXT://c4:1"


def test_a_voter_tells_all_its_listeners() -> None:
    node = replace(ME, endpoint=BOTH)
    there = Voter(4, "c4:1", "d4")
    asked = wish(seen(there, role="follower"), node, auto_join=False)
    assert asked == rpc.UpdateRaftVoterRequest(voter_id=4, voter_directory_id="d4", endpoint=BOTH)
    known = seen(replace(there, endpoint=BOTH), role="follower")
    assert wish(known, node, auto_join=False) is None
    joining = wish(seen(), node, auto_join=True)
    assert isinstance(joining, rpc.AddRaftVoterRequest)
    assert joining.endpoint == BOTH
