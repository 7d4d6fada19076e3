"""Leases for strict reads at a whole controller: the answer waits for a round, unregistering waits
for the lease.
"""

from __future__ import annotations

import asyncio

import pytest
from scenarios import simulated
from test_controller_quorum import Node, World
from test_sessions_in_service import SESSION_S, FakeBroker, unfenced_broker

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb

UNREGISTER = pb.UnregisterBrokerRequest(broker_id=7)


def ask(broker: FakeBroker, node: Node, timeout_s: float = 5.0) -> asyncio.Future:
    service = node.service
    request = pb.BrokerHeartbeatRequest(
        broker_id=7,
        broker_epoch=broker.epoch,
        current_metadata_offset=service.node.committed_end - 1,
        controller_epoch=service.node.controller_epoch,
        target_state=pb.ACTIVE,
        told_lowest_acknowledged_offset=service.node.lowest_acknowledged_offset,
        want_read_lease=True,
    )
    return broker.client.send(pb.ControllerRequest(broker_heartbeat=request), timeout_s)


def others(world: World, node: Node) -> list[str]:
    return [f"c{other.id}" for other in world.nodes if other is not node]


@simulated
async def test_controller_that_is_cut_off_gives_no_lease() -> None:
    """[a deposed controller that answers heartbeats extends leases that the new one knows nothing
    of]
    """
    world, node, broker = await unfenced_broker()
    reply = (await ask(broker, node)).broker_heartbeat
    assert reply.read_lease_ms == 0.75 * SESSION_S * 1000
    for other in others(world, node):
        world.network.partition(f"c{node.id}", other)
    answered = ask(broker, node, timeout_s=30.0)
    while node.service.node.decider is not None:
        assert not answered.done()
        await asyncio.sleep(0.01)
    # Given by the one that the others have elected.
    assert (await answered).controller_epoch == 2


@simulated
async def test_unregistering_a_broker_that_reads_strictly_waits_for_its_lease() -> None:
    world, node, broker = await unfenced_broker()
    loop = asyncio.get_running_loop()
    await asyncio.sleep(SESSION_S - 1)
    assert (await ask(broker, node)).broker_heartbeat.read_lease_ms > 0
    granted_at = loop.time()
    unregistered = asyncio.ensure_future(world.client.call(UNREGISTER, timeout_s=30.0))
    while not unregistered.done():
        reply = (await ask(broker, node)).broker_heartbeat
        assert reply.read_lease_ms == 0 or loop.time() < granted_at + 0.1
        await asyncio.sleep(0.3)
    assert (await unregistered).write.token.offset > 0
    assert SESSION_S - 0.1 <= loop.time() - granted_at <= SESSION_S + 1.0
    assert 7 not in node.service.image.brokers


@simulated
async def test_unregistration_that_waits_for_a_lease_times_out_without_effect() -> None:
    world, node, broker = await unfenced_broker()
    await ask(broker, node)
    with pytest.raises(ApiError) as error:
        await world.client.call(UNREGISTER, timeout_s=1.0)
    assert (error.value.code, error.value.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    await asyncio.sleep(2.0)
    assert 7 in node.service.image.brokers


@simulated
async def test_unregistration_that_waits_for_a_lease_moves_to_the_next_controller() -> None:
    world, node, broker = await unfenced_broker()
    await ask(broker, node)
    begun = asyncio.get_running_loop().time()
    unregistered = asyncio.ensure_future(world.client.call(UNREGISTER, timeout_s=60.0))
    await asyncio.sleep(1.0)
    assert not unregistered.done()
    node.service.replica.resign("test")
    await unregistered
    # The next one knows of no lease, and waits all the same: for a session timeout from its claim
    # on.
    assert asyncio.get_running_loop().time() - begun >= SESSION_S
