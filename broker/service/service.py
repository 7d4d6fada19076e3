"""The broker as a whole: it follows the log, keeps its registration alive, and serves clients.

A shell around the pure parts. It gets wall clock and randomness as arguments, and affects the
outside world only through the transport and the loop's timers, so that it runs unchanged in the
simulator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import structlog

from broker.metadata.follower import SILENT, FollowerEvents, MetadataFollower
from broker.metadata.read_gate import ReadGate, ReadLease
from broker.metadata.view import View
from broker.partition.host import PartitionSettings
from broker.partition.manager import Partitions
from broker.registration.lifecycle import Exit, Lifecycle
from broker.registration.registration_client import RegistrationClient
from broker.replication.data_plane import DataPlane
from broker.service.api_versions import ApiVersions
from broker.service.report import TICK_S, BrokerLife, BrokerReport, BrokerTracer, Fencing, Parts
from broker.service.requests import Pending, RequestServer
from broker.service.watches import Watches
from broker.settings import BrokerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.endpoints import KnownEndpoints
from raftlog.clock import QuorumTime
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.identity import CERTIFICATES_ALONE, Access
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Process, Voters
from raftlog.metadata.image import Image
from raftlog.node.observability.figures import RequestFigures
from raftlog.node.observability.journal import Journal
from raftlog.node.security.client_rules import ClientRules
from raftlog.node.storage.partition_api import PartitionStore
from raftlog.transport.api import Acceptors, Conversation, Listener, ServerTransport


class Notifications:
    """The callbacks by which the parts of a broker affect each other.

    The parts take these methods as callbacks when they are made; ``connect`` then receives the
    parts, before any of them starts. ``now``: seconds of the loop's clock.
    """

    _follower: MetadataFollower
    _registration: RegistrationClient
    _requests: RequestServer
    _watches: Watches
    _data: DataPlane | None

    def __init__(
        self,
        view: View,
        lifecycle: Lifecycle,
        controllers: KnownEndpoints,
        now: Callable[[], float],
        bind_generation: Callable[[int], None],
    ) -> None:
        self._view, self._lifecycle, self._now = view, lifecycle, now
        self._bind_generation = bind_generation
        self._controllers = controllers
        self._voters: Voters | None = None
        """The voters last passed to ``controllers``."""
        self._shown: Image | None = None
        """The image last passed to the partition replicas."""
        self._seen = self._others_seen = -1
        """``moves`` and ``other_moves`` of the view when its newest image was last processed."""

    def connect(
        self,
        follower: MetadataFollower,
        registration: RegistrationClient,
        requests: RequestServer,
        watches: Watches,
        data: DataPlane | None,
    ) -> None:
        """Connect the parts, once all are made."""
        self._follower, self._registration = follower, registration
        self._requests, self._watches, self._data = requests, watches, data

    def moved(self) -> None:
        """Process a change of the view: it shows more, or has received LAO and the controller
        epoch.
        """
        view = self._view
        if view.moves == self._seen:
            # Only LAO has moved: the registration does not depend on it. Watches at LAO show more.
            self._requests.released()
            self._watches.moved()
            return
        self._seen = view.moves
        # Config values alone change nothing that the registration depends on.
        others = view.other_moves
        looks = others != self._others_seen or not self._lifecycle.passed(view.applied)
        if looks:
            self._others_seen = others
            self._learn_voters()
            self._lifecycle.metadata_applied(
                view.applied, view.registration, self._now(), heartbeats=view.heartbeats
            )
        self._requests.released()
        if looks:
            self._registration.pump()
        if self._data is not None and view.tip is not self._shown:
            self._show_image()
        self._watches.moved()

    def _learn_voters(self) -> None:
        """Pass on the voters, so that the quorum can be found when all configured controllers are
        gone.
        """
        voters = self._view.voters
        if voters is not None and voters is not self._voters:
            self._voters = voters
            self._controllers.learn(one.endpoint for one in voters.voters)

    def lease_wanted(self) -> None:
        """Send the next heartbeat at once, as a strict read is waiting."""
        self._lifecycle.heartbeat_soon(self._now())
        self._registration.pump()

    def heartbeat_answered(self) -> None:
        """Process an answered heartbeat, which may have granted a lease, or sent an LAO that makes
        room.
        """
        self._requests.released()
        self._follower.resume()
        self._watches.moved()
        self._report_leaderless()

    def generation_known(self) -> None:
        """Record that the generation of the log is known; its records are applied from now on."""
        self._bind_generation(self._view.generation)
        self._lifecycle.generation_seen(self._view.generation, self._now())
        self._registration.pump()

    def generation_changed(self) -> None:
        """Process the replacement of the log by one that descends from it, which has emptied the
        view.
        """
        self._bind_generation(self._view.generation)
        self._lifecycle.generation_seen(self._view.generation, self._now())
        self._replaced(f"the log was replaced by generation {self._view.generation}")

    def log_diverged(self) -> None:
        """Handle a log that lacks records that were applied here, which has emptied the view."""
        self._lifecycle.log_diverged(self._now())
        self._replaced("the log lost records that this broker had applied")

    def _replaced(self, message: str) -> None:
        self._requests.refuse_parked(ApiError(ErrorCode.INCONSISTENT_GENERATION, message))
        self._watches.log_replaced(message)
        # Before it registers again: the old log's image looks as new as any, but does not describe
        # this log.
        self._show_image()
        self._registration.pump()

    def _show_image(self) -> None:
        """Let partition replicas take their roles from the newest image."""
        if self._data is not None:
            self._shown = self._view.tip
            self._data.image_moved(self._shown, self._view.changes.take())
            self._report_leaderless()

    def _report_leaderless(self) -> None:
        """Send the next heartbeat at once if there are leaderless partitions to report."""
        if self._data is not None and self._data.has_unreported:
            self.heartbeat_now()

    def heartbeat_now(self) -> None:
        """Send the next heartbeat at once, as the controller must know the broker's new state."""
        self._lifecycle.heartbeat_soon(self._now())
        self._registration.pump()


log = structlog.get_logger(__name__)


class Serving(NamedTuple):
    """A listener's services, and the ``access`` rules for its callers; for
    ``ServerTransport.listen``.
    """

    acceptors: Acceptors
    extra_handlers: Sequence[Any] = ()
    access: Access = CERTIFICATES_ALONE


class BrokerService:
    """One broker. Must be made on the event loop.

    ``start`` listens, registers and follows; ``run`` does so and returns when the broker has to
    stop; ``stop`` leaves the cluster in order (controlled shutdown) and makes ``run`` return.

    ``incarnation_id``: a UUID, new for each process. ``store``: its partition replicas, opened but
    not yet recovered; the caller closes it after the broker; None if the broker stores no
    partitions. ``wall_clock_ms``: its own clock; adjusted to the controllers' time, it stamps the
    records that the broker appends. ``stopwatch``: seconds that advance within a turn of the loop.
    ``tracer``: observes the broker. ``client_rules``: the identities of its clients, and their
    permissions; None if every client may do everything. ``request_figures``: counters of answers,
    or None for new ones. ``journal``: receives the events that operators may look up later.
    ``generation``: generation of the log to which the broker's directory belongs.
    ``bind_generation``: durably records another generation in the directory, or raises
    StorageError. ``previous_broker_epoch``: broker epoch under which the directory was last closed
    in order; -1 if it was not.
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
        client_rules: ClientRules | None = None,
        request_figures: RequestFigures | None = None,
        journal: Journal | None = None,
        generation: int = NO_GENERATION,
        bind_generation: Callable[[int], None] = lambda generation: None,
        previous_broker_epoch: int = -1,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._transport = transport
        self._listeners: list[Listener] = []
        self._closed = False
        self._done: asyncio.Future[Exit] = self._loop.create_future()
        self._view = View(
            settings.broker_id,
            max_bytes=settings.image_max_bytes,
            generation=generation,
            on_moved=tracer.view_moved if tracer is not None else None,
        )
        self._lifecycle = Lifecycle(
            settings.lifecycle,
            broker_id=settings.broker_id,
            incarnation_id=incarnation_id,
            rng=_split(rng),
            now=self._loop.time(),
            previous_epoch=previous_broker_epoch,
        )
        controllers = KnownEndpoints(settings.controllers)
        # Separate clients, and so links: a heartbeat never waits for a client's write.
        to_register, self._writes, for_data = self._controller_clients = [
            ControllerClient(transport, controllers, rng=_split(rng)) for _ in range(3)
        ]
        self._fencing = Fencing(self._view, self._lifecycle, self.now, tracer)
        self._notifications = notifications = Notifications(
            self._view, self._lifecycle, controllers, self.now, bind_generation
        )
        self._lease = ReadLease(lambda: self._lifecycle.epoch, notifications.lease_wanted)
        self.time = QuorumTime(wall_clock_ms, self._loop.time)
        """The time as announced by the active controller."""
        self._registration_client = RegistrationClient(
            settings,
            self._lifecycle,
            self._view,
            self._lease,
            to_register,
            process=process,
            incarnation_id=incarnation_id,
            on_heartbeat=notifications.heartbeat_answered,
            on_exit=self._ended,
            time=self.time,
            replica_logs=lambda: self.data.replica_logs() if self.data is not None else [],
            disk_hangs_ms=lambda: self.data.disk_hangs_ms if self.data is not None else 0,
            low_on_space=lambda: self.data is not None and self.data.space.low,
        )
        self._follower = MetadataFollower(
            transport,
            controllers,
            self._view,
            FollowerEvents(
                notifications.moved,
                notifications.generation_known,
                notifications.generation_changed,
                notifications.log_diverged,
                self.fail,
                self._leave,
            ),
            cluster_id=settings.cluster_id,
            broker_id=settings.broker_id,
            broker_epoch=lambda: self._lifecycle.epoch,
            settings=settings.follower,
            rng=_split(rng),
        )
        self.data: DataPlane | None = None
        if store is not None:
            own = settings.partitions or PartitionSettings(settings.broker_id, settings.cluster_id)
            own = replace(own, broker_id=settings.broker_id, cluster_id=settings.cluster_id)
            self.data = DataPlane(
                settings.replication,
                transport,
                store,
                for_data,
                cluster_id=settings.cluster_id,
                make_replicas=partial(Partitions, own),
                broker_status=self._fencing.status,
                time_ms=self.time.now_ms,
                failed=self.fail,
                disk_changed=notifications.heartbeat_now,
                tracer=tracer,
            )
        parts = Parts(
            self._view,
            self._lifecycle,
            self._lease,
            self._fencing,
            self._follower,
            self._registration_client,
            self.data,
            self.time,
            self.now,
        )
        self.report = BrokerReport(settings.broker_id, parts)
        self.requests = self._request_server(stopwatch, client_rules, request_figures)
        self._life: BrokerLife | None = None
        if journal is not None:
            self._life = BrokerLife(journal, settings.lifecycle, parts)
        self.watches = Watches(
            self._view,
            settings.watch,
            cluster_id=settings.cluster_id,
            why_fenced=self._fencing.why,
            stopwatch=stopwatch,
            client_rules=client_rules,
        )
        notifications.connect(
            self._follower, self._registration_client, self.requests, self.watches, self.data
        )

    def _leave(self, controller: str) -> None:
        """Let no request wait for a controller that the follower has found silent."""
        for client in self._controller_clients:
            client.leave(controller, SILENT)

    def _request_server(
        self,
        stopwatch: Callable[[], float] | None,
        client_rules: ClientRules | None,
        figures: RequestFigures | None,
    ) -> RequestServer:
        settings = self._settings
        gate: ReadGate[Pending] = ReadGate(
            self._view,
            self._lease,
            max_parked=settings.max_parked_reads,
            default_timeout_ms=settings.request_timeout_ms,
            max_timeout_ms=settings.request_timeout_max_ms,
        )
        return RequestServer(
            self._view,
            gate,
            self._writes,
            cluster_id=settings.cluster_id,
            request_timeout_ms=settings.request_timeout_ms,
            request_timeout_max_ms=settings.request_timeout_max_ms,
            versions=ApiVersions(self._view, settings.features),
            data=self.data,
            why_fenced=self._fencing.why_for_client,
            describe=self.report.describe,
            stopwatch=stopwatch,
            client_rules=client_rules,
            figures=figures,
        )

    # --- from outside ----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """host:port at which the broker listens for brokers; "" before ``start``."""
        return self._listeners[0].address if self._listeners else ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of all listeners, the one for brokers first."""
        return tuple(one.address for one in self._listeners)

    @property
    def image(self) -> Image:
        """The newest image."""
        return self._view.tip

    def known_image(self) -> Image | None:
        """Return the newest image, or None if there is none yet."""
        return None if self._view.applied < 0 else self._view.tip

    @property
    def settings(self) -> BrokerSettings:
        """The settings that the broker was made with."""
        return self._settings

    @property
    def view(self) -> View:
        """The broker's view of the metadata: to read, not to change."""
        return self._view

    @property
    def lifecycle(self) -> Lifecycle:
        """The broker's registration and session: to read, not to change."""
        return self._lifecycle

    def now(self) -> float:
        """Return the seconds of the loop's clock."""
        return self._loop.time()

    @property
    def running(self) -> bool:
        """False once the broker was closed or has stopped."""
        return not self._closed and not self._done.done()

    @property
    def fatal(self) -> BaseException | None:
        """The error that stopped the broker; None if it is running or stopped normally."""
        return self._done.exception() if self._done.done() else None

    @property
    def exit(self) -> Exit | None:
        """Why this broker has stopped; None if it has not."""
        return self._lifecycle.exit

    @property
    def last_broker_epoch(self) -> int:
        """See ``Lifecycle.last_epoch``."""
        return self._lifecycle.last_epoch

    async def start(
        self, *, serving: Callable[[str, Acceptors], Serving] = lambda _, served: Serving(served)
    ) -> None:
        """Recover and listen, then begin to follow and to register.

        ``serving``: returns the services of a listener, out of those possible. Raises ConfigError
        if an address cannot be bound, CorruptLogError and StorageError for a damaged or unreadable
        store.
        """
        acceptors: Acceptors = {
            Conversation.BROKER: self.requests.accept,
            Conversation.WATCH: self.watches.accept,
            Conversation.WATCH_MANY: self.watches.accept_many,
        }
        of_clients = dict(acceptors)
        if self.data is not None:
            # Before a peer can connect: a broker whose replicas are damaged must stay unknown.
            recovered = self.data.recover()
            acceptors[Conversation.REPLICA_FETCH] = self.data.accept
        settings = self._settings
        await self._listen(settings.listen, settings.listener_name, acceptors, serving)
        for one in settings.client_listeners:
            await self._listen(one.listen, one.name, of_clients, serving)
        if self.data is not None:
            # Logged once it is certain that the broker runs: one that cannot listen logs only that.
            log.info("partition replicas recovered", broker=self._settings.broker_id, **recovered)
        self._registration_client.start(self.addresses)
        self._follower.start()
        self._tick()

    async def _listen(
        self,
        address: str,
        name: str,
        acceptors: Acceptors,
        serving: Callable[[str, Acceptors], Serving],
    ) -> None:
        served = serving(name, acceptors)
        self._listeners.append(
            await self._transport.listen(
                address,
                served.acceptors,
                name=name,
                extra_handlers=served.extra_handlers,
                access=served.access,
            )
        )

    async def run(self) -> Exit:
        """Start, run, and return why the broker stopped.

        Raises ConfigError, and FatalError if the log could not be followed.
        """
        try:
            await self.start()
            return await self.ended()
        finally:
            await self.close()

    async def ended(self) -> Exit:
        """Wait until the broker has to stop.

        Raises FatalError.
        """
        return await asyncio.shield(self._done)

    def fail(self, error: FatalError) -> None:
        """Stop with this error, which ``ended`` raises, unless there is an earlier reason
        to stop.
        """
        if not self._done.done():
            self._done.set_exception(error)

    def stop(self) -> None:
        """Request a controlled shutdown; ``ended`` returns when it is over, within its timeout."""
        # Before any heartbeat announces the stop: from that heartbeat on the broker may be fenced.
        self._lease.renounce()
        self._registration_client.stop()

    async def close(self) -> None:
        """Drop everything at once. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._registration_client.close()
        self._follower.close()
        self.requests.close()
        self.watches.close()
        if self.data is not None:
            self.data.close()
        self._writes.close()
        for listener in self._listeners:
            await listener.close()

    def why_fenced(self) -> str:
        """See ``Fencing.why``."""
        return self._fencing.why()

    def _tick(self) -> None:
        if self._life is not None and not self._closed:
            self._life.tick(self._loop.time())
            self._loop.call_later(TICK_S, self._tick)

    def _ended(self, reason: Exit) -> None:
        log.info("the broker ends", broker=self._settings.broker_id, reason=reason.reason)
        if not self._done.done():
            self._done.set_result(reason)


def _split(rng: random.Random) -> random.Random:
    """Return a generator for one part, so that a change in one part does not affect the random
    numbers of the others.
    """
    return random.Random(rng.getrandbits(64))
