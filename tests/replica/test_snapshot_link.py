"""The bulk link to a peer: dialed when something is asked, hung up when idle, and no request
without an outcome.
"""

import asyncio
from typing import Any, cast

from simulated import simulated
from test_shell_rules import FakeDialer, FakeTransport

from raftlog.replica.peers import SNAPSHOT_CONNECT_S, SNAPSHOT_IDLE_S, SnapshotLink
from raftlog.transport.api import Conversation
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class Heard:
    def __init__(self) -> None:
        self.answers: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        self.answers.append((peer_id, correlation_id))

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        self.lost.append((peer_id, correlation_id))


class Stage:
    def __init__(self, answer_s: float = 60.0) -> None:
        self.transport, self.heard = FakeTransport(), Heard()
        self.link = SnapshotLink(2, "c2:9093", cast(Any, self.transport), self.heard, answer_s)

    @property
    def dialer(self) -> FakeDialer:
        return self.transport.dialers["c2:9093", Conversation.SNAPSHOT]

    def answer(self, link: Any, number: int) -> None:
        self.dialer.handler.received(link, [pb.FetchSnapshotResponse(correlation_id=number)])


@simulated
async def test_nothing_is_dialed_before_something_is_asked() -> None:
    stage = Stage()
    assert stage.transport.dialers == {}
    stage.link.send(7, pb.FetchSnapshotRequest(position=3))
    link = stage.dialer.open()
    assert [(sent.correlation_id, sent.position) for sent in link.sent] == [(7, 3)]
    stage.answer(link, 7)
    assert stage.heard.answers == [(2, 7)]
    stage.link.send(8, pb.FetchSnapshotRequest())
    assert [sent.correlation_id for sent in link.sent] == [7, 8], "the link is kept"


@simulated
async def test_it_hangs_up_when_nothing_was_asked_for_a_while_and_dials_again() -> None:
    stage = Stage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    first = stage.dialer
    link = first.open()
    await asyncio.sleep(2 * SNAPSHOT_IDLE_S)
    stage.answer(link, 7)
    assert stage.heard.answers == [(2, 7)], "it does not hang up on an answer that is awaited"
    await asyncio.sleep(0.9 * SNAPSHOT_IDLE_S)
    stage.link.send(8, pb.FetchSnapshotRequest())
    stage.answer(link, 8)
    await asyncio.sleep(1.1 * SNAPSHOT_IDLE_S)
    stage.link.send(9, pb.FetchSnapshotRequest())
    assert stage.dialer is not first
    assert stage.heard.lost == []


@simulated
async def test_without_a_link_in_time_there_is_no_answer() -> None:
    stage = Stage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    await asyncio.sleep(0.9 * SNAPSHOT_CONNECT_S)
    assert stage.heard.lost == []
    await asyncio.sleep(0.2 * SNAPSHOT_CONNECT_S)
    assert stage.heard.lost == [(2, 7)]
    stage.link.send(8, pb.FetchSnapshotRequest())
    link = stage.dialer.open()
    assert [sent.correlation_id for sent in link.sent] == [8]


@simulated
async def test_what_was_asked_on_a_lost_link_is_unanswered_and_a_late_answer_is_dropped() -> None:
    stage = Stage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    old = stage.dialer.open()
    stage.dialer.lose()
    assert stage.heard.lost == [(2, 7)]
    new = stage.dialer.open()
    stage.answer(old, 7)
    stage.answer(new, 7)
    assert stage.heard.answers == []
    assert new.sent == []


@simulated
async def test_hanging_up_leaves_nobody_waiting() -> None:
    stage = Stage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    stage.link.close()
    assert stage.heard.lost == [(2, 7)]
    await asyncio.sleep(10)
    assert stage.heard.lost == [(2, 7)]


@simulated
async def test_a_link_that_says_nothing_is_hung_up_and_another_one_is_dialed() -> None:
    stage = Stage(answer_s=1.0)
    stage.link.send(7, pb.FetchSnapshotRequest())
    first = stage.dialer
    first.open()
    await asyncio.sleep(0.9)
    assert stage.heard.lost == []
    await asyncio.sleep(0.2)
    assert stage.heard.lost == [(2, 7)]
    stage.link.send(8, pb.FetchSnapshotRequest())
    assert stage.dialer is not first
    stage.answer(stage.dialer.open(), 8)
    assert stage.heard.answers == [(2, 8)]


@simulated
async def test_a_slow_snapshot_link_is_given_more_time_each_time() -> None:
    stage = Stage(answer_s=1.0)
    stage.link.send(7, pb.FetchSnapshotRequest())
    stage.dialer.open()
    await asyncio.sleep(1.1)
    assert stage.heard.lost == [(2, 7)]
    for number in range(8, 11):
        stage.link.send(number, pb.FetchSnapshotRequest())
        link = stage.dialer.link or stage.dialer.open()
        await asyncio.sleep(1.5)
        stage.answer(link, number)
    assert stage.heard.lost == [(2, 7)]
    assert [number for _, number in stage.heard.answers] == [8, 9, 10]
