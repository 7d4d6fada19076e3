"""A broker's id (KIP-426), as the broker determines it: the configured id, else the directory's,
else the one that the controller assigns.

:func:`known_id` needs no controller. If it finds no id, :func:`seek_id` carries out what an
:class:`IdSeeker` decides. The rest of the broker is made only after that, and so has an id from the
start.

Why: docs/decisions/019-broker-ids.md
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from broker.registration.lifecycle import HOPELESS, Exit
from broker.registration.registration_client import registration_request
from broker.settings import BrokerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.clock import NEVER
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.entities import Process
from raftlog.node.storage.api import NO_NODE_ID
from raftlog.transport.api import ServerTransport, TransportLimits
from raftlog.transport.links import Backoff
from raftlog.wire.controller.v1 import controller_pb2

RETRY_BACKOFF_MAX_MS = 1000


def known_id(configured: int, stored: int, directory: object) -> int:
    """Return the configured id, or the one in the directory's meta.json, or NO_NODE_ID.

    Raises ConfigError if the two differ.
    """
    if NO_NODE_ID not in (configured, stored) and configured != stored:
        raise ConfigError(
            f"node.id is {configured}, but data directory {directory} belongs to node {stored} (its"
            f" meta.json): set node.id to {stored} or leave it out, or give broker {configured}"
            " another directory"
        )
    return stored if configured == NO_NODE_ID else configured


@dataclass(frozen=True, slots=True)
class Ask:
    """Register without an id. Safe to repeat: the incarnation id makes it the same registration."""

    asking_for_ms: int


@dataclass(frozen=True, slots=True)
class AssignedId:
    """The id under which this broker is now registered, and why.

    It must be stored in meta.json before any other use.
    """

    broker_id: int
    source: str
    why: str


class IdSeeker:
    """Requests an id from the active controller until it assigns one, refuses, or the timeout
    passes.

    The timeout restarts while the controller asks the broker to wait.
    """

    def __init__(
        self, *, timeout_ms: int, retry_backoff_min_ms: int, rng: random.Random, now: float
    ) -> None:
        self._timeout_ms = timeout_ms
        self._until = now + timeout_ms / 1000
        self._began = now
        self._next_at = now
        self.last_error = "the controller has not answered"
        """Why there is no id yet."""
        self._awaited_s: float | None = None
        limits = TransportLimits(
            reconnect_backoff_min_ms=retry_backoff_min_ms,
            reconnect_backoff_max_ms=max(retry_backoff_min_ms, RETRY_BACKOFF_MAX_MS),
        )
        self._backoff = Backoff(limits, rng)
        self.result: AssignedId | Exit | None = None

    @property
    def next_deadline(self) -> float:
        """Time at which to poll again."""
        return NEVER if self.result is not None else min(self._until, self._next_at)

    def poll(self, now: float) -> Ask | None:
        """Return the request to send now, or None if none is due."""
        if self.result is None and now >= self._until:
            self._leave(
                f"no broker id was assigned within {self._timeout_ms / 1000:g} s"
                f" (initial.broker.registration.timeout.ms): {self.last_error}"
            )
        if self.result is not None or now < self._next_at:
            return None
        return Ask(round((now - self._began) * 1000))

    def answered(self, broker_id: int, source: str, why: str) -> None:
        """Record that the controller has registered this process under an id."""
        if self.result is None:
            self.result = AssignedId(broker_id, source, why)

    @property
    def waits_for(self) -> str:
        """Why there is no id yet and, if known, how much longer that may last."""
        left = (
            ""
            if self._awaited_s is None
            else f"; at most {self._awaited_s:.0f} s more, unless that broker is heard from"
        )
        return self.last_error + left

    def failed(self, error: ApiError, now: float, *, awaited_s: float | None = None) -> None:
        """Record a refusal or an unknown outcome; retry, unless a retry would be refused again.

        ``awaited_s``: the wait that the controller requested, in seconds, or None.
        """
        self.last_error, self._awaited_s = str(error), awaited_s
        self._next_at = now + self._backoff.next_s()
        if awaited_s is not None:
            # The active controller requests the wait: that is not a failure to register.
            self._until = now + self._timeout_ms / 1000
        if error.outcome_unknown or error.code not in {*HOPELESS, ErrorCode.POLICY_VIOLATION}:
            return
        of_old = error.code is ErrorCode.INVALID_REQUEST and error.field == "broker_id"
        hint = (
            "; the controller's build assigns no ids: upgrade it, or set node.id" if of_old else ""
        )
        self._leave(f"the controller refuses to assign a broker id: {error}{hint}")

    def stop(self) -> None:
        """Stop requesting an id, as the process is to stop."""
        if self.result is None:
            self.result = Exit("stopped before it had an id", clean=True)

    def _leave(self, reason: str) -> None:
        self.result = Exit(reason, clean=False)


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
    previous_broker_epoch: int = -1,
    on_wait: Callable[[str], None] = lambda _: None,
) -> BrokerSettings | Exit:
    """Register this process without an id; return the settings with its new id, or why it got none.

    Raises ConfigError. The port is bound first: a process that cannot listen there, because another
    broker does, must not get an id. The returned settings name the bound port, so that the broker
    listens where it was registered. ``on_wait``: called with the reason why there is no id yet.
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
    body = registration_request(
        settings, process, incarnation_id, [listener.address], previous_broker_epoch
    )
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
    assigned = seeker.result
    if isinstance(assigned, Exit):
        return assigned
    log.info(
        "broker id assigned", broker=assigned.broker_id, source=assigned.source, why=assigned.why
    )
    listen = f"{settings.listen.rpartition(':')[0]}:{bound_port}"
    return replace(settings, broker_id=assigned.broker_id, listen=listen)


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
        # Logged once for each new reason: a broker that waits for a session to end asks every
        # second.
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
