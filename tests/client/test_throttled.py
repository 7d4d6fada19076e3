"""A server that refuses for want of room says when to come again, and no client comes before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_world import World, create, simulate
from data_world import TOPIC, DataWorld, simulate_data
from scenarios import scenario
from test_session import Controller, executed

from raftlog.client.requests import THROTTLE_MAX_S, pause_after
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

WAIT_MS = 3_000
"""Longer than any back-off of the clients' own."""


def throttled(request: Any) -> pb.ControllerResponse:
    error = common_pb2.Error(
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_time_ms=WAIT_MS
    )
    return pb.ControllerResponse(error=error)


@scenario(simulate)
async def test_a_session_waits_as_long_as_it_is_told(world: World) -> None:
    controller = Controller(throttled, throttled, executed)
    await world.controller("a", controller)
    client = world.controller_client("a")
    begun = world.loop.time()
    await client.session().write(create(), timeout_s=20)
    assert len(controller.writes) == 3
    assert WAIT_MS / 500 <= world.loop.time() - begun < WAIT_MS / 500 + 0.5
    client.close()


@scenario(simulate)
async def test_but_not_beyond_the_deadline_of_the_call(world: World) -> None:
    controller = Controller(throttled)
    await world.controller("a", controller)
    client = world.controller_client("a")
    begun = world.loop.time()
    with pytest.raises(ApiError) as refused:
        await client.session().write(create(), timeout_s=2)
    assert (refused.value.code, refused.value.outcome_unknown) == (
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        False,
    )
    assert len(controller.writes) == 1
    assert world.loop.time() - begun < 2.0
    client.close()


@scenario(simulate_data)
async def test_a_producer_does_and_gives_up_at_the_deadline_of_a_record(world: DataWorld) -> None:
    producer = world.producer()
    await producer.send(TOPIC, b"0", partition=0)
    (broker,) = [one for one in world.brokers.values() if one.id == world.logs[0].leader]
    before = len(world.requests(broker.id, "produce"))
    broker.throttle["produce"] = [WAIT_MS]
    begun = asyncio.get_running_loop().time()
    await producer.send(TOPIC, b"1", partition=0)
    took_s = asyncio.get_running_loop().time() - begun
    assert WAIT_MS / 1000 <= took_s < WAIT_MS / 1000 + 0.5
    assert len(world.requests(broker.id, "produce")) == before + 2
    broker.throttle["produce"] = [100 * WAIT_MS]
    begun = asyncio.get_running_loop().time()
    with pytest.raises(ApiError) as late:
        await producer.send(TOPIC, b"2", partition=0)
    assert late.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert asyncio.get_running_loop().time() - begun < 31
    producer.close()


@scenario(simulate_data)
async def test_so_do_a_consumer_and_the_metadata_of_both(world: DataWorld) -> None:
    for broker in world.brokers.values():
        broker.throttle = {"metadata": [WAIT_MS]}
    producer = world.producer()
    begun = asyncio.get_running_loop().time()
    await producer.send(TOPIC, b"0", partition=0)
    assert asyncio.get_running_loop().time() - begun >= WAIT_MS / 1000
    for broker in world.brokers.values():
        broker.throttle = {"fetch": [WAIT_MS]}
    consumer = world.consumer()
    consumer.assign(TOPIC, 0)
    begun = asyncio.get_running_loop().time()
    while not await consumer.poll(1.0):
        pass
    assert WAIT_MS / 1000 <= asyncio.get_running_loop().time() - begun < WAIT_MS / 1000 + 1.0
    consumer.close()
    producer.close()


def test_no_server_keeps_a_client_waiting_for_weeks() -> None:
    error = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "", throttle_time_ms=2**31 - 1)
    assert pause_after(error, 0.1) == THROTTLE_MAX_S
    assert pause_after(ApiError(ErrorCode.NETWORK_EXCEPTION, ""), 0.1) == 0.1
