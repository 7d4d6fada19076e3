"""Links that move to lanes: no message is lost, duplicated or overtaken."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from lane_kit import (
    BROKERS_CLIENT,
    BULK,
    CLIENT,
    FOLLOWER,
    KINDS,
    OBSERVER,
    WATCHER,
    Kind,
    lane_listener,
    lane_of,
    pair,
    run,
    unused_lane_of,
)
from scenarios import scenario
from structlog.testing import capture_logs
from transport_worlds import LIMITS, Medium, Recorder, echo, until

from raftlog.config_writes.writes import ConfigReplies, ConfigWrite, ConfigWrites
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.errors import ConfigError
from raftlog.transport import lane_link
from raftlog.transport.api import Conversation, Link, LinkClosedError, TransportLimits
from raftlog.transport.bounds import Complaint
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.lane_tickets import LOOKS_AFTER_REQUESTS, OF_NODES
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

pytestmark = pytest.mark.usefixtures("medium")
FEW = LOOKS_AFTER_REQUESTS[Conversation.CONTROLLER]
MANY = 50
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.conversation.name)


@each_kind
@scenario(run)
async def test_link_that_moves_to_its_lane_loses_and_duplicates_nothing(*, kind: Kind) -> None:
    async with pair(kind) as both:
        await both.ask_until_moved()
        for count in [1] * 100 + [2, 63, 1_000, 1]:
            await both.caller.ask(count)
        assert both.caller.messages == both.caller.expected
        asked = [kind.number(one) for got in both.leader.envelopes for one in got]
        assert asked == list(range(1, both.caller.asked + 1))
        assert both.lanes == (1, 1)
        assert both.caller.events.count("opened") == len(both.leader.links) == 1
        assert both.leader.links[0].unsent_bytes == 0  # type: ignore[attr-defined]
    assert both.lanes == (0, 0)


@pytest.mark.parametrize("kind", [FOLLOWER, OBSERVER], ids=["replication", "observer"])
@scenario(run)
async def test_link_stays_on_its_stream_while_a_request_there_is_unanswered(*, kind: Kind) -> None:
    async with pair(kind, silent=True) as both:
        caller, served = both.caller, both.leader
        await caller.has_unused_lane()
        await until(lambda: len(served.envelopes) == 1)
        # LAO told beside the fetch is not an answer to it: records may be on their way.
        *beside, answer = kind.replies(1)
        for one in beside:
            served.links[0].send(one)
        await until(lambda: caller.messages == beside)
        # A request that overtakes one on the stream would make two links of one.
        caller.send()
        await until(lambda: len(served.envelopes) == 2)
        assert both.lanes == (0, 0)
        for one in (answer, kind.replies(2)[-1]):
            served.links[0].send(one)
        await until(lambda: len(caller.messages) == len(beside) + 2)
        caller.send()
        await until(lambda: len(served.envelopes) == 3)
        assert both.lanes == (1, 1)


@pytest.mark.parametrize("end", ["server", "caller"])
@each_kind
@scenario(run)
async def test_broken_lane_ends_its_link_and_the_next_has_a_lane(*, kind: Kind, end: str) -> None:
    async with pair(kind) as both:
        await both.ask_until_moved()
        noticed = both.leader if end == "server" else both.caller
        lane_of(noticed.links[0]).abort()
        await until(lambda: both.leader.reasons and both.caller.reasons)
        assert noticed.reasons == ["the peer closed the lane"]
        await until(lambda: both.lanes == (0, 0))
        await both.reconnected()
        await both.ask_until_moved()


@pytest.mark.parametrize(
    ("kind", "served", "asks", "limits"),
    [
        (FOLLOWER, 0, True, LIMITS),
        (FOLLOWER, LANE_PORT_OFFSET, False, LIMITS),
        (FOLLOWER, 0, False, LIMITS),
        (OBSERVER, 0, True, LIMITS),
        (OBSERVER, LANE_PORT_OFFSET, False, LIMITS),
        (OBSERVER, LANE_PORT_OFFSET, True, replace(LIMITS, max_observer_lanes=0)),
        (CLIENT, 0, True, LIMITS),
        (CLIENT, LANE_PORT_OFFSET, False, LIMITS),
        (CLIENT, LANE_PORT_OFFSET, True, replace(LIMITS, max_client_lanes=0)),
        (BROKERS_CLIENT, LANE_PORT_OFFSET, True, replace(LIMITS, max_client_lanes=0)),
        (WATCHER, 0, True, LIMITS),
        (WATCHER, LANE_PORT_OFFSET, True, replace(LIMITS, max_watch_lanes=0)),
    ],
)
@scenario(run)
async def test_link_stays_on_grpc_when_an_end_has_no_lane_for_it(
    *, kind: Kind, served: int, asks: bool, limits: TransportLimits
) -> None:
    async with pair(kind, served=served, asks=asks, limits=limits) as both:
        for _ in range(2 * FEW):
            await both.ask()
        assert both.lanes == (0, 0)
        assert both.client.bounds.lanes.failures == 0
        assert not hasattr(both.caller.links[0], "_lane")


@pytest.mark.parametrize(("asks", "moves"), [(True, True), (False, False)])
@scenario(run)
async def test_broker_requests_lanes_and_a_controller_does_not(*, asks: bool, moves: bool) -> None:
    async with pair(CLIENT) as both:
        node = GrpcServerTransport(
            LIMITS, tls=Medium.tls, asks_for_lanes=asks, lane_port_offset=LANE_PORT_OFFSET
        )
        caller = await both.dial(client=node)
        if moves:
            await caller.ask_until_moved()
        else:
            await caller.ask(2 * FEW)
            assert not hasattr(caller.links[0], "_lane")
        await node.close()


@scenario(run)
async def test_long_and_short_responses_stay_in_order() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        before = len(both.caller.ids)
        link = both.leader.links[0]
        for each in range(10):
            records = b"x" * (BULK if each in (0, 9) else each)
            link.send(quorum_pb2.FetchResponse(correlation_id=each, records=records))
            await asyncio.sleep(0)
        await until(lambda: len(both.caller.ids) == before + 10)
        assert both.caller.ids[before:] == list(range(10))
        assert len(both.caller.envelopes[-1][0].records) == BULK
        assert link.unsent_bytes == 0  # type: ignore[attr-defined]
        assert both.server.bounds.send_budget.total_bytes == 0


@scenario(run)
async def test_lane_writes_keep_their_order() -> None:
    async with pair() as both:
        await both.ask_until_moved()
        before = len(both.caller.ids)
        link = both.leader.links[0]
        lane = lane_of(link)
        resumed = lane.resume_writing

        def resume_and_send() -> None:
            resumed()
            if lane.resume_writing is resume_and_send:
                del lane.resume_writing
                link.send(quorum_pb2.FetchResponse(correlation_id=3))

        lane.resume_writing = resume_and_send
        link.send(quorum_pb2.FetchResponse(correlation_id=1, records=b"x" * BULK))
        await until(lambda: not lane.writable)
        link.send(quorum_pb2.FetchResponse(correlation_id=2))
        await until(lambda: len(both.caller.ids) == before + 3)
        assert both.caller.ids[before:] == [1, 2, 3]


@scenario(run)
async def test_lane_that_breaks_before_its_use_is_dropped() -> None:
    async with pair() as both:
        link = both.leader.links[0]
        await until(lambda: unused_lane_of(link) is not None)
        unused: Any = unused_lane_of(link)
        unused.abort()
        await until(lambda: unused_lane_of(both.caller.links[0]) is None)
        for _ in range(3):
            await both.ask()
        assert both.lanes == (0, 0)
        assert both.caller.events.count("closed") == 0


@scenario(run)
async def test_unreachable_port_is_logged_once(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_link, "RETRY_MIN_S", 0.01)
    monkeypatch.setattr(lane_link, "RETRY_MAX_S", 0.02)

    with capture_logs() as logs:
        async with pair(asks=False) as both:
            lanes: Any = lane_listener(both.server)
            both.server._lanes.close()
            both.client._laned = OF_NODES
            both.dialer.close()
            both.caller = await both.dial()
            for _ in range(3):
                await both.ask()
            await until(lambda: both.client.bounds.lanes.failures >= 3)
            assert both.lanes == (0, 0)
            again = await both.server._lanes.listen("127.0.0.1", lanes.port, lanes.tls)
            again._tickets = lanes._tickets
            await both.ask_until_moved()
    said = [one for one in logs if one["event"].startswith("cannot open a separate TCP connection")]
    assert (len(said), said[0]["log_level"]) == (1, "warning")


@scenario(run)
async def test_port_in_use_is_a_config_error() -> None:
    async with pair() as both:
        port = lane_listener(both.server).port
        taken = int(both.server._listeners[0].address.rpartition(":")[2])
        for own, said in (
            (port - 1, r"lane\.port\.offset: cannot listen"),
            (taken, "^cannot listen"),
        ):
            other = GrpcServerTransport(LIMITS, lane_port_offset=port - own)
            with pytest.raises(ConfigError, match=said):
                await other.listen(
                    f"127.0.0.1:{own}", {Conversation.REPLICATION: Recorder().accept}
                )
            await other.close()


@scenario(run)
async def test_follower_that_does_not_read_is_disconnected() -> None:
    limits = replace(LIMITS, max_queued_bytes=7 * BULK // 2, max_queued_total_bytes=10 * BULK)
    async with pair(limits=limits) as both:
        await both.ask_until_moved()
        lane_of(both.caller.links[0])._transport.pause_reading()
        link = both.leader.links[0]
        bulk = quorum_pb2.FetchResponse(records=b"x" * BULK)
        for _ in range(3):
            link.send(bulk)
            await asyncio.sleep(0)
        # What the kernel has not taken counts as what waits here does.
        assert both.server.bounds.send_budget.total_bytes > 2 * BULK
        with pytest.raises(LinkClosedError, match="does not keep up"):
            link.send(bulk)
        await until(lambda: both.leader.reasons and both.caller.reasons)
        assert both.server.bounds.complaints.counts[Complaint.SLOW_READER] == 1
        assert both.server.bounds.send_budget.total_bytes == 0


# --- Observers: there are many of them ---


@scenario(run)
async def test_observer_beyond_the_limit_uses_grpc_until_another_observer_leaves() -> None:
    # One address has half of the places.
    async with pair(OBSERVER, limits=replace(LIMITS, max_observer_lanes=2 * MANY)) as both:
        for caller in [both.caller, *[await both.dial() for _ in range(MANY - 1)]]:
            await caller.ask_until_moved()
        assert both.lanes == (MANY, MANY)
        late = await both.dial()
        for _ in range(19):
            await late.ask()
        assert not hasattr(late.links[0], "_lane")
        assert both.client.bounds.lanes.failures == 0
        both.caller.links[0].close("enough")
        await until(lambda: len(both.caller.links) == 2)
        await both.caller.ask_until_moved()
        assert both.lanes == (MANY, MANY)


@scenario(run)
async def test_observers_never_take_the_lanes_of_followers() -> None:
    async with pair(OBSERVER, limits=replace(LIMITS, max_observer_lanes=2)) as both:
        await both.ask_until_moved()
        await both.dial()
        follower = await both.dial(FOLLOWER)
        await follower.ask_until_moved()
        assert both.lanes[0] == 1


# --- Clients: they have many requests in flight ---


@scenario(run)
async def test_client_with_few_requests_requests_no_lane() -> None:
    async with pair(CLIENT) as both:
        for _ in range(FEW - 1):
            await both.ask()
        await asyncio.sleep(0.1)
        assert unused_lane_of(both.caller.links[0]) is None
        await both.ask()
        await both.caller.has_unused_lane()


@scenario(run)
async def test_requests_of_one_turn_share_an_envelope_on_a_lane() -> None:
    async with pair(CLIENT) as both:
        await both.ask_until_moved()
        before = len(both.leader.envelopes)
        await both.caller.ask(50)
        assert len(both.leader.envelopes) - before <= 2


@scenario(run)
async def test_group_of_writes_is_one_object_and_its_replies_one_frame() -> None:
    def reply(link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if type(message) is ConfigWrites:
                link.send(ConfigReplies(message.correlation_ids, message.counts, 10, 1, 3, 0))
            else:
                echo(link, [message])

    async with pair(CLIENT) as both:
        both.leader.on_received = reply
        await both.ask_until_moved()
        for _ in range(40):
            both.caller.asked += 1
            write = ConfigWrite([(16, "a", "match", "v")], correlation_id=both.caller.asked)
            both.caller.links[0].send(write)
        await both.ask()
        assert both.caller.ids == list(range(1, both.caller.asked + 1))
        groups = [one for got in both.leader.envelopes for one in got]
        assert [len(one.counts) for one in groups if type(one) is ConfigWrites] == [40]


@scenario(run)
async def test_waiting_request_holds_later_ones_on_the_stream_only_briefly() -> None:
    waiting: list[tuple[Link, Any]] = []

    def all_but_first(link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if message.correlation_id == 1:
                waiting.append((link, message))
            else:
                echo(link, [message])

    async with pair(CLIENT) as both:
        caller, link = both.caller, both.caller.links[0]
        both.leader.on_received = all_but_first
        caller.send(FEW)
        await caller.has_unused_lane()
        for count in range(400):
            caller.send()
            await until(lambda wanted=FEW + count: len(caller.ids) == wanted)  # type: ignore[misc]
        assert not caller.moved()
        assert getattr(link, "_hold_every") > lane_link.HOLD_AFTER_REQUESTS  # noqa: B009
        ((link_of, first),) = waiting
        echo(link_of, [first])
        await until(lambda: len(caller.ids) == caller.asked)
        assert sorted(caller.ids) == list(range(1, caller.asked + 1))
        assert caller.ids[-1] == 1
        caller.send()
        assert caller.moved(), "nothing is under way any more"
        await until(lambda: len(caller.ids) == caller.asked)


@scenario(run)
async def test_client_with_pending_requests_gets_a_lane(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_link, "HOLD_MAX_S", 10.0)

    async with pair(CLIENT) as both:
        caller = both.caller
        caller.send(FEW)
        await caller.has_unused_lane()

        def go_on(link: Link, messages: Sequence[Any]) -> None:
            # As many again as were answered: without holding, the stream is never empty.
            if caller.asked < 3_000:
                caller.send(len(messages))

        caller.on_received = go_on
        caller.send(3)
        await until(caller.moved)
        await until(lambda: caller.asked >= 3_000 and len(caller.ids) == caller.asked)
        assert both.leader.ids == caller.ids == list(range(1, caller.asked + 1))


@scenario(run)
async def test_held_requests_are_lost_with_their_link(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_link, "HOLD_MAX_S", 10.0)
    monkeypatch.setattr(lane_link, "HOLD_AFTER_REQUESTS", 1)

    async with pair(CLIENT) as both:
        caller = both.caller
        both.leader.on_received = None
        caller.send(FEW)
        await caller.has_unused_lane()
        await until(lambda: len(both.leader.ids) == FEW)
        caller.send()
        await until(lambda: len(both.leader.ids) == FEW + 1)
        link: Any = caller.links[0]
        await until(lambda: link._wake is not None)  # Else its write goes on with what comes.
        caller.send(5)
        assert link._asleep is not None
        assert link.unsent_bytes > 0
        link.close("enough")
        await until(lambda: caller.reasons)
        assert caller.reasons == ["enough"]


@scenario(run)
async def test_notice_of_a_controller_answers_no_request() -> None:
    def notice_first(link: Link, messages: Sequence[Any]) -> None:
        for _ in messages:
            link.send(pb.ControllerResponse(leader_id=2))

    async with pair(CLIENT) as both:
        caller = both.caller
        both.leader.on_received = notice_first
        caller.send(FEW)
        await caller.has_unused_lane()
        await until(lambda: caller.ids == [0] * FEW)
        caller.send()
        assert not caller.moved()
