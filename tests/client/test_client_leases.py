"""Leases and conditions in the client library: what it relies on, for how long, and what it says of
outcomes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_world import World, refuses, simulate
from scripted_broker import Scripted
from test_async_client import client_of

import raftlog
from raftlog import errors
from raftlog.errors import ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc


class Keeper(Scripted):
    """Keeps every lease alive, but for what a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 0
        self.generations: set[int] = set()
        self.silent = self.gone = False

    def __call__(self, request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        if request.write.HasField("keep_lease_alive"):
            if self.silent:
                return None
            if self.gone:
                gone = refuses(ErrorCode.RESOURCE_NOT_FOUND)(request.write)
                return pb.BrokerResponse(write=gone)
            self.kept += 1
            self.generations.add(request.write.keep_lease_alive.generation)
            kept = rpc.KeepLeaseAliveResponse(ttl_ms=10_000)
            return pb.BrokerResponse(write=rpc.ControllerResponse(keep_lease_alive=kept))
        return super().__call__(request)


def test_a_lease_is_kept_alive_until_it_is_revoked() -> None:
    async def test(world: World) -> None:
        broker = Keeper()
        await world.broker("a", broker)
        async with client_of(world) as client:
            async with await client.leases.grant(10.0) as lease:
                await asyncio.sleep(100)
                assert lease.is_held
                assert 30 < broker.kept < 50
            assert (lease.is_held, lease.why_lost) == (False, "revoked")
            revoke = broker.writes[-1].revoke_lease
            assert revoke.lease_id == lease.id
            # In another generation of the log the id may be another lease's.
            assert revoke.HasField("generation")
            assert client.token is not None
            assert broker.generations == {revoke.generation} == {client.token.generation}
            before = broker.kept
            await asyncio.sleep(50)
            assert broker.kept == before

    simulate(test)


def test_it_is_lost_before_the_cluster_can_have_ended_it() -> None:
    """Three quarters of its time after the last confirmed request was sent."""

    async def test(world: World) -> None:
        broker = Keeper()
        await world.broker("a", broker)
        async with client_of(world) as client:
            lease = await client.leases.grant(10.0)
            await asyncio.sleep(20)
            broker.silent, begun = True, world.loop.time()
            assert not await lease.wait_lost(4.0)
            assert await lease.wait_lost()
            assert 4.9 < world.loop.time() - begun <= 7.6
            assert not lease.is_held
            assert "nobody has confirmed it for 7.5 s" in lease.why_lost
            # It does not come back.
            broker.silent = False
            await asyncio.sleep(20)
            assert not lease.is_held

    simulate(test)


def test_one_that_has_ended_is_lost_with_the_answer() -> None:
    async def test(world: World) -> None:
        broker = Keeper()
        await world.broker("a", broker)
        async with client_of(world) as client:
            lease = await client.leases.grant(10.0)
            broker.gone = True
            assert await lease.wait_lost(3.0)
            assert not lease.is_held
            await lease.revoke()  # no error

    simulate(test)


def test_its_time_counts_from_when_the_request_was_sent() -> None:
    async def test(world: World) -> None:
        broker = Keeper()
        server = await world.broker("a", broker)
        async with client_of(world) as client:
            await client.topics.create("t")  # the session is open
            held: list[pb.BrokerRequest] = []
            server.answer = held.append
            begun = world.loop.time()
            granting = asyncio.ensure_future(client.leases.grant(4.0))
            await asyncio.sleep(2.5)
            server.answer = broker
            for request in held[:1]:
                response = broker(request)
                assert response is not None
                response.correlation_id = request.correlation_id
                server.links[0].send(response)
            lease = await granting
            broker.silent = True
            assert lease.is_held
            await lease.wait_lost()
            assert world.loop.time() - begun == pytest.approx(3.0, abs=0.01)

    simulate(test)


def test_a_condition_on_an_offset_is_refused_for_good_also_on_a_retry() -> None:
    async def test(world: World) -> None:
        broker = Scripted()
        server = await world.broker("a", broker)
        field, dropped = "alterations[1].expected_offset", 0

        def answer(request: pb.BrokerRequest) -> Any:
            nonlocal dropped
            if not request.write.HasField("alter_key_values"):
                return broker(request)
            if not dropped:
                dropped += 1
                asyncio.get_running_loop().call_soon(server.hang_up)
                return None
            error = common_pb2.Error(error_code=ErrorCode.INVALID_UPDATE_VERSION, field=field)
            return pb.BrokerResponse(write=rpc.ControllerResponse(error=error))

        server.answer = answer
        async with client_of(world) as client:
            changes: list[raftlog.Put | raftlog.Delete] = [
                raftlog.Put("a"),
                raftlog.Put("b", expected=7),
            ]
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)
            # The key may be deleted, and the attempt that is on its way finds it absent.
            dropped, changes[1] = 0, raftlog.Put("b", expected=raftlog.ABSENT)
            with pytest.raises(errors.UnknownOutcomeError):
                await client.kv.alter(*changes)
            dropped, field = 0, "alterations[1].expected_create_offset"
            changes[1] = raftlog.Delete("b", expected_create=7)
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)
            # Generations grow.
            dropped, field = 0, "alterations[1].expected_generation"
            changes[1] = raftlog.Delete("b", expected_create=raftlog.ABSENT, generation=0)
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)

    simulate(test)
