"""Three controllers on simulated disks and network: decisions, commits, failover, unknown outcomes."""

import asyncio

import pytest
from quorum_world import World, alter
from scenarios import simulated

from raftlog import batch
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.unary import Caller, answer
from raftlog.wire.controller.v1 import controller_pb2 as pb


@simulated
async def test_error_names_its_field_and_waits_for_confirmed_leadership() -> None:
    world = World()
    node, *_ = await world.settled()
    before = node.service.image
    bad = alter("b", "1")
    bad.resources[0].configs[0].name = "no.such.key"
    response = await world.client.call(bad, raise_refused=False)
    error = response.incremental_alter_configs.results[0].error
    assert error.error_code == ErrorCode.INVALID_CONFIG
    assert error.field == "resources[0].configs[0].name"
    assert not error.outcome_unknown
    assert node.service.image is before
    # Cut off from the others, the deposed leader cannot say even that.
    world.network.isolate(f"c{node.id}")
    world.network.heal(f"c{node.id}", "client")
    stale = asyncio.ensure_future(world.client.call(alter("c", "1"), timeout_s=60))
    await asyncio.sleep(0.4)
    assert not stale.done()


@simulated
async def test_acknowledged_writes_survive_the_death_of_the_active_controller() -> None:
    world = World()
    old = await world.active()
    for i in range(20):
        await world.client.call(alter(f"k{i}", str(i)))
    lost = asyncio.ensure_future(world.client.call(alter("late", "x")))
    await asyncio.sleep(0)
    old.kill()
    with pytest.raises(ApiError) as failure:
        await lost
    assert failure.value.outcome_unknown
    response = await world.client.call(alter("after", "y"))
    assert response.controller_epoch > 1
    new = await world.active()
    assert new is not old
    for i in range(20):
        assert new.service.image.configs[(16, f"k{i}")] == {"match": str(i)}
    old.start()
    await world.until(lambda: len(world.hashes()) == 1 and old.service.image.offset > 20)


@simulated
async def test_stale_controller_does_not_name_itself_as_leader() -> None:
    """A broker epoch beyond this log was assigned by a newer controller: redirected to this one the
    broker would retry in a circle.
    """
    world = World()
    node = await world.active()

    async def beat(epoch: int) -> pb.ControllerResponse:
        request = pb.BrokerHeartbeatRequest(broker_id=7, broker_epoch=epoch)
        asked = pb.ControllerRequest(broker_heartbeat=request)
        return await asyncio.ensure_future(answer(node.service.reception, asked, Caller("a:1")))

    response = await beat(10**9)
    assert response.error.error_code == ErrorCode.NOT_CONTROLLER
    assert response.error.field == "broker_epoch"
    assert (response.leader_id, response.leader_endpoint) == (-1, "")
    response = await beat(1)
    assert response.error.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert response.leader_id == node.id


# --- Exactly-once writes at three simulated controllers that die ---------------------------------


@simulated
async def test_retry_finds_its_write_in_the_tail_inherited_by_the_new_leader() -> None:
    """[Seq 7 is in the uncommitted tail; the client retries, and it is executed twice.]"""
    world = World()
    old = await world.active()
    session = world.client.session()
    await session.write(alter("a", "0"))
    followers = world.others(old)
    writing = asyncio.ensure_future(session.write(alter("a", "1"), timeout_s=30))
    end = old.service.replica.log_end_offset
    while all(node.service.replica.log_end_offset <= end for node in followers):
        await asyncio.sleep(0.00002)
    assert not writing.done()
    assert old.service.node.committed_end <= end
    old.kill()
    response = await writing
    assert response.write.duplicate
    assert response.write.token.offset == end
    new = await world.active()
    chunk = new.service.node.read(0, new.service.node.committed_end, 1 << 20)
    numbers = [(h.sequence, h.base_offset, h.epoch) for h in batch.headers(chunk) if h.sequence]
    assert [number[:2] for number in numbers] == [(1, end - 1), (2, end)]
    assert response.write.token.epoch == numbers[1][2] < new.service.node.controller_epoch
