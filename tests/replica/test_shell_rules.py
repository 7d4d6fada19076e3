"""The shell's duties to the state machine: nothing leaves before the vote that precedes it is
durable, and late responses change nothing.
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import fake_link
import pytest
from scenarios import simulated

from raftlog import batch
from raftlog.errors import ApiError, ErrorCode, StorageError
from raftlog.metadata.records import record
from raftlog.node.replica.local_log import LocalLog
from raftlog.node.replica.peer_acceptor import FetchAddresses, PeerAcceptor
from raftlog.node.replica.peers import ELSEWHERE_AFTER_S, Peer
from raftlog.node.replica.replica import SAVE_LEADER_AFTER_S, Replica
from raftlog.node.storage.api import NodeIdentity, VoteState
from raftlog.quorum import events
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from raftlog.transport.api import Conversation, LinkClosedError, Probe
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from raftlog.wire.records.v1 import records_pb2
from simulation.twins.disk import SimDisk
from simulation.twins.loop import run

VOTERS = tuple(Voter(i, f"c{i}:9093") for i in (1, 2, 3))


class FakeLink(fake_link.FakeLink):
    def __init__(self) -> None:
        super().__init__()
        self.unknown: list[str] = []
        self.closed_because = ""

    def unknown_kind(self, what: str) -> None:
        self.unknown.append(what)

    malformed = unknown_kind

    def close(self, reason: str = "") -> None:
        self.closed_because = reason


class FakeDialer:
    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.link: FakeLink | None = None
        self.last_failure = ""

    def open(self) -> FakeLink:
        self.link = FakeLink()
        self.handler.opened(self.link)
        return self.link

    def lose(self) -> None:
        link, self.link = self.link, None
        self.handler.closed(link, "lost")

    def close(self) -> None:
        pass


class FakeTransport:
    def __init__(self) -> None:
        self.dialers: dict[tuple[str, Conversation], FakeDialer] = {}

    def dial(self, address: str, conversation: Conversation, handler: Any) -> FakeDialer:
        dialer = self.dialers[address, conversation] = FakeDialer(handler)
        return dialer

    async def probe(self, address: str, timeout_s: float) -> Probe:
        return Probe.SILENT


class Silent:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, arguments))

    def writes_wait(self) -> bool:
        return False


class Shell:
    """One replica between fakes, whose votes become durable when the test says so."""

    def __init__(self, wall_clock_ms: Callable[[], int] = lambda: 1000) -> None:
        disk = SimDisk(NodeIdentity("c", 1, "dir-1"), random.Random(1))
        self.store = disk.open()
        self.votes: list[tuple[Any, Callable[[Any], None]]] = []
        self.store.write_vote = (  # type: ignore[method-assign]
            lambda vote, done, *, inline=False: self.votes.append((vote, done))
        )
        self.transport = FakeTransport()
        self.listener = Silent()
        self.replica = Replica(
            QuorumConfig("c", 1, "dir-1", VOTERS),
            self.store,
            cast(Any, self.transport),
            self.listener,
            rng=random.Random(2),
            wall_clock_ms=wall_clock_ms,
        )
        self.replica.start()

    def persist(self) -> None:
        self.votes.pop(0)[1](None)

    def unanswered(self) -> list[int]:
        """Record the numbers of unanswered requests from now on."""
        numbers: list[int] = []
        self.replica.unanswered = lambda peer, number: numbers.append(number)  # type: ignore[method-assign, assignment]
        return numbers

    def probed(self, probe: Callable[[], Probe]) -> FakeDialer:
        """Open and lose the control link of node 2, whose address answers probes so."""

        async def answer(address: str, timeout_s: float) -> Probe:
            return probe()

        self.transport.probe = answer  # type: ignore[method-assign]
        dialer = self.transport.dialers["c2:9093", Conversation.QUORUM]
        dialer.open()
        dialer.lose()
        return dialer

    @property
    def failures(self) -> list[str]:
        return [str(*arguments) for name, arguments in self.listener.calls if name == "failed"]

    def ask(self, link: FakeLink, *, epoch: int, candidate: int = 2) -> None:
        """Send a VoteRequest on the control conversation."""
        request = pb.VoteRequest(
            cluster_id="c",
            voter_id=1,
            replica_epoch=epoch,
            replica_id=candidate,
            replica_directory_id="",
            last_offset=0,
        )
        acceptor = self.replica.acceptors()[Conversation.QUORUM](link)
        acceptor.received(link, [pb.QuorumMessage(correlation_id=9, vote_request=request)])


@simulated
async def test_vote_is_sent_only_when_durable() -> None:
    shell = Shell()
    link = FakeLink()
    shell.ask(link, epoch=5)
    assert shell.votes == [], "what was sent before leaves first"
    await asyncio.sleep(0)
    assert shell.votes
    assert shell.votes[-1][0].voted_id == 2
    assert link.sent == []
    while shell.votes:
        assert link.sent == []
        shell.persist()
        await asyncio.sleep(0)
    [message] = link.sent
    assert message.correlation_id == 9
    assert message.vote_response.vote_granted


@simulated
async def test_everything_after_a_vote_waits_for_it_in_order() -> None:
    shell = Shell()
    first, second = FakeLink(), FakeLink()
    shell.ask(first, epoch=5)
    shell.ask(second, epoch=6, candidate=3)
    await asyncio.sleep(0)
    assert len(shell.votes) == 1, "one write at a time"
    shell.persist()
    assert second.sent == []
    await asyncio.sleep(0)
    while shell.votes:
        shell.persist()
        await asyncio.sleep(0)
    assert first.sent[0].vote_response.vote_granted
    assert second.sent[0].vote_response.vote_granted
    assert second.sent[0].vote_response.leader_epoch == 6


class Leads(Shell):
    """A quorum whose effects are scripted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.effects: list[events.Effect] = []
        self.steps: list[events.Event] = []
        monkeypatch.setattr(QuorumCore, "step", lambda _core, event, now: self.step(event))
        monkeypatch.setattr(QuorumCore, "next_deadline", lambda _core: math.inf)
        super().__init__()

    def step(self, event: events.Event) -> list[events.Effect]:
        self.steps.append(event)
        effects, self.effects = self.effects, []
        return effects

    def make(self, *effects: events.Effect) -> None:
        self.effects = list(effects)
        self.replica.gone(3)


@pytest.mark.parametrize("replaced", [False, True])
def test_leader_id_is_saved_later(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    five = VoteState(epoch=5, voted_id=2, leader_id=2)
    six = VoteState(epoch=6, voted_id=1)
    link: Any = FakeLink()

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.SaveLeader(five))
        shell.make(events.Reply(link, "said at once"))
        assert link.sent == ["said at once"]
        assert shell.votes == [], "the disk is left to the first commit"
        if replaced:
            shell.make(events.PersistVote(six))
        await asyncio.sleep(2 * SAVE_LEADER_AFTER_S)
        assert [vote for vote, _ in shell.votes] == [six if replaced else five]
        shell.persist()
        assert shell.steps[-1] == events.VotePersisted(six if replaced else five)

    run(main())


def test_leader_id_is_saved_after_all_earlier_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an older vote would be written after it."""
    votes = [VoteState(epoch=epoch) for epoch in (5, 6, 7)]
    led = VoteState(epoch=7, leader_id=2)

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(*map(events.PersistVote, votes), events.SaveLeader(led))
        written: list[VoteState] = []
        for _ in range(4):
            await asyncio.sleep(2 * SAVE_LEADER_AFTER_S)
            written += [vote for vote, _ in shell.votes]
            shell.persist()
        assert written == [*votes, led]

    run(main())


@simulated
async def test_disk_error_while_saving_the_leader_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Leads(monkeypatch)
    shell.make(events.SaveLeader(VoteState(epoch=5, leader_id=2)))
    await asyncio.sleep(2 * SAVE_LEADER_AFTER_S)
    shell.votes.pop(0)[1](StorageError("no"))
    assert shell.failures == ["no"]


def test_vote_after_a_failing_release_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second response would release messages that wait for the next vote too early."""
    first, second = VoteState(epoch=5, voted_id=1), VoteState(epoch=6, voted_id=1)
    request, steps = pb.VoteRequest(voter_id=2), []

    def step(event: events.Event, now: float) -> list[events.Effect]:
        steps.append(type(event))
        if isinstance(event, events.PeerLost):
            return [events.PersistVote(first), events.Send(2, 1, request)]
        if isinstance(event, events.RequestFailed):
            return [events.PersistVote(second), events.Reply(link, request)]
        return []

    link: Any = FakeLink()

    async def main() -> None:
        monkeypatch.setattr(QuorumCore, "step", lambda _core, event, now: step(event, now))
        monkeypatch.setattr(QuorumCore, "next_deadline", lambda _core: math.inf)
        shell = Shell()
        steps.clear()
        shell.replica.gone(3)
        await asyncio.sleep(0)
        shell.persist()
        await asyncio.sleep(0)
        assert [vote for vote, _ in shell.votes] == [second]
        assert steps == [events.PeerLost, events.RequestFailed, events.VotePersisted]
        assert link.sent == []
        shell.persist()
        assert link.sent == [request]
        assert shell.votes == []

    run(main())


@simulated
async def test_no_message_is_sent_after_a_vote_could_not_be_stored() -> None:

    shell = Shell()
    link = FakeLink()
    shell.ask(link, epoch=5)
    await asyncio.sleep(0)
    _, done = shell.votes.pop(0)
    done(StorageError("no"))
    shell.ask(link, epoch=7)
    assert link.sent == []
    assert shell.failures == ["no"]


@simulated
async def test_response_counts_only_on_the_link_of_its_request() -> None:
    shell = Shell()
    heard: list[tuple[int, int]] = []
    shell.replica.answered = lambda peer, number, response: heard.append((peer, number))  # type: ignore[method-assign, assignment]
    unanswered = shell.unanswered()
    dialer = shell.transport.dialers["c2:9093", Conversation.REPLICATION]
    old = dialer.open()
    shell.replica._peers.by_id[2].send_fetch(41, pb.FetchRequest())
    assert [message.correlation_id for message in old.sent] == [41]
    dialer.lose()
    assert unanswered == [41]
    new = dialer.open()
    shell.replica._peers.by_id[2].send_fetch(42, pb.FetchRequest())
    dialer.handler.received(
        new, [pb.FetchResponse(correlation_id=41), pb.FetchResponse(correlation_id=42)]
    )
    dialer.handler.received(new, [pb.FetchResponse(correlation_id=42)])
    assert heard == [(2, 42)]


@simulated
async def test_empty_response_is_ignored() -> None:
    """An exception here would end the link's task, and with it every election that needs this peer."""
    shell = Shell()
    unanswered = shell.unanswered()
    dialer = shell.transport.dialers["c2:9093", Conversation.QUORUM]
    link = dialer.open()
    shell.replica._peers.by_id[2].send(41, pb.VoteRequest())
    unanswered.clear()
    dialer.handler.received(link, [pb.QuorumMessage(correlation_id=41)])
    assert unanswered == [41]


@simulated
async def test_request_without_a_link_fails_at_once() -> None:
    shell = Shell()
    unanswered = shell.unanswered()
    shell.replica._peers.by_id[3].send(7, pb.EndQuorumEpochRequest())
    assert unanswered == [7]


def test_message_that_is_not_a_request_is_counted_and_dropped() -> None:
    heard: list[Any] = []
    link = FakeLink()
    acceptor = PeerAcceptor(
        Conversation.QUORUM, lambda request, reply_to: heard.append(request), FetchAddresses()
    )
    acceptor.received(link, [pb.QuorumMessage(vote_response=pb.VoteResponse()), pb.QuorumMessage()])
    assert heard == []
    assert link.unknown == [
        "vote_response instead of a quorum request",
        "no body instead of a quorum request",
    ]


@simulated
async def test_records_being_written_are_read_from_memory() -> None:
    shell = Shell()
    replica = shell.replica
    first = batch.encode([batch.RecordData(20, 0, b"a")], base_offset=0, epoch=1, timestamp_ms=1)
    second = batch.encode([batch.RecordData(20, 0, b"b")], base_offset=1, epoch=1, timestamp_ms=1)
    shell.store.append(first, 0, 1)
    # As after a restart: the first is only on disk, the second only in memory.
    replica._log._tail.reset(1)
    span = events.LogSpan(1, 2, ((1, 1),), second, 1)
    replica._append(events.Append(span))
    assert replica.read(0, 2, 1 << 20) == first
    assert replica.read(1, 2, 1 << 20) == second


def batches(*contents: tuple[int, bytes]) -> list[bytes]:
    return [
        batch.encode([batch.RecordData(20, 0, body)], base_offset=at, epoch=1, timestamp_ms=1)
        for at, body in contents
    ]


@simulated
async def test_fetch_reports_a_last_batch_to_the_core_only_if_it_differs() -> None:
    shell = Shell()
    replica = shell.replica
    mine, others = batches((0, b"a"), (1, b"b")), batches((0, b"a"), (1, b"c"))
    for at, chunk in enumerate(mine):
        replica._append(events.Append(events.LogSpan(at, at + 1, ((1, at),), chunk, 1)))
    steps: list[events.Event] = []
    replica._step = steps.append  # type: ignore[method-assign, assignment]
    for content in (mine[1], others[1]):
        last = pb.LogBatch(base_offset=1, crc=batch.crc_at(content, 0))
        replica._requested(pb.FetchRequest(fetch_offset=2, last_batch=last), cast(Any, FakeLink()))
    told = [cast(events.RequestReceived, one).request.HasField("last_batch") for one in steps]
    assert told == [False, True]


@simulated
async def test_truncation_of_committed_records_is_logged_as_critical() -> None:
    shell = Shell()
    replica = shell.replica
    progress = record(records_pb2.ProgressRecord(high_watermark=2)).data
    chunks = [
        *batches((0, b"a"), (1, b"b")),
        batch.encode([progress], base_offset=2, epoch=1, timestamp_ms=1),
    ]
    for at, chunk in enumerate(chunks):
        replica._append(events.Append(events.LogSpan(at, at + 1, ((1, at),), chunk, 1)))
    replica._truncate(events.Truncate(2))
    assert replica.dropped_committed == "", "the log said nothing of what it drops"
    replica._append(events.Append(events.LogSpan(2, 3, ((1, 2),), chunks[2], 1)))
    replica._truncate(events.Truncate(1))
    assert "according to the log, offset 1 was committed" in replica.dropped_committed


@simulated
async def test_dying_process_that_still_accepts_is_probed_again() -> None:
    shell = Shell()
    answers = [Probe.ACCEPTED, Probe.ACCEPTED, Probe.REFUSED]
    gone: list[int] = []
    shell.replica.gone = gone.append  # type: ignore[method-assign, assignment]
    shell.probed(lambda: answers.pop(0))
    await asyncio.sleep(1)
    assert gone == [2]
    assert answers == []


@simulated
async def test_dying_process_is_probed_with_growing_intervals() -> None:
    """There is no leader until it is known to be dead; one that survives must not be flooded."""
    shell = Shell()
    begun, probed_at_ms = asyncio.get_running_loop().time(), list[int]()

    def probe() -> Probe:
        probed_at_ms.append(round((asyncio.get_running_loop().time() - begun) * 1000))
        return Probe.ACCEPTED

    shell.probed(probe)
    await asyncio.sleep(3)
    assert probed_at_ms[:7] == [0, 2, 6, 14, 30, 50, 70]
    assert (len(probed_at_ms), probed_at_ms[-1]) == (50, 930)


@simulated
async def test_peer_with_restored_links_is_not_probed_any_more() -> None:
    shell = Shell()
    probe = Mock(return_value=Probe.ACCEPTED)
    shell.transport.dialers["c2:9093", Conversation.REPLICATION].open()
    control = shell.probed(probe)
    await asyncio.sleep(0.05)
    assert probe.call_count > 1
    control.open()
    await asyncio.sleep(0.05)
    probe.reset_mock()
    await asyncio.sleep(1)
    assert not probe.called


@pytest.mark.parametrize("where", ["request", "tick", "held reply", "disk turn"])
@simulated
async def test_any_exception_stops_the_replica(where: str) -> None:
    """A process without a state machine looks healthy: no election, no response, /livez ok."""
    shell = Shell()
    link = FakeLink()

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("out of range")

    if where == "disk turn":
        shell.store.flush = broken  # type: ignore[method-assign]
        shell.replica._log.flush_soon(inline=False)
        await asyncio.sleep(0)
    elif where == "held reply":
        shell.ask(link, epoch=5)
        link.send = broken  # type: ignore[method-assign]
        await asyncio.sleep(0)
        shell.persist()
    else:
        shell.replica.core._node.become_unattached = broken  # type: ignore[method-assign]
        shell.replica.core._node.become_prospective = broken  # type: ignore[method-assign]
        if where == "request":
            shell.ask(link, epoch=5)
        else:
            await asyncio.sleep(3)
    assert shell.failures == ["defect in raftlog: ValueError: out of range"]
    sent = len(link.sent)
    shell.ask(link, epoch=9)
    assert len(link.sent) == sent, "and not another word"


def test_refusals_are_counted_and_logged_occasionally(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reaches the port can send a million of them."""
    log = Mock()
    monkeypatch.setattr("raftlog.node.replica.listener.log", log)

    async def main() -> None:
        shell = Shell()
        link = FakeLink()
        for _ in range(500):
            shell.ask(link, epoch=2**31 - 1)
        assert shell.replica.refusals.counts == {("VoteRequest", "replica_epoch"): 500}
        assert [message.vote_response.error_code for message in link.sent] == [42] * 500
        assert not shell.votes
        assert log.warning.call_count == 1
        await asyncio.sleep(11)
        shell.ask(link, epoch=2**31 - 1)
        assert log.warning.call_count == 2
        assert log.warning.call_args.kwargs["since_last_logged"] == 500

    run(main())


@pytest.mark.parametrize(
    ("error", "ends"),
    [(LinkClosedError("closed"), False), (ApiError(ErrorCode.MESSAGE_TOO_LARGE, "large"), True)],
    ids=["closed", "too large"],
)
@simulated
async def test_unsendable_response_closes_its_own_link_at_most(
    error: Exception, ends: bool
) -> None:
    """It is sent in a step that another peer's vote or message has begun."""
    shell = Shell()
    broken, sound = FakeLink(), FakeLink()
    broken.error = error
    shell.ask(broken, epoch=5)
    shell.ask(sound, epoch=5, candidate=3)
    await asyncio.sleep(0)
    shell.persist()
    await asyncio.sleep(0)
    assert [one.vote_response.vote_granted for one in sound.sent] == [False]
    assert bool(broken.closed_because) is ends
    assert shell.failures == []


@pytest.mark.parametrize(
    "conversation", [Conversation.QUORUM, Conversation.REPLICATION, Conversation.SNAPSHOT]
)
@simulated
async def test_request_on_a_just_closed_link_is_unanswered(conversation: Conversation) -> None:
    told: list[tuple[int, int]] = []
    listener = Mock(unanswered=lambda *arguments: told.append(arguments))
    transport = FakeTransport()
    peer = Peer(2, "c2:9093", cast(Any, transport), listener, cast(Any, None), 1.0)
    if conversation is Conversation.SNAPSHOT:
        # It is dialed when it is needed.
        peer.send_fetch_snapshot(7, pb.FetchSnapshotRequest())
    link = transport.dialers["c2:9093", conversation].link = FakeLink()
    link.error = LinkClosedError("closed")
    transport.dialers["c2:9093", conversation].handler.opened(link)
    if conversation is Conversation.QUORUM:
        peer.send(7, pb.VoteRequest())
    elif conversation is Conversation.REPLICATION:
        peer.send_fetch(7, pb.FetchRequest())
    assert told == [(2, 7)]


async def moved_peer(listener: Any, *elsewhere: str) -> tuple[Peer, FakeTransport]:
    """Return a peer that has left its address, and is dialed at the next one."""
    transport: Any = FakeTransport()
    none: Any = None
    peer = Peer(2, "old:1", transport, listener, none, 1.0, elsewhere=lambda: list(elsewhere))
    peer.is_elsewhere()
    await asyncio.sleep(0)
    assert peer.address == elsewhere[0]
    return peer, transport


@simulated
async def test_node_at_another_address_answers_for_a_peer_only_if_it_is_the_peer() -> None:
    """[A voter dialed its leader at configured addresses of other nodes, too: one of those did not
    lead, and was taken for the leader.]
    """
    told: list[tuple[str, Any]] = []
    listener = Mock(
        answered=lambda _, number, body: told.append(("answered", number)),
        unanswered=lambda _, number: told.append(("unanswered", number)),
    )
    peer, transport = await moved_peer(listener, "new:1")
    fetches, votes = (
        transport.dialers["new:1", one] for one in (Conversation.REPLICATION, Conversation.QUORUM)
    )
    fetches.open()
    votes.open()
    refused = pb.FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=-1)
    for number in (1, 3):
        peer.send_fetch(number, pb.FetchRequest())
        refused.correlation_id = number
        fetches.handler.received(fetches.link, [refused])
        if number == 1:
            peer.send(2, pb.VoteRequest())
            proof = pb.QuorumMessage(correlation_id=2, vote_response=pb.VoteResponse(voter_id=2))
            votes.handler.received(votes.link, [proof])
    assert told == [("unanswered", 1), ("answered", 2), ("answered", 3)]


@simulated
async def test_address_of_another_node_is_abandoned() -> None:
    """[An observer requests no votes, so it learned no id, and kept asking there forever.]"""
    peer, transport = await moved_peer(Mock(), "new:1", "third:1")
    fetches = transport.dialers["new:1", Conversation.REPLICATION]
    fetches.open()
    refused = pb.FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=2)
    for number, address in ((1, "new:1"), (2, "third:1")):
        peer.send_fetch(number, pb.FetchRequest())
        refused.correlation_id = number
        fetches.handler.received(fetches.link, [refused])
        await asyncio.sleep(0)
        assert peer.address == address
        await asyncio.sleep(ELSEWHERE_AFTER_S)


@simulated
async def test_delayed_flush_runs_with_the_next_flush_or_in_time() -> None:
    """[The first record of an epoch is synced alone, and the writes that follow it again.]"""
    store = SimDisk(NodeIdentity("c", 1, "dir-1"), random.Random(1)).open()
    store.recover()
    flushes = Mock()
    store.flush = flushes  # type: ignore[method-assign]
    log = LocalLog(store, step=Mock(), fail=Mock())
    log.flush_soon(inline=True, within_s=0.002)
    await asyncio.sleep(0)
    assert not flushes.called
    log.flush_soon(inline=False)
    await asyncio.sleep(0)
    assert flushes.call_count == 1
    await asyncio.sleep(0.01)
    assert flushes.call_count == 1
    log.flush_soon(inline=True, within_s=0.002)
    await asyncio.sleep(0.0021)
    assert flushes.call_count == 2
