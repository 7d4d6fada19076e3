"""The dialing side of links to peers."""

import asyncio
from typing import Any, cast

import pytest
from scenarios import simulated
from test_shell_rules import FakeDialer, FakeLink, FakeTransport

from raftlog.errors import ErrorCode
from raftlog.node.replica.peers import (
    MAX_PATIENCE_FACTOR,
    SNAPSHOT_CONNECT_S,
    SNAPSHOT_IDLE_S,
    Peer,
    PeerListener,
    PeerReach,
    Silence,
    SnapshotLink,
)
from raftlog.transport.api import Conversation, Probe
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class ClosingDialer(FakeDialer):
    """A dialer like the real one: closing it closes its link, and the event follows later."""

    def close(self) -> None:
        if self.link is not None:
            asyncio.get_running_loop().call_soon(self.lose)
        self.closed = True

    closed = False


class DialTransport:
    """Keeps every dialer, in order."""

    def __init__(self) -> None:
        self.dialers: list[tuple[Conversation, ClosingDialer]] = []
        self.probes = 0

    def dial(self, address: str, conversation: Conversation, handler: Any) -> ClosingDialer:
        dialer = ClosingDialer(handler)
        self.dialers.append((conversation, dialer))
        return dialer

    async def probe(self, address: str, timeout_s: float) -> Probe:
        self.probes += 1
        return Probe.SILENT

    def of(self, conversation: Conversation) -> list[ClosingDialer]:
        return [dialer for kind, dialer in self.dialers if kind is conversation]


class Observed(PeerListener):
    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    def answered(self, peer_id: int, correlation_id: int, response: Any) -> None:
        assert peer_id == 2
        self.said.append(("answered", correlation_id))

    def unanswered(self, peer_id: int, correlation_id: int) -> None:
        assert peer_id == 2
        self.said.append(("unanswered", correlation_id))

    def connected(self, peer_id: int) -> None:
        self.said.append(("connected", peer_id))

    def gone(self, peer_id: int) -> None:
        self.said.append(("gone", peer_id))


class Stage:
    """A peer whose links are up; responses may take a second."""

    def __init__(self, conversation: Conversation = Conversation.REPLICATION) -> None:
        self.transport, self.observed, self.kind = DialTransport(), Observed(), conversation
        loop = asyncio.get_running_loop()
        self.peer = Peer(2, "c2:9093", self.transport, self.observed, loop.create_task, 1.0)  # type: ignore[arg-type]
        for _, dialer in list(self.transport.dialers):
            dialer.open()
        self.observed.said.clear()

    @property
    def dialers(self) -> list[ClosingDialer]:
        return self.transport.of(self.kind)

    def ask(self, number: int) -> None:
        if self.kind is Conversation.QUORUM:
            self.peer.send(number, pb.VoteRequest())
        else:
            self.peer.send_fetch(number, pb.FetchRequest())

    def answer(
        self, dialer: ClosingDialer, link: FakeLink | None, number: int, error: int = 0
    ) -> None:
        vote = pb.VoteResponse(error_code=error)
        quorum = pb.QuorumMessage(correlation_id=number, vote_response=vote)
        fetched = pb.FetchResponse(correlation_id=number, error_code=error)
        dialer.handler.received(link, [quorum if self.kind is Conversation.QUORUM else fetched])


@pytest.mark.parametrize("conversation", [Conversation.QUORUM, Conversation.REPLICATION])
@simulated
async def test_silent_link_is_replaced(conversation: Conversation) -> None:
    stage = Stage(conversation)
    stage.ask(7)
    await asyncio.sleep(0.9)
    assert len(stage.dialers) == 1
    await asyncio.sleep(0.2)
    silent, other = stage.dialers
    old = silent.link
    assert stage.observed.said == [], "the old link stays until there is another one"
    other.open()
    assert silent.closed
    assert stage.observed.said == [
        ("unanswered", 7),
        *[("connected", 2)] * (conversation is Conversation.QUORUM),
    ]
    stage.observed.said.clear()
    stage.ask(8)
    await asyncio.sleep(0.1)
    assert stage.transport.probes == 0, (
        "that a link was replaced is not a sign that the process is gone"
    )
    stage.answer(other, old, 8)
    assert stage.observed.said == [], "an answer on the link that was replaced"
    stage.answer(other, other.link, 8)
    assert stage.observed.said == [("answered", 8)]
    await asyncio.sleep(60)
    assert len(stage.dialers) == 2


@simulated
async def test_link_that_answers_before_its_replacement_is_kept() -> None:
    stage = Stage()
    stage.ask(7)
    await asyncio.sleep(1.1)
    slow, other = stage.dialers
    stage.answer(slow, slow.link, 7)
    assert stage.observed.said == [("answered", 7)]
    assert other.closed
    assert not slow.closed
    await asyncio.sleep(60)
    assert len(stage.dialers) == 2


@simulated
async def test_slow_link_is_not_redialed_repeatedly() -> None:
    stage = Stage()
    for number in range(50):
        dialer = (
            stage.dialers[-1]
            if len(stage.dialers) > 1 and not stage.dialers[-1].closed
            else stage.dialers[0]
        )
        stage.ask(number)
        await asyncio.sleep(1.5)
        stage.answer(dialer, dialer.link, number)
    assert len(stage.dialers) == 2
    assert stage.observed.said == [("answered", number) for number in range(50)]


@simulated
async def test_peer_that_is_silent_on_all_links_is_dialed_with_growing_backoff() -> None:
    stage = Stage()
    for number in range(600):
        stage.ask(number)
        if stage.dialers[-1].link is None:
            stage.dialers[-1].open()
        await asyncio.sleep(0.1)
    # After 1, 2, 4 and 8 seconds, then every 8.
    assert 8 <= len(stage.dialers) <= 12


@simulated
async def test_link_without_requests_may_be_silent() -> None:
    stage = Stage()
    stage.ask(7)
    stage.answer(stage.dialers[0], stage.dialers[0].link, 7)
    await asyncio.sleep(600)
    assert len(stage.dialers) == 1


@simulated
async def test_second_attempt_is_cancelled_when_the_silent_link_breaks() -> None:
    stage = Stage()
    stage.ask(7)
    await asyncio.sleep(1.1)
    silent, other = stage.dialers
    silent.lose()
    assert other.closed
    assert stage.observed.said == [("unanswered", 7)]
    silent.open()
    stage.ask(8)
    stage.answer(silent, silent.link, 8)
    assert stage.observed.said[-1] == ("answered", 8)


@simulated
async def test_closing_ends_both_links_and_the_watch() -> None:
    stage = Stage()
    stage.ask(7)
    await asyncio.sleep(1.1)
    stage.peer.close()
    await asyncio.sleep(60)
    assert [dialer.closed for dialer in stage.dialers] == [True, True]
    assert stage.observed.said == [("unanswered", 7)]


@simulated
async def test_silence_limit_is_twice_the_response_time_within_bounds() -> None:
    ended: list[float] = []
    loop = asyncio.get_running_loop()
    silence = Silence(1.0, lambda: ended.append(loop.time()))
    for took_s, patience_s in (
        (0.1, 1.0),
        (0.9, 1.8),
        (1.5, 3.0),
        (0.01, 1.0),
        (30.0, MAX_PATIENCE_FACTOR),
    ):
        silence.asked()
        await asyncio.sleep(took_s)
        silence.heard()
        ended.clear()
        begun = loop.time()
        silence.asked()
        await asyncio.sleep(patience_s + 0.01)
        assert ended == [pytest.approx(begun + patience_s)]
        silence.heard()
        # Back to what it was.
        silence.asked()
        silence.heard()
    silence.close()


class SnapshotStage:
    def __init__(self, answer_s: float = 60.0) -> None:
        self.transport, self.heard = FakeTransport(), Observed()
        self.link = SnapshotLink(2, "c2:9093", cast(Any, self.transport), self.heard, answer_s)

    @property
    def dialer(self) -> FakeDialer:
        return self.transport.dialers["c2:9093", Conversation.SNAPSHOT]

    def told(self, kind: str) -> list[int]:
        """Return the numbers of the requests that were "answered" or "unanswered"."""
        return [number for one, number in self.heard.said if one == kind]

    def answer(self, link: Any, number: int) -> None:
        self.dialer.handler.received(link, [pb.FetchSnapshotResponse(correlation_id=number)])


@simulated
async def test_peer_is_dialed_on_the_first_request() -> None:
    stage = SnapshotStage()
    assert stage.transport.dialers == {}
    stage.link.send(7, pb.FetchSnapshotRequest(position=3))
    link = stage.dialer.open()
    assert [(sent.correlation_id, sent.position) for sent in link.sent] == [(7, 3)]
    stage.answer(link, 7)
    assert stage.told("answered") == [7]
    stage.link.send(8, pb.FetchSnapshotRequest())
    assert [sent.correlation_id for sent in link.sent] == [7, 8], "the link is kept"


@simulated
async def test_snapshot_link_closes_when_idle_and_reconnects() -> None:
    stage = SnapshotStage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    first = stage.dialer
    link = first.open()
    await asyncio.sleep(2 * SNAPSHOT_IDLE_S)
    stage.answer(link, 7)
    assert stage.told("answered") == [7], "it does not hang up on an answer that is awaited"
    await asyncio.sleep(0.9 * SNAPSHOT_IDLE_S)
    stage.link.send(8, pb.FetchSnapshotRequest())
    stage.answer(link, 8)
    await asyncio.sleep(1.1 * SNAPSHOT_IDLE_S)
    stage.link.send(9, pb.FetchSnapshotRequest())
    assert stage.dialer is not first
    assert stage.told("unanswered") == []


@simulated
async def test_request_without_a_link_in_time_fails() -> None:
    stage = SnapshotStage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    await asyncio.sleep(0.9 * SNAPSHOT_CONNECT_S)
    assert stage.told("unanswered") == []
    await asyncio.sleep(0.2 * SNAPSHOT_CONNECT_S)
    assert stage.told("unanswered") == [7]
    stage.link.send(8, pb.FetchSnapshotRequest())
    link = stage.dialer.open()
    assert [sent.correlation_id for sent in link.sent] == [8]


@simulated
async def test_request_on_a_lost_link_fails_and_its_late_response_is_dropped() -> None:
    stage = SnapshotStage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    old = stage.dialer.open()
    stage.dialer.lose()
    assert stage.told("unanswered") == [7]
    new = stage.dialer.open()
    stage.answer(old, 7)
    stage.answer(new, 7)
    assert stage.told("answered") == []
    assert new.sent == []


@simulated
async def test_closed_snapshot_link_reports_its_pending_request_once() -> None:
    stage = SnapshotStage()
    stage.link.send(7, pb.FetchSnapshotRequest())
    stage.link.close()
    assert stage.told("unanswered") == [7]
    await asyncio.sleep(10)
    assert stage.told("unanswered") == [7]


@simulated
async def test_silent_snapshot_link_is_closed_and_redialed() -> None:
    stage = SnapshotStage(answer_s=1.0)
    stage.link.send(7, pb.FetchSnapshotRequest())
    first = stage.dialer
    first.open()
    await asyncio.sleep(0.9)
    assert stage.told("unanswered") == []
    await asyncio.sleep(0.2)
    assert stage.told("unanswered") == [7]
    stage.link.send(8, pb.FetchSnapshotRequest())
    assert stage.dialer is not first
    stage.answer(stage.dialer.open(), 8)
    assert stage.told("answered") == [8]


@simulated
async def test_slow_snapshot_link_gets_more_time_each_time() -> None:
    stage = SnapshotStage(answer_s=1.0)
    stage.link.send(7, pb.FetchSnapshotRequest())
    stage.dialer.open()
    await asyncio.sleep(1.1)
    assert stage.told("unanswered") == [7]
    for number in range(8, 11):
        stage.link.send(number, pb.FetchSnapshotRequest())
        link = stage.dialer.link or stage.dialer.open()
        await asyncio.sleep(1.5)
        stage.answer(link, number)
    assert stage.told("unanswered") == [7]
    assert stage.told("answered") == [8, 9, 10]


@simulated
async def test_peer_with_both_links_counts_as_reached() -> None:
    stage = Stage()
    await asyncio.sleep(5)
    assert stage.peer.reach() == PeerReach(2)
    assert stage.peer.reach().is_reachable


@simulated
async def test_lost_link_is_reported_with_the_reason_of_the_last_attempt() -> None:
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
    assert stage.peer.reach().is_reachable


@simulated
async def test_longest_response_time_of_both_links_is_reported() -> None:
    stage = Stage(Conversation.QUORUM)
    stage.dialers[0].lose()
    await asyncio.sleep(1)
    (replication,) = stage.transport.of(Conversation.REPLICATION)
    replication.lose()
    replication.last_failure = "later"
    await asyncio.sleep(1)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: not connected yet", 2000)


@simulated
async def test_peer_with_an_overdue_response_does_not_count_as_reached() -> None:
    stage = Stage()
    stage.ask(7)
    await asyncio.sleep(0.9)
    assert stage.peer.reach().is_reachable
    await asyncio.sleep(0.2)
    assert stage.peer.reach() == PeerReach(2, "c2:9093: it is connected but does not answer", 1100)
    (old, _) = stage.dialers
    stage.answer(old, old.link, 7)
    assert stage.peer.reach().is_reachable


@simulated
async def test_peer_of_another_cluster_does_not_count_as_reached() -> None:
    """[A voter of a wrong cluster id reported all voters reachable, enough for an election.]"""
    stage = Stage(Conversation.QUORUM)
    (dialer,) = stage.dialers
    for number in (7, 8):
        stage.ask(number)
        stage.answer(dialer, dialer.link, number, ErrorCode.INCONSISTENT_CLUSTER_ID)
        await asyncio.sleep(2)
    found = stage.peer.reach()
    assert found.reason.startswith(
        "c2:9093: it refuses this node, which belongs to another cluster"
    )
    assert found.for_ms == 4000, "since the first refusal"
    stage.ask(9)
    stage.answer(dialer, dialer.link, 9, ErrorCode.FENCED_LEADER_EPOCH)
    assert stage.peer.reach().is_reachable, "a refusal like others is an answer"
    stage.ask(10)
    stage.answer(dialer, dialer.link, 10, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert "does not accept this node's certificate" in stage.peer.reach().reason
    stage.ask(11)
    stage.answer(dialer, dialer.link, 11, ErrorCode.INVALID_VOTER_KEY)
    assert "another data directory than the voter" in stage.peer.reach().reason
    dialer.lose()
    dialer.open()
    assert stage.peer.reach().is_reachable, "another link, and perhaps another process"
