"""Requests for an id: carries out what an :class:`IdSeeker` decides, before the broker proper is
made (which has an id from the start).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import structlog

from broker.registration.identity import Ask, IdSeeker
from broker.registration.lifecycle import Exit
from broker.registration.registration_request import registration_request
from broker.settings import BrokerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.clock import NEVER
from raftlog.errors import ApiError
from raftlog.metadata.entities import Process
from raftlog.transport.api import ServerTransport
from raftlog.wire.controller.v1 import controller_pb2

log = structlog.get_logger(__name__)

ASK_TIMEOUT_S = 2.0


async def seek_id(
    settings: BrokerSettings,
    transport: ServerTransport,
    *,
    process: Process,
    incarnation_id: str,
    rng: random.Random,
    stopping: asyncio.Event,
    on_wait: Callable[[str], None] = lambda _: None,
) -> BrokerSettings | Exit:
    """Register this process without an id; return the settings with its new id, or why there is
    none.

    Raises ConfigError.

    The port is bound meanwhile: a process that cannot listen, because another broker does, must not
    get an id. The settings name the port that was bound, so that the broker listens where it was
    registered. ``on_wait`` is called with the reason why there is no id yet.
    """
    loop = asyncio.get_running_loop()
    listener = await transport.listen(settings.listen, {}, name=settings.listener_name)
    bound_port = listener.address.rpartition(":")[2]
    client = ControllerClient(transport, settings.controllers, rng=rng)
    seeker = IdSeeker(
        timeout_ms=settings.lifecycle.registration_timeout_ms,
        retry_backoff_min_ms=settings.lifecycle.retry_backoff_min_ms,
        rng=rng,
        now=loop.time(),
    )
    body = registration_request(settings, process, incarnation_id, [listener.address])
    body.id_wanted.force_generation = settings.id_generation_force
    try:
        while seeker.result is None:
            ask = seeker.poll(loop.time())
            if ask is not None:
                await _ask(client, settings.cluster_id, body, ask, seeker)
                on_wait(seeker.waits_for)
            if stopping.is_set():
                seeker.stop()
            elif seeker.next_deadline != NEVER:
                await _pause(stopping, seeker.next_deadline - loop.time())
    finally:
        client.close()
    # If this is cancelled, the listener closes with its transport.
    await listener.close()
    given = seeker.result
    if isinstance(given, Exit):
        return given
    log.info("given a broker id", broker=given.broker_id, source=given.source, why=given.why)
    listen = f"{settings.listen.rpartition(':')[0]}:{bound_port}"
    return replace(settings, broker_id=given.broker_id, listen=listen)


async def _ask(
    client: ControllerClient,
    cluster_id: str,
    body: controller_pb2.RegisterBrokerRequest,
    ask: Ask,
    seeker: IdSeeker,
) -> None:
    body.id_wanted.asking_for_ms = ask.asking_for_ms
    request = controller_pb2.ControllerRequest(cluster_id=cluster_id)
    request.register_broker.CopyFrom(body)
    remaining_s: float | None = None
    try:
        response = await client.send(request, ASK_TIMEOUT_S)
        if response.HasField("awaited_id"):
            remaining_s = response.awaited_id.remaining_ms / 1000
        reply = require_success(response).register_broker
    except ApiError as error:
        # Once for each new reason: a broker that waits for a session to end asks every second.
        if str(error) != seeker.last_error:
            log.warning("no broker id yet", error=str(error), remaining_s=remaining_s)
        seeker.failed(error, asyncio.get_running_loop().time(), awaited_s=remaining_s)
        return
    source = controller_pb2.BrokerIdSource.Name(reply.id_source).removeprefix("BROKER_ID_").lower()
    seeker.answered(reply.broker_id, source, reply.id_reason)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
