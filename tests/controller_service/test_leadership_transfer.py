"""Transfers of the leadership under load, and full disks."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from quorum_world import KeepingLink, World, after_each, alter, describing
from scenarios import simulated

import controller.service.transfer
from controller.decisions.quorum.transfer import TRANSFER_TIMEOUT_S
from controller.disk.space import CHECK_EVERY_S, SpaceWatch
from controller.service.status import describe_quorum
from controller.service.transfer import BOUND_S, CONNECT_S, HOLD_S, QUIET_S, ConnectionDrain
from raftlog.client.requests import controller_request
from raftlog.config_writes.writes import ConfigWrite
from raftlog.errors import ApiError, ErrorCode
from raftlog.quorum.events import Proposed
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb


class Load:
    """Writers that run until stopped; every response is recorded."""

    def __init__(self, world: World) -> None:
        self.acknowledged: dict[str, int] = {}
        self.failed: list[ApiError] = []
        self.longest_gap_s = 0.0
        self._world, self._loop, self._last = world, asyncio.get_running_loop(), -1.0
        self._tasks = [asyncio.create_task(self._write(f"w{number}")) for number in range(8)]

    async def _write(self, prefix: str) -> None:
        count = 0
        while True:
            count += 1
            try:
                response = await self._world.client.call(
                    alter(f"{prefix}-{count}", "v"), timeout_s=20
                )
            except ApiError as error:
                self.failed.append(error)
                continue
            now = self._loop.time()
            if self._last >= 0:
                self.longest_gap_s = max(self.longest_gap_s, now - self._last)
            self._last = now
            self.acknowledged[f"{prefix}-{count}"] = response.controller_epoch

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


async def transfer(world: World, target: int = -1) -> pb.ControllerResponse:
    return await world.client.call(pb.TransferLeadershipRequest(target_id=target))


async def led_by(world: World, node_id: int) -> None:
    await world.until(
        lambda: (n := world.nodes[node_id]).up_now and n.service.node.decider is not None
    )


async def holds_all(world: World, load: Load) -> None:
    node = await world.active()
    await world.client.call(alter("end", "v"))
    for key in load.acknowledged:
        assert (16, key) in node.service.image.configs, key


@pytest.mark.parametrize("as_message", [True, False])
@simulated
async def test_write_waits_for_brokers_despite_a_leader_change(as_message: bool) -> None:
    """No broker is unfenced, so LAO does not advance, and the write waits for it in vain."""
    world = World()
    old = await world.active()
    change = (16, "a", "match", "v")
    write = (
        controller_request(alter("a", "v"), acks=common_pb2.ACKS_VISIBLE)
        if as_message
        else ConfigWrite([change], acks=common_pb2.ACKS_VISIBLE)
    )
    loop = asyncio.get_running_loop()
    begun = loop.time()
    answered = world.client.send(write, 3.0)
    await world.until(lambda: (16, "a") in old.service.image.configs)
    end = old.service.replica.log_end_offset
    for _ in range(2):
        target = (await transfer(world)).transfer_leadership.target_id
        await led_by(world, target)
        assert not answered.done()
    response = await answered
    assert loop.time() - begun == pytest.approx(3.0, abs=0.1)
    assert response.WhichOneof("body") == "incremental_alter_configs"
    assert response.write.reached == common_pb2.ACKS_COMMITTED
    assert response.write.token.offset == end - 1
    epochs = 2
    assert (await world.active()).service.replica.log_end_offset == end + epochs


@simulated
async def test_request_waits_until_the_successor_is_known() -> None:
    world = World()
    old, *_ = await world.settled()
    target, told = world.others(old)[0].id, KeepingLink()
    received = old.service.reception.received
    after_each(old.service, "lost_leadership", lambda *_: received(told, [describing()]))
    leaving = asyncio.ensure_future(transfer(world, target))
    await world.until(lambda: old.service.node.leadership is None)
    await world.until(lambda: told.sent, within_s=HOLD_S)
    (response,) = told.sent
    assert response.error.error_code == ErrorCode.NOT_CONTROLLER
    assert not response.error.outcome_unknown
    assert (response.leader_id, response.leader_endpoint) == (target, f"c{target}:9093")
    await leaving


@simulated
async def test_waiting_request_is_sent_to_the_successor_and_waits_there() -> None:
    world = World()
    old, new, _ = await world.settled()
    sent = describing()
    left, arrived = KeepingLink(), KeepingLink()
    roles: list[str] = []

    def resigned(*_: Any) -> None:
        old.service.reception.received(left, [sent])
        assert left.sent == [], "it goes with those that wait"
        roles.append(new.service.replica.core.role)
        new.service.reception.received(arrived, [sent])
        assert arrived.sent == [], "it waits for the outcome of the election"

    after_each(old.service.replica, "resign", resigned)
    await transfer(world, new.id)
    await world.until(lambda: arrived.sent)
    assert roles == ["follower"], "it has not heard of the resignation"
    assert left.sent[0].error.error_code == ErrorCode.NOT_CONTROLLER
    assert not left.sent[0].error.outcome_unknown
    assert left.sent[0].leader_endpoint == f"c{new.id}:9093"
    assert arrived.sent[0].HasField("describe_brokers")
    assert old.service.node.directory.successor_id == -1, "the leader is known by now"


@simulated
async def test_request_during_an_election_waits_for_its_outcome() -> None:
    """The request also waits at a voter that does not campaign: it soon knows the leader."""
    world = World()
    old, voter, _ = await world.settled()
    replica, reception = voter.service.replica, voter.service.reception
    old.kill()
    await world.until(
        lambda: replica.core.role in ("prospective", "unattached", "candidate"), every_s=0.0001
    )
    told = KeepingLink()
    request = describing()
    reception.received(told, [request])
    assert told.sent == []
    await world.until(lambda: told.sent, within_s=HOLD_S, every_s=0.0001)
    (response,) = told.sent
    new = await world.active()
    if new is voter:
        assert response.HasField("describe_brokers")
    else:
        assert response.leader_id == new.id


@simulated
async def test_requests_wait_once_and_briefly_when_no_leader_can_be_elected() -> None:
    world = World()
    old, voter, other = await world.settled()
    old.kill()
    other.kill()
    reception, loop = voter.service.reception, asyncio.get_running_loop()
    await world.until(lambda: voter.service.replica.core.role != "follower", within_s=5)
    begun, told = loop.time(), KeepingLink()
    request = describing()
    reception.received(told, [request])
    assert told.sent == []
    await world.until(lambda: told.sent, within_s=2 * HOLD_S)
    assert loop.time() - begun == pytest.approx(HOLD_S, abs=0.01)
    assert told.sent[0].error.error_code == ErrorCode.NOT_CONTROLLER
    for _ in range(3):
        await asyncio.sleep(0.3)
        reception.received(told, [request])
    assert len(told.sent) == 4, "the first has waited in vain"
    old.start()
    await world.until(lambda: voter.service.node.leader_id > 0 or voter.service.node.leadership)
    await world.client.call(alter("a", "2"))
    assert not voter.service.transfer._has_held


@simulated
async def test_candidate_that_does_not_win_refuses_waiting_requests_in_time() -> None:
    world = World()
    old, new, other = await world.settled()
    sent = describing()
    told, loop = KeepingLink(), asyncio.get_running_loop()
    begun: list[float] = []

    def leader_changed(*_: int) -> None:
        if new.service.replica.campaigns and not begun:
            begun.append(loop.time())
            for node in (old, other):
                world.network.partition(f"c{new.id}", f"c{node.id}")
            new.service.reception.received(told, [sent])
            assert told.sent == []

    after_each(new.service, "leader_changed", leader_changed)
    await transfer(world, new.id)
    await world.until(lambda: told.sent, within_s=HOLD_S + 0.1)
    assert loop.time() - begun[0] == pytest.approx(HOLD_S, abs=0.01)
    (response,) = told.sent
    assert response.error.error_code == ErrorCode.NOT_CONTROLLER
    assert not response.error.outcome_unknown
    assert response.leader_id == -1


@simulated
async def test_only_a_config_write_is_forwarded_with_the_inherited_tail() -> None:
    world = World()
    _, new, _ = await world.settled()
    told, ends = KeepingLink(), [0]
    write = pb.ControllerRequest(correlation_id=7)
    write.incremental_alter_configs.CopyFrom(alter("b", "1"))
    handing = pb.ControllerRequest(
        correlation_id=8, transfer_leadership=pb.TransferLeadershipRequest(target_id=-1)
    )

    def became_leader(_epoch: int, epoch_start_offset: int) -> None:
        ends[0] = epoch_start_offset + 1
        new.service.reception.received(told, [write, handing])

    after_each(new.service, "became_leader", became_leader)
    # Its answer may come later than all of this.
    transferred = asyncio.ensure_future(transfer(world, new.id))
    await world.until(lambda: new.service.node.decider is not None, every_s=0.0001)
    replica = new.service.replica
    await world.until(lambda: replica.log_end_offset > ends[0], within_s=0.001, every_s=0.0001)
    assert replica.high_watermark < ends[0], "the first record of the epoch is not committed yet"
    await world.until(lambda: len(told.sent) >= 2)
    answers = {one.correlation_id: one for one in told.sent if one.correlation_id}
    assert answers[7].write.token.offset == ends[0]
    assert not answers[8].HasField("error"), "it waited until a voter had fetched"
    await transferred


@simulated
async def test_waiting_transfer_does_not_poll() -> None:
    world = World()
    old = await world.active()
    target = world.others(old)[0]
    world.network.partition(f"c{old.id}", f"c{target.id}")
    asked = asyncio.ensure_future(transfer(world, target.id))
    await world.until(lambda: old.service.transfer.under_way is not None)
    replica, looks, steps = old.service.replica, list[float](), list[int]()
    after_each(replica, "stepped", lambda: steps.append(1))
    after_each(replica, "describe", looks.append)
    await asyncio.sleep(TRANSFER_TIMEOUT_S / 2)
    assert 0 < len(looks) <= len(steps) + 1
    with pytest.raises(ApiError):
        await asked
    assert replica.stepped is None


@simulated
async def test_request_is_redirected_to_the_leader_on_its_own_listener() -> None:
    world = World()
    leader = await world.active()
    node = world.others(leader)[0].service
    directory = node.node.directory
    directory.voters = tuple(
        replace(voter, endpoint=f"A://{voter.endpoint},B://b{voter.node_id}:2")
        for voter in directory.voters
    )
    links = {name: KeepingLink() for name in ("A", "B", "C")}
    for name, link in links.items():
        link.listener = name
        node.reception.accept(link)
        node.reception.received(link, [pb.ControllerRequest(correlation_id=7)])
    described = {name: describe_quorum(node, name).leader_endpoint for name in links}
    await node.drain()
    wanted = {"A": f"c{leader.id}:9093", "B": f"b{leader.id}:2", "C": ""}
    assert described == wanted
    for name, link in links.items():
        refused, notice = link.sent
        assert (refused.correlation_id, notice.correlation_id) == (7, 0)
        assert refused.leader_endpoint == notice.leader_endpoint == wanted[name]


@simulated
async def test_held_requests_are_refused_at_their_deadline_without_a_successor() -> None:
    world = World()
    old, *_ = await world.settled()
    successor = -1

    def be_alone(*arguments: Any) -> None:
        nonlocal successor
        successor = max(successor, *arguments[1:], -1)
        for node in world.nodes.values():
            if node is not old and node.up_now:
                node.kill()

    after_each(old.service.replica, "resign", be_alone)
    leaving = asyncio.ensure_future(old.service.leave("stop"))
    await world.until(lambda: old.service.node.leadership is None)
    told = KeepingLink()
    old.service.reception.received(told, [describing(0)])
    await world.until(lambda: told.sent, within_s=HOLD_S + 0.05)
    assert told.sent[0].leader_id == successor
    await asyncio.sleep(HOLD_S)
    old.service.reception.received(told, [describing(0)])
    assert told.sent[1].leader_id == -1, "it has had its time"
    await leaving


@simulated
async def test_concurrent_leave_and_transfer_are_all_answered() -> None:
    world = World()
    old = await world.active()
    asked = asyncio.ensure_future(transfer(world))
    await asyncio.gather(old.service.leave("stop"), old.service.leave("stop"))
    assert old.service.node.leadership is None
    assert (await asked).transfer_leadership.target_id != -1


@simulated
async def test_writes_neither_fail_nor_wait_when_the_leader_stops() -> None:
    """[If links are closed at once, requests in flight to the old leader have an unknown outcome.]"""
    world = World()
    for _ in range(3):
        old = await world.active()
        load = Load(world)
        await world.until(lambda: len(load.acknowledged) > 100)  # noqa: B023
        load.longest_gap_s, begun = 0.0, asyncio.get_running_loop().time()
        await old.service.leave("the node is shutting down")
        await old.service.successor.wait()
        await old.service.drain()
        old.kill()
        assert asyncio.get_running_loop().time() - begun < 0.5, "its links are empty at once"
        count = len(load.acknowledged)
        await world.until(lambda: len(load.acknowledged) > count + 50)  # noqa: B023
        load.stop()
        assert load.failed == []
        assert load.longest_gap_s < 0.1
        await holds_all(world, load)
        old.start()
        await world.until(lambda: old.service.node.leader_id > 0)  # noqa: B023


@simulated
async def test_link_that_ignores_the_notice_is_refused_until_it_is_quiet() -> None:
    world = World()
    old = await world.active()
    told = KeepingLink()
    old.service.reception.accept(told)
    await old.service.leave("stop")
    await old.service.successor.wait()
    seeing_off = asyncio.ensure_future(old.service.drain())
    begun = asyncio.get_running_loop().time()
    await asyncio.sleep(0.01)
    *before, notice = told.sent
    for one in before:
        assert (one.correlation_id, one.HasField("error")) == (0, False)
        assert one.leader_endpoint == notice.leader_endpoint
    assert [one.successor_takes_requests for one in before] == [False, True]
    assert (notice.correlation_id, notice.error.error_code) == (0, ErrorCode.NOT_CONTROLLER)
    assert notice.leader_endpoint == f"c{notice.leader_id}:9093"
    asked = 0
    while not seeing_off.done():
        asked += 1
        request = describing(asked)
        old.service.reception.received(told, [request])
        assert told.sent[-1].error.error_code == ErrorCode.NOT_CONTROLLER
        assert told.sent[-1].correlation_id == asked
        await asyncio.sleep(QUIET_S / 5)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(BOUND_S, abs=0.1), (
        "not for ever"
    )
    quiet = ConnectionDrain()
    quiet.opened(told)
    quiet.begin(1.0, lambda _: notice)
    quiet.heard_at = 1.2
    assert not quiet.is_over(1.2 + QUIET_S - 0.01)
    assert quiet.is_over(1.2 + QUIET_S)


@simulated
async def test_client_connects_to_the_successor_before_it_is_redirected() -> None:
    world = World()
    old, *_ = await world.settled()
    before = set(world.client._routes)
    target, address = next(
        (node.id, f"c{node.id}:9093")
        for node in world.nodes.values()
        if node is not old and f"c{node.id}:9093" not in before
    )
    leaving = asyncio.ensure_future(transfer(world, target))
    await world.until(lambda: address in world.client._routes)
    assert world.client.target != address
    await leaving
    await world.client.call(alter("a", "2"))
    assert world.client.target == address


@simulated
async def test_node_leads_until_clients_are_connected_to_its_successor() -> None:
    world = World()
    old = await world.active()
    epoch = (await world.client.call(alter("a", "1"))).controller_epoch
    begun, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
    leaving = asyncio.ensure_future(old.service.leave("stop"))
    both = asyncio.ensure_future(old.service.leave("stop again"))
    count = 0
    while old.service.transfer.under_way is None and old.service.node.leadership is not None:
        assert (await world.client.call(alter("a", "2"))).controller_epoch == epoch
        count += 1
        assert loop.time() - begun < 2 * CONNECT_S
    assert count > 5
    await asyncio.gather(leaving, both)
    assert loop.time() - begun >= CONNECT_S
    assert (await world.client.call(alter("a", "3"))).controller_epoch > epoch


@simulated
async def test_lost_leadership_ends_the_transfer_while_clients_connect() -> None:
    world = World()
    old = await world.active()
    answers: list[ApiError | None] = []
    old.service.transfer.begin_to_anybody("asked", answers.append)
    assert answers == []
    old.service.replica.resign("no disk")
    (error,) = answers
    assert error is not None
    assert error.code is ErrorCode.NOT_CONTROLLER
    await world.active()
    await transfer(world, old.id)
    await led_by(world, old.id)
    await asyncio.sleep(2 * CONNECT_S)
    assert old.service.transfer.under_way is None, "what was to come of the first one does not"
    await world.client.call(alter("a", "1"))


@simulated
async def test_first_write_is_replicated_with_the_first_record_of_the_epoch() -> None:
    """[It follows alone, and every follower syncs twice before it is answered.]"""
    world = World()
    old, new, _ = await world.settled()
    told = KeepingLink()
    write = pb.ControllerRequest(correlation_id=7)
    write.incremental_alter_configs.CopyFrom(alter("b", "1"))
    proposed, ends = list[bool](), list[int]()

    def leader_changed(*_: int) -> None:
        if new.service.replica.campaigns and not told.sent:
            new.service.reception.received(told, [write])

    def stepped(event: Any, _now: float) -> None:
        if isinstance(event, Proposed):
            proposed.append(event.more_follows)

    def appended(span: Any) -> None:
        if new.service.node.leadership is not None:
            ends.append(span.end_offset - span.base_offset)

    after_each(new.service, "leader_changed", leader_changed)
    after_each(new.service.replica, "_step_core", stepped)
    after_each(old.service.replica._log, "append", appended)
    await transfer(world, new.id)
    await world.until(lambda: told.sent)
    assert not told.sent[0].HasField("error")
    assert ends[0] == 2
    assert proposed[:2] == [True, False], "the first record waits for the write, and that for none"
    assert not new.service.writes_wait()


@simulated
@pytest.mark.parametrize("took_s", [CONNECT_S / 2, 2 * CONNECT_S])
async def test_transfer_takes_one_sync_of_votes_and_one_flush(took_s: float) -> None:
    """All voters sync their votes at the same time, then the first record of the epoch."""
    world = World()
    old, new, _ = await world.settled()
    for node in world.nodes.values():
        node.disk._latency_s = (took_s, took_s)
    begun, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
    leaving = asyncio.ensure_future(transfer(world, new.id))
    await world.until(lambda: old.service.replica.core.role != "leader", every_s=0.001)
    resigned = loop.time()
    assert resigned - begun < CONNECT_S + took_s / 2
    replica = new.service.replica
    await world.until(lambda: replica.core.role == "leader", every_s=0.001)
    led = loop.time()
    assert took_s <= led - resigned < 1.5 * took_s
    await world.until(
        lambda: replica.high_watermark > replica.core.epoch_start_offset, every_s=0.001
    )
    assert took_s <= loop.time() - led < 1.5 * took_s
    await leaving


@simulated
async def test_transfer_that_times_out_changes_no_vote_and_withdraws_the_successor() -> None:
    world = World()
    old, target, _ = await world.settled()
    epoch = old.service.replica.core.epoch
    leaving = asyncio.ensure_future(transfer(world, target.id))
    named = target.service.replica.core
    await world.until(lambda: named.is_successor, within_s=CONNECT_S, every_s=0.001)
    world.network.partition(f"c{old.id}", f"c{target.id}")
    await world.client.call(alter("b", "1"))
    with pytest.raises(ApiError):
        await leaving
    await world.client.call(alter("c", "1"))
    assert {node.disk.vote.epoch for node in world.nodes.values()} == {epoch}
    world.network.unblock_all()
    await world.until(lambda: not named.is_successor)
    assert old.service.replica.core.epoch == epoch


@simulated
async def test_leaving_node_does_not_lead_again() -> None:
    world = World()
    old = await world.active()
    told = KeepingLink()
    old.service.reception.accept(told)
    await old.service.leave("stop")
    seeing_off = asyncio.ensure_future(old.service.drain())
    await asyncio.sleep(0)
    old.service.became_leader(99, 0)
    request = describing(5)
    old.service.reception.received(told, [request])
    refused = told.sent[-1]
    assert (refused.correlation_id, refused.error.error_code) == (5, ErrorCode.NOT_CONTROLLER)
    old.kill()
    await seeing_off


@simulated
async def test_leaving_node_without_a_successor_answers_accepted_requests_first() -> None:
    world = World()
    old = await world.active()
    load = Load(world)
    await world.until(lambda: len(load.acknowledged) > 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller.service.transfer, "best_successor", lambda *_: -1)
        await old.service.leave("stop")
    await asyncio.sleep(0.05)
    load.stop()
    assert [error for error in load.failed if error.outcome_unknown] == []


# --- space --------------------------------------------------------------------------------------


class Disks:
    """The free space that each node reports."""

    def __init__(self, world: World) -> None:
        self.free = {node.id: 1000 for node in world.nodes.values()}

        def free_of(node_id: int) -> int:
            return self.free[node_id]

        for node in world.nodes.values():
            node.service.node.space = SpaceWatch(100)
            node.store.free_bytes = partial(free_of, node.id)  # type: ignore[method-assign]


@simulated
async def test_leader_with_a_full_disk_transfers_the_leadership() -> None:
    world = World()
    disks = Disks(world)
    old = await world.active()
    load = Load(world)
    await world.until(lambda: len(load.acknowledged) > 20)
    disks.free[old.id] = 99
    await world.until(lambda: old.service.node.leadership is None, 2 * CHECK_EVERY_S + 1)
    new = await world.active()
    assert new is not old
    count = len(load.acknowledged)
    await world.until(lambda: len(load.acknowledged) > count + 20)
    load.stop()
    assert load.failed == []


@simulated
async def test_clients_ask_the_successor_while_the_last_chunk_is_committed() -> None:
    """Their next requests are at the successor when it leads, and none returns to the old leader."""
    world = World()
    old, new, _ = await world.settled()
    load, targets, refused = Load(world), list[str](), list[Any]()
    after_each(old.service.replica, "resign", lambda *_: targets.append(world.client.target))
    await world.until(lambda: len(load.acknowledged) > 20)
    after_each(old.service.reception._answers, "refuse", lambda *it: refused.append(it))
    await transfer(world, new.id)
    await led_by(world, new.id)
    load.stop()
    assert targets == [f"c{new.id}:9093"]
    assert refused == []
    assert load.failed == []


@simulated
async def test_clients_stay_with_a_leader_whose_successor_was_not_notified() -> None:
    world = World()
    old, new, _ = await world.settled()
    told = KeepingLink()
    old.service.reception.accept(told)
    world.network.partition(f"c{old.id}", f"c{new.id}")
    await transfer(world, new.id)
    assert [notice.successor_takes_requests for notice in told.sent] == [False]
