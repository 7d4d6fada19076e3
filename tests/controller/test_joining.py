"""What a node asks of the voter set by itself, going by its own log."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import controller.run
from controller.rejoin import Answer, answer_of, may_rejoin
from controller.service.upkeep import Joining, wish
from raftlog.endpoint import Voter
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.node.config.node import ControllerConfig
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


def test_damaged_directory_is_given_up_only_when_it_is_no_voter() -> None:
    assert answer_of(None) is Answer.NO_VOTER
    gone = ApiError(ErrorCode.VOTER_NOT_FOUND, "node 4 is no voter", field="voter_id")
    assert answer_of(gone) is Answer.NO_VOTER
    other = ApiError(ErrorCode.VOTER_NOT_FOUND, "another", field="voter_directory_id")
    assert answer_of(other) is Answer.ANOTHER_DIRECTORY
    for code in ErrorCode:
        if code not in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND):
            assert answer_of(ApiError(code, "why", field="voter_id")) is Answer.NOT_NOW, code


@pytest.mark.parametrize("found_later", [False, True])
async def test_damage_has_a_node_join_anew_once(
    monkeypatch: pytest.MonkeyPatch, found_later: bool
) -> None:
    ran: list[dict[str, Any]] = []

    async def run(config: Any, signals: Any, **how: Any) -> int:
        ran.append(how)
        if found_later and not how.get("raises_damage"):
            return 3
        raise CorruptLogError("batch at offset 7: CRC32C does not match", offset=7)

    async def rejoin(config: Any, damage: CorruptLogError, stop: asyncio.Event) -> Path:
        assert damage.offset == 7
        return Path("/data/damaged/1")

    monkeypatch.setattr(controller.run, "_run", run)
    monkeypatch.setattr(controller.run, "rejoin", rejoin)
    monkeypatch.setattr(controller.run, "may_rejoin", lambda config: True)
    config: Any = None
    if found_later:
        assert await controller.run.run_controller(config) == 3
    else:
        with pytest.raises(CorruptLogError):
            await controller.run.run_controller(config)
    assert ran == [{"raises_damage": True}, {"set_aside": "/data/damaged/1"}]

    ran.clear()
    monkeypatch.setattr(controller.run, "may_rejoin", lambda config: False)
    if found_later:
        assert await controller.run.run_controller(config) == 3
    else:
        with pytest.raises(CorruptLogError):
            await controller.run.run_controller(config)
    assert ran == [{"raises_damage": False}]


@pytest.mark.parametrize(
    ("auto_join", "bootstrap", "may"),
    [(True, ("c1:1",), True), (False, ("c1:1",), False), (True, (), False)],
)
def test_node_joins_anew_only_if_it_may_and_knows_another_controller(
    auto_join: bool, bootstrap: tuple[str, ...], may: bool
) -> None:
    own = ControllerConfig((Voter(4, "c4:1"),), bootstrap, "c4:1", "c4:1")
    settings = SimpleNamespace(controller_quorum_auto_join_enable=auto_join)
    config: Any = SimpleNamespace(controller=own, settings=settings)
    assert may_rejoin(config) is may
