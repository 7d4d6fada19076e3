"""A node without a leader says why, and how often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from quorum_world import QuorumWorld
from scenarios import simulated
from structlog.testing import capture_logs

from controller.service.node import Directory
from controller.service.status import AGAIN_S, FIRST_S, OutageWatch, outage_text, ready
from raftlog.endpoint import Voter
from raftlog.node.replica.peers import PeerReach
from raftlog.quorum.core import QuorumDescription

VOTERS = tuple(Voter(one, f"d{one}", f"127.0.0.1:{9090 + one}") for one in (1, 2, 3))


def described(role: str, voters: tuple[Voter, ...] = VOTERS) -> QuorumDescription:
    return QuorumDescription(role, 36, 1, -1, 0, 9, 9, 9, 0, (), (), voters)


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        (
            [PeerReach(1, "Connection refused", 12_340), PeerReach(3, "no route", 500)],
            "no leader is known in epoch 36: 1 of 3 voters can be reached, 2 are needed;"
            " node 1 for 12.3 s: Connection refused; node 3 for 0.5 s: no route",
        ),
        (
            [PeerReach(1, "Connection refused", 40), PeerReach(3)],
            "no leader is known in epoch 36: 2 of 3 voters can be reached, which is enough for an"
            " election; node 1 for 0.0 s: Connection refused",
        ),
        (
            [PeerReach(1), PeerReach(3)],
            "no leader is known in epoch 36: 3 of 3 voters can be reached, which is enough for an"
            " election",
        ),
    ],
)
def test_sentence(peers: list[PeerReach], text: str) -> None:
    assert outage_text(described("prospective"), 2, peers) == text


def test_founding_a_quorum_needs_all_voters_as_the_sentence_says() -> None:
    """[2 of 3 could be reached, "which is enough for an election", and none was ever held]"""
    seen = replace(described("prospective"), votes_needed=3)
    assert outage_text(seen, 2, [PeerReach(1), PeerReach(3, "no route", 500)]) == (
        "no leader is known in epoch 36: 2 of 3 voters can be reached, 3 are needed to found a"
        " quorum: a configured voter set begins with the votes of all; node 3 for 0.5 s: no route"
    )


def test_node_without_voters() -> None:
    assert "knows no voters" in outage_text(described("unattached", ()), 2, [])


def watched() -> tuple[OutageWatch, Any]:
    directory = Directory(2, VOTERS)
    core = SimpleNamespace(role="prospective", hears=False)
    node: Any = SimpleNamespace(
        directory=directory,
        leader_id=1,
        quorum=SimpleNamespace(node_id=2),
        replica=SimpleNamespace(
            core=core,
            describe=lambda now: replace(described(core.role), hears_leader=core.hears),
            peer_reach=lambda: (PeerReach(1, "Connection refused", 10), PeerReach(3)),
        ),
    )
    return OutageWatch(node), node


def test_outage_is_logged_when_an_election_is_overdue_and_at_its_end() -> None:
    watch, node = watched()
    with capture_logs() as lines:
        watch.tick(10.0)
        assert not lines, "an election takes less"
        assert "node 1 for 0.0 s: Connection refused" in node.directory.not_controller().message
        watch.tick(10.0 + FIRST_S)
        watch.tick(10.1 + FIRST_S)
        assert [(line["event"], line["log_level"]) for line in lines] == [("no leader", "warning")]
        assert "2 of 3 voters can be reached" in lines[0]["reason"]
        watch.tick(10.0 + FIRST_S + AGAIN_S)
        assert len(lines) == 2
        node.replica.core.role = "follower"
        watch.tick(49.0)
        assert len(lines) == 2, "after a lost pre-vote it follows one that answers nothing"
        assert "2 of 3 voters" in node.directory.outage
        node.replica.core.hears = True
        watch.tick(50.0)
        watch.tick(50.1)
    assert lines[2:] == [
        {"event": "a leader is known again", "after_ms": 40_000, "log_level": "info"}
    ]
    assert node.directory.outage == ""
    assert "reached" not in node.directory.not_controller().message


def test_short_election_leaves_no_line() -> None:
    watch, node = watched()
    with capture_logs() as lines:
        watch.tick(10.0)
        node.replica.core.role, node.leader_id = "leader", 2
        watch.tick(10.2)
    assert not lines
    assert node.directory.outage == ""


@pytest.mark.parametrize("leads", [True, False])
@simulated
async def test_controller_is_not_ready_when_it_hears_no_quorum_although_its_links_are_open(
    leads: bool,
) -> None:
    """[between two pre-votes a voter followed the leader that it did not hear, and was ready]"""
    world = QuorumWorld(voters=3)
    await world.write("a")
    leader = await world.active()
    cut = leader if leads else next(one for one in world.up() if one is not leader)
    await world.until(lambda: all(ready(one.service)[0] for one in world.up()))
    paused = [one for one in world.up() if one is not cut]
    for other in paused:
        world.network.pause(other.name)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.sleep(cut.service.node.quorum.fetch_timeout_ms / 1000 + 0.3)
    while loop.time() < begun + 20:
        is_ready, why = ready(cut.service)
        assert not is_ready, (loop.time() - begun, why)
        await asyncio.sleep(0.05)
    for other in paused:
        world.network.resume(other.name)
    await world.until(lambda: all(ready(one.service)[0] for one in world.up()))
