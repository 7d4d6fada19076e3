"""The broker as a whole: follows the log, keeps its registration alive, serves clients.

A shell around the pure parts. It knows no wall clock and no randomness but what it is given, and
touches the world through the transport and the loop's timers only, so that it runs unchanged in the
simulator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from broker.metadata.follower import FollowerEvents, MetadataFollower
from broker.metadata.read_gate import ReadGate
from broker.metadata.read_lease import ReadLease
from broker.metadata.view import View
from broker.partition.events import BrokerStatusChanged
from broker.partition.unserved import LOG_AHEAD, LOW_SPACE, NO_HIGH_WATERMARK
from broker.registration.lifecycle import Exit, Lifecycle
from broker.registration.registration_client import RegistrationClient
from broker.replication.data_plane import DataPlane
from broker.service.api_versions import ApiVersions
from broker.service.requests import Pending, RequestServer
from broker.service.tracer import BrokerTracer
from broker.service.wiring import make_data_plane
from broker.settings import BrokerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.deadline import NEVER
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.entities import Process, format_hash
from raftlog.metadata.image import Image
from raftlog.plural import counted
from raftlog.storage.partition_api import PartitionStore
from raftlog.transport.api import Acceptors, Conversation, Listener, ServerTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

log = structlog.get_logger(__name__)


_ALSO = {
    NO_HIGH_WATERMARK: "led partitions that wait for a member of their ISR before they can be read",
    LOW_SPACE: "low on space, led partitions that refuse producers",
}


class BrokerService:
    """One broker.

    ``incarnation_id``: a UUID, fresh for each process. Must be made on the event loop.

    ``start`` listens, registers and follows; ``run`` does so and returns when the broker has to
    end; ``stop`` leaves the cluster in order (controlled shutdown) and makes ``run`` return.

    ``store``: its partition replicas, opened and not yet recovered; whoever opened it closes it,
    after this. None: the broker keeps no partitions. ``wall_clock_ms`` stamps the records that it
    is given. ``stopwatch``: seconds that go on within a turn of the loop. ``tracer``: follows it.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        transport: ServerTransport,
        *,
        process: Process,
        incarnation_id: str,
        rng: random.Random,
        store: PartitionStore | None = None,
        wall_clock_ms: Callable[[], int] = lambda: 0,
        stopwatch: Callable[[], float] | None = None,
        tracer: BrokerTracer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._transport = transport
        self._listener: Listener | None = None
        self._closed = False
        self._done: asyncio.Future[Exit] = self._loop.create_future()
        self._tracer = tracer
        self._view = View(
            settings.broker_id,
            max_bytes=settings.image_max_bytes,
            on_moved=tracer.view_moved if tracer is not None else None,
        )
        self._shown: Image | None = None
        self._lifecycle = Lifecycle(
            settings.lifecycle,
            broker_id=settings.broker_id,
            incarnation_id=incarnation_id,
            rng=_split(rng),
            now=self._loop.time(),
        )
        self._lease = ReadLease(lambda: self._lifecycle.epoch, self._lease_wanted)
        # Clients, and so links, of their own: a heartbeat never waits behind a client's write.
        self._registration_client = RegistrationClient(
            settings,
            self._lifecycle,
            self._view,
            self._lease,
            ControllerClient(transport, settings.controllers, rng=_split(rng)),
            process=process,
            incarnation_id=incarnation_id,
            on_heartbeat=self._heard,
            on_exit=self._ended,
        )
        self._writes = ControllerClient(transport, settings.controllers, rng=_split(rng))
        self._follower = MetadataFollower(
            transport,
            settings.controllers,
            self._view,
            FollowerEvents(
                self._moved, self._generation_known, self._generation_changed, self.fail
            ),
            cluster_id=settings.cluster_id,
            broker_id=settings.broker_id,
            broker_epoch=lambda: self._lifecycle.epoch,
            settings=settings.follower,
            rng=_split(rng),
        )
        self.data: DataPlane | None = None
        if store is not None:
            self.data = make_data_plane(
                settings,
                transport,
                store,
                ControllerClient(transport, settings.controllers, rng=_split(rng)),
                broker_status=self._broker_status,
                wall_clock_ms=wall_clock_ms,
                failed=self.fail,
                tracer=tracer,
            )
        gate: ReadGate[Pending] = ReadGate(
            self._view,
            self._lease,
            max_parked=settings.max_parked_reads,
            default_timeout_ms=settings.request_timeout_ms,
            max_timeout_ms=settings.request_timeout_max_ms,
        )
        self.requests = RequestServer(
            self._view,
            gate,
            self._writes,
            cluster_id=settings.cluster_id,
            request_timeout_ms=settings.request_timeout_ms,
            why_fenced=self.why_fenced if tracer is None else self._check_fencing,
            describe=self.describe,
            versions=ApiVersions(self._view, settings.features),
            data=self.data,
            request_timeout_max_ms=settings.request_timeout_max_ms,
            stopwatch=stopwatch,
        )

    # --- from outside ----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """host:port that it listens on; empty before ``start``."""
        return self._listener.address if self._listener is not None else ""

    @property
    def image(self) -> Image:
        """The newest image."""
        return self._view.tip

    @property
    def settings(self) -> BrokerSettings:
        """What it was made with."""
        return self._settings

    @property
    def view(self) -> View:
        """What it can show: to look at, not to move."""
        return self._view

    @property
    def lifecycle(self) -> Lifecycle:
        """Its registration and its session: to look at, not to move."""
        return self._lifecycle

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    @property
    def running(self) -> bool:
        """False once it was closed, or has ended by itself."""
        return not self._closed and not self._done.done()

    @property
    def fatal(self) -> BaseException | None:
        """The error that it has ended with; None if it runs, or ended in order."""
        return self._done.exception() if self._done.done() else None

    @property
    def exit(self) -> Exit | None:
        """Why this broker has ended; None while it has not."""
        return self._lifecycle.exit

    async def start(
        self, *, extra_handlers: Sequence[Any] = (), guard: Callable[[Acceptors], Acceptors] = dict
    ) -> None:
        """Recover, listen, then begin to follow and to register.

        ``guard`` is put in front of the conversations.

        Raises ConfigError if the address can't be bound, CorruptLogError and StorageError for what
        the store holds.
        """
        acceptors: Acceptors = {Conversation.BROKER: self.requests.accept}
        if self.data is not None:
            # Before anybody can reach it: a broker whose replicas are damaged must not be heard of.
            recovered = self.data.recover()
            acceptors[Conversation.REPLICA_FETCH] = self.data.accept
        self._listener = await self._transport.listen(
            self._settings.listen, guard(acceptors), extra_handlers=extra_handlers
        )
        if self.data is not None:
            # Said once it is certain that there will be a broker: one that cannot listen says that
            # alone.
            log.info("partition replicas recovered", broker=self._settings.broker_id, **recovered)
        host, _, port = self._listener.address.rpartition(":")
        self._registration_client.start(
            self._settings.advertised_host or host, self._settings.advertised_port or int(port)
        )
        self._follower.start()

    async def run(self, *, extra_handlers: Sequence[Any] = ()) -> Exit:
        """From start to end; why it ended.

        Raises ConfigError, and FatalError if the log could not be followed.
        """
        try:
            await self.start(extra_handlers=extra_handlers)
            return await self.ended()
        finally:
            await self.close()

    async def ended(self) -> Exit:
        """Wait until the broker has to end. Raises FatalError."""
        return await asyncio.shield(self._done)

    def fail(self, error: FatalError) -> None:
        """End with this error, which ``ended`` raises; the first reason to end counts."""
        if not self._done.done():
            self._done.set_exception(error)

    def stop(self) -> None:
        """Ask for a controlled shutdown; ``ended`` says when it is over, within its timeout."""
        # Before any heartbeat says that it stops: from that one on it may be fenced.
        self._lease.renounce()
        self._lifecycle.stop(self._loop.time())
        self._registration_client.pump()

    async def close(self) -> None:
        """Drop everything at once. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._registration_client.close()
        self._follower.close()
        self.requests.close()
        if self.data is not None:
            self.data.close()
        self._writes.close()
        if self._listener is not None:
            await self._listener.close()

    def why_fenced(self) -> str:
        """Why this broker takes nothing new; empty if it does. For readiness too."""
        if why := self._lifecycle.why_fenced(self._loop.time()):
            return why
        if self._view.lao_above_applied:
            return (
                "a lowest acknowledged offset above what is applied here was told: this broker is"
                " not counted"
            )
        return ""

    def _check_fencing(self) -> str:
        """As ``why_fenced``, for the tracer."""
        why = self.why_fenced()
        if self._tracer is not None:
            self._tracer.fencing_checked(why)
        return why

    def ready(self) -> tuple[bool, str]:
        """Whether it serves, and what it is or why not; also what it cannot do of what the metadata
        says that it does.

        Not ready with partitions that it should lead and does not: who restarts brokers one by one
        must not go on. What passes by itself, or leaves reads, is only said.
        """
        why = self.why_fenced()
        if why or self.data is None or not self.data.recovered:
            return not why, why or f"serving up to offset {self._view.applied}"
        counts, example = self.data.unserved()
        if counts[LOG_AHEAD]:
            return (
                False,
                (
                    f"{counted(counts[LOG_AHEAD], 'partition')} not led, though the metadata says"
                    f" so: {example}"
                ),
            )
        also = "".join(
            f"; {text}: {counts[reason]}" for reason, text in _ALSO.items() if counts[reason]
        )
        return True, f"serving up to offset {self._view.applied}{also}"

    def status(self) -> dict[str, object]:
        """What a person looks at first."""
        view, lifecycle = self._view, self._lifecycle
        return {
            "state": lifecycle.state.name.lower(),
            "broker epoch": lifecycle.epoch,
            "controller": self._follower.controller_id,
            "controller epoch": view.controller_epoch,
            "applied": view.applied,
            "lowest acknowledged offset": view.known_lao,
            "read lease ms": self._lease.remaining_ms(self._loop.time()),
            "fenced because": self.why_fenced(),
            "heartbeats": (
                "in force" if lifecycle.heartbeats else "off (broker.heartbeat.version is 0)"
            ),
            "timeouts": self._registration_client.misfit or "fit the controllers'",
        }

    def describe(self) -> broker_pb2.DescribeBrokerResponse:
        """This broker about itself."""
        view, lifecycle = self._view, self._lifecycle
        return broker_pb2.DescribeBrokerResponse(
            broker_id=self._settings.broker_id,
            broker_epoch=lifecycle.epoch,
            state=controller_pb2.BrokerLifecycleState.Name(lifecycle.state),
            controller_id=self._follower.controller_id,
            controller_epoch=view.controller_epoch,
            generation=view.generation,
            high_watermark=view.high_watermark,
            applied_offset=view.applied,
            lowest_acknowledged_offset=view.known_lao,
            state_hash=format_hash(view.tip.state_hash),
            self_fenced=lifecycle.self_fenced(self._loop.time()) or view.lao_above_applied,
            image_bytes_kept=view.bytes_kept,
            read_lease_ms=self._lease.remaining_ms(self._loop.time()),
        )

    # --- what its parts report -------------------------------------------------------------------

    def _moved(self) -> None:
        view = self._view
        self._lifecycle.metadata_applied(
            view.applied, view.registration, self._loop.time(), heartbeats=view.heartbeats
        )
        self.requests.released()
        self._registration_client.pump()
        if self.data is not None and self._view.tip is not self._shown:
            self._shown = self._view.tip
            self.data.image_moved(self._shown, self._view.changes.take())

    def _broker_status(self) -> BrokerStatusChanged:
        """What this broker knows of itself: asked before each step of the data plane."""
        why = self.why_fenced()
        serve_until = self._lifecycle.serve_until if not why else -NEVER
        return BrokerStatusChanged(
            self._lifecycle.epoch, serve_until, why, self._lifecycle.shown_from
        )

    def _lease_wanted(self) -> None:
        self._lifecycle.hasten(self._loop.time())
        self._registration_client.pump()

    def _heard(self) -> None:
        """A heartbeat was answered: it may have told a new LAO, and so made room in the view, or
        brought a lease.
        """
        self.requests.released()
        self._follower.resume()

    def _generation_known(self) -> None:
        self._lifecycle.generation_seen(self._view.generation, self._loop.time())
        self._registration_client.pump()

    def _generation_changed(self) -> None:
        self._lifecycle.generation_seen(self._view.generation, self._loop.time())
        message = f"the log was replaced by generation {self._view.generation}"
        self.requests.refuse_parked(ApiError(ErrorCode.INCONSISTENT_GENERATION, message))
        if self.data is not None:
            # Before it is registered again: the old log's image is as new as any, and says nothing
            # about this one.
            self._shown = self._view.tip
            self.data.image_moved(self._shown, self._view.changes.take())
        self._registration_client.pump()

    def _ended(self, reason: Exit) -> None:
        log.info("the broker ends", broker=self._settings.broker_id, reason=reason.reason)
        if not self._done.done():
            self._done.set_result(reason)


def _split(rng: random.Random) -> random.Random:
    """A generator of its own for each part: a change in one does not reshuffle the others."""
    return random.Random(rng.getrandbits(64))
