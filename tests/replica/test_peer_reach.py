"""What a node tells operators of the others: who answers it, who does not, why, and how long."""

from __future__ import annotations

import asyncio

from simulated import simulated
from test_silent_links import Stage

from raftlog.errors import ErrorCode
from raftlog.replica.peers import PeerReach
from raftlog.transport.api import Conversation


@simulated
async def test_a_peer_with_both_links_is_reached() -> None:
    stage = Stage()
    await asyncio.sleep(5)
    assert stage.peer.reach() == PeerReach(2)
    assert stage.peer.reach().is_reached


@simulated
async def test_a_lost_link_is_told_with_the_reason_of_the_last_attempt() -> None:
    stage = Stage(Conversation.QUORUM)
    (dialer,) = stage.dialers
    await asyncio.sleep(1)
    dialer.lose()
    await asyncio.sleep(2)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: not connected yet", 2000)
    dialer.last_failure = "UNAVAILABLE: Connection refused"
    await asyncio.sleep(1)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: UNAVAILABLE: Connection refused", 3000)
    dialer.open()
    assert stage.peer.reach().is_reached


@simulated
async def test_the_longest_of_both_links_is_told() -> None:
    stage = Stage(Conversation.QUORUM)
    stage.dialers[0].lose()
    await asyncio.sleep(1)
    (replication,) = stage.transport.of(Conversation.REPLICATION)
    replication.lose()
    replication.last_failure = "later"
    await asyncio.sleep(1)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: not connected yet", 2000)


@simulated
async def test_a_peer_that_owes_an_answer_for_longer_than_one_may_take_is_not_reached() -> None:
    stage = Stage()
    stage.ask(7)
    await asyncio.sleep(0.9)
    assert stage.peer.reach().is_reached
    await asyncio.sleep(0.2)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: it is connected and does not answer", 1100)
    (old, _) = stage.dialers
    stage.answer(old, old.link, 7)
    assert stage.peer.reach().is_reached


@simulated
async def test_a_peer_of_another_cluster_answers_and_is_not_reached() -> None:
    """[a voter that was formatted with a wrong cluster id said that all voters could be reached,
    which is enough for an election]
    """
    stage = Stage(Conversation.QUORUM)
    (dialer,) = stage.dialers
    for number in (7, 8):
        stage.ask(number)
        stage.answer(dialer, dialer.link, number, ErrorCode.INCONSISTENT_CLUSTER_ID)
        await asyncio.sleep(2)
    found = stage.peer.reach()
    assert found.reason.startswith("c2:9093: it refuses this node, which is of another cluster")
    assert found.for_ms == 4000, "since the first refusal"
    stage.ask(9)
    stage.answer(dialer, dialer.link, 9, ErrorCode.FENCED_LEADER_EPOCH)
    assert stage.peer.reach().is_reached, "a refusal like others is an answer"
    stage.ask(10)
    stage.answer(dialer, dialer.link, 10, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert "does not take this node's certificate" in stage.peer.reach().reason
    dialer.lose()
    dialer.open()
    assert stage.peer.reach().is_reached, "another link, and perhaps another process"
