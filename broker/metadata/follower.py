"""The follower of the committed metadata log: one fetch is outstanding at a time, and each reports
what has been applied.

To the active controller the broker is an observer. The records of a reply are added to the view
before the next fetch is sent, so readers here can already see everything up to that fetch's
``applied_offset``. While the view is full no fetch is sent; heartbeats still deliver LAO, which
makes room.

If the log starts above the wanted offset, the reply names a snapshot. The broker fetches it from
the same controller, on a separate link while no fetch is outstanding, replaces the view with it,
and follows the log from the snapshot's end.

Why: docs/decisions/010-lao-survives-failover.md
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from broker.metadata.view import View
from broker.settings import FollowerSettings
from raftlog.client.endpoints import Endpoints, EndpointSelector
from raftlog.client.log_reader import fetch_snapshot
from raftlog.client.router import PATIENCE_MAX_S, PATIENCE_MIN_S
from raftlog.errors import (
    CorruptLogError,
    ErrorCode,
    FatalError,
    RaftlogError,
    StorageError,
    fatal,
)
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.snapshot import SnapshotLoader
from raftlog.metadata.snapshot_file import SnapshotId
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.controller.v1 import controller_pb2

log = structlog.get_logger(__name__)


COMPARE_EVERY_S = 5.0
SNAPSHOT_TIMEOUT_S = 2.0
"""Time in seconds within which a piece of a snapshot must arrive, before it is requested again."""
SILENT = "a fetch was not answered in time"
STATE_HASH_MASK = (1 << 64) - 1
"""Bits of a state hash that a fetch reports."""


@dataclass(frozen=True, slots=True)
class FollowerEvents:
    """The callbacks of the follower, all called on the event loop."""

    moved: Callable[[], None]
    """The view has moved: records were applied, or LAO or the controller epoch was received."""
    generation_known: Callable[[], None]
    """The process has learned the generation of the log for the first time."""
    generation_changed: Callable[[], None]
    """The log was replaced by one that descends from it, and the view was emptied."""
    log_diverged: Callable[[], None]
    """The log lacks records that were applied here, and the view was emptied."""
    failed: Callable[[FatalError], None]
    """The log cannot be followed any further, so the broker must stop."""
    silent: Callable[[str], None]
    """The controller at this address does not answer."""


class MetadataFollower:
    """Keeps a view up to date.

    ``broker_epoch``: called before each fetch; returns -1 if the broker is not registered, so that
    the report does not count.
    """

    def __init__(
        self,
        transport: Transport,
        bootstrap: Endpoints,
        view: View,
        events: FollowerEvents,
        *,
        cluster_id: str,
        broker_id: int,
        broker_epoch: Callable[[], int],
        settings: FollowerSettings,
        rng: random.Random,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._view = view
        self._events = events
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._endpoints = EndpointSelector(bootstrap, rng)
        self._dialer: Dialer | None = None
        self._dialled = ""
        self._link: Link | None = None
        self._fetching = False
        self._snapshot: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._answer_by = 0.0
        self._shared = b""
        """Serialized fields that all fetches share; empty if no fetch was sent yet."""
        self._shared_for = (-1, -1, -1)
        """The broker epoch, controller epoch and generation in ``_shared``."""
        self._generation_known = False
        self._compare, self._compare_at = True, 0.0
        """Whether the next fetch names the last applied batch, so that the controller can compare
        it, and the time after which a fetch does so in any case.
        """
        self._refusals: dict[str, str] = {}
        """Controllers of other clusters that have answered since one of this cluster last did ->
        why each was refused.
        """
        self.refused = ""
        """The controller that was refused since a controller was last followed, and why; "" if none
        was.
        """
        self.contradiction = ""
        """Why the log contradicts what was applied here, or "" if it does not."""
        self._state_differed = False
        self._patience_s = PATIENCE_MIN_S
        self._settled = False
        """True once the endpoint selector knows that this controller answers; reset by each new
        attempt.
        """
        self._closed = False
        self.controller_id = -1
        self.snapshots_installed = 0

    def start(self) -> None:
        """Begin to follow."""
        self._connect()
        self._check_silence()

    def close(self) -> None:
        """Stop fetching, and close the link. Idempotent."""
        self._closed = True
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._hang_up()

    def resume(self) -> None:
        """Fetch again, if fetching was suspended and the view has room."""
        if (
            self._link is not None
            and not self._fetching
            and self._timer is None
            and self._snapshot is None
        ):
            self._fetch()

    # --- the link --------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """Begin to fetch."""
        if self._closed:
            return
        self._stop_timer()
        self._link, self._fetching, self._compare = link, False, True
        self._fetch()

    def closed(self, link: Link, reason: str) -> None:
        """Look for the active controller elsewhere. Fetches continue from the applied offset."""
        if link is self._link and not self._closed:
            self._hang_up()
            self._go(self._endpoints.unreachable(self._loop.time()))

    def received(
        self, link: Link, messages: Sequence[controller_pb2.MetadataFetchResponse]
    ) -> None:
        """Process replies. A reply on an older link, or to no fetch, changes nothing."""
        for reply in messages:
            if link is self._link and self._fetching and not self._closed:
                self._fetching = reply.fetch_stands
                self._take(reply)

    def _connect(self) -> None:
        self._timer = None
        if self._dialled != self._endpoints.target or self._dialer is None:
            self._hang_up()
            self._dialled = self._endpoints.target
            self._dialer = self._transport.dial(self._dialled, Conversation.OBSERVER, self)
        if self._link is not None:
            self._fetch()
        else:
            self._timer = self._loop.call_later(self._patience_s, self._out_of_patience)

    def _hang_up(self) -> None:
        self._stop_snapshot()
        self._link, dialer, self._dialer = None, self._dialer, None
        if dialer is not None:
            dialer.close()

    def _out_of_patience(self) -> None:
        self._patience_s = min(PATIENCE_MAX_S, self._patience_s * 2)
        self._go(self._endpoints.unreachable(self._loop.time()))

    def _go(self, pause_s: float) -> None:
        """Connect to the target of the endpoint selector, after a pause."""
        self._settled = self._view.hears_controller = False
        self._compare = True
        self._stop_timer()
        if pause_s:
            self._timer = self._loop.call_later(pause_s, self._connect)
        else:
            self._connect()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        """Close a link whose fetch gets no reply in time, as a stopped controller may leave its
        connections open.

        One slow timer serves all fetches.
        """
        if self._fetching and self._loop.time() > self._answer_by and self._link is not None:
            silent = self._dialled
            self._link.close(SILENT)
            self._events.silent(silent)
        self._watch = self._loop.call_later(
            self._settings.answer_margin_ms / 2000, self._check_silence
        )

    # --- the conversation ------------------------------------------------------------------------

    def _fetch(self) -> None:
        view, settings = self._view, self._settings
        if view.backpressure or self._link is None:
            return
        epochs = (self._broker_epoch(), view.controller_epoch, view.generation)
        if epochs != self._shared_for or not self._shared:
            self._shared_for, self._shared = epochs, self._shared_fields_of(*epochs)
        # A serialized prefix: setting one field costs as much as parsing all shared fields.
        request = controller_pb2.MetadataFetchRequest.FromString(self._shared)
        request.fetch_offset = view.applied + 1
        request.applied_offset = view.applied
        request.told_lowest_acknowledged_offset = view.known_lao
        request.high_watermark = view.high_watermark
        if self._compare or self._loop.time() >= self._compare_at:
            self._name_last_applied(request)
        self._answer_by = (
            self._loop.time() + (settings.fetch_max_wait_ms + settings.answer_margin_ms) / 1000
        )
        self._fetching = True
        try:
            self._link.send(request)
        except LinkClosedError:
            self._fetching = False

    def _name_last_applied(self, request: controller_pb2.MetadataFetchRequest) -> None:
        self._compare, self._compare_at = False, self._loop.time() + COMPARE_EVERY_S
        last = self._view.last_batch
        if last is not None:
            named = request.last_applied
            named.base_offset, named.epoch, named.crc = last
            named.state_hash = self._view.tip.state_hash & STATE_HASH_MASK

    def _shared_fields_of(self, broker_epoch: int, controller_epoch: int, generation: int) -> bytes:
        """Return the fields that are the same from one fetch to the next, serialized."""
        settings = self._settings
        return controller_pb2.MetadataFetchRequest(
            cluster_id=self._cluster_id,
            replica_id=self._broker_id,
            broker_epoch=broker_epoch,
            controller_epoch=controller_epoch,
            max_bytes=settings.fetch_max_bytes,
            max_wait_ms=settings.fetch_max_wait_ms,
            generation=generation,
            takes_lao_alone=True,
        ).SerializeToString()

    def _take(self, reply: controller_pb2.MetadataFetchResponse) -> None:
        view = self._view
        if reply.HasField("error"):
            self._refused(reply)
        elif reply.cluster_id != self._cluster_id:
            self._other_cluster(f"it belongs to cluster {reply.cluster_id!r}")
        elif reply.controller_epoch < view.controller_epoch:
            self._elsewhere("a deposed controller answered")
        elif reply.generation == NO_GENERATION:
            # A new log, without a committed record yet.
            self._fetch()
        elif view.generation not in (NO_GENERATION, reply.generation):
            self._other_generation(reply)
        elif self._knows_generation(reply.generation):
            if reply.HasField("diverging_epoch"):
                self._diverged(reply)
            else:
                self._accept(reply)

    def _knows_generation(self, generation: int) -> bool:
        """Record the generation if none was known. Return False if the broker has stopped."""
        if not self._generation_known:
            self._generation_known = True
            if self._view.generation == NO_GENERATION:
                self._view.reset(generation)
            try:
                self._events.generation_known()
            except StorageError as error:
                self._stop_following(error)
        # The broker may have stopped, if its registration belongs to another log.
        return not self._closed

    def _accept(self, reply: controller_pb2.MetadataFetchResponse) -> None:
        view = self._view
        try:
            # Each access to the field makes a copy.
            records = reply.records
            if records:
                view.apply(records, high_watermark=reply.high_watermark)
        except CorruptLogError as error:
            log.warning("dropped a corrupt fetch reply", controller=self._dialled, error=str(error))
            self._elsewhere("the reply is corrupt")
            return
        except FatalError as error:
            self._stop_following(error)
            return
        if reply.controller_epoch > view.controller_epoch:
            self._compare = True
        view.hear(reply.controller_epoch, reply.lowest_acknowledged_offset, reply.high_watermark)
        self.controller_id = reply.leader_id
        if not self._settled:
            self._settled = view.hears_controller = True
            self._refusals.clear()
            self.refused = ""
            self._endpoints.reached()
            self._patience_s = PATIENCE_MIN_S
        if reply.HasField("snapshot_id"):
            self._begin_snapshot(SnapshotId(reply.snapshot_id.end_offset, reply.snapshot_id.epoch))
        elif not reply.fetch_stands:
            # Fetch before answering readers: writers elsewhere wait for the acknowledgement in this
            # fetch.
            self._fetch()
        self._events.moved()

    # --- beginning with a snapshot ---------------------------------------------------------------

    def _begin_snapshot(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id.end_offset - 1 <= self._view.applied:
            self._elsewhere(
                f"its snapshot ends at {snapshot_id.end_offset}, but this broker has applied more"
            )
            return
        log.info("fetching a snapshot", controller=self._dialled, end_offset=snapshot_id.end_offset)
        self._snapshot = self._loop.create_task(self._fetch_snapshot(snapshot_id))

    async def _fetch_snapshot(self, snapshot_id: SnapshotId) -> None:
        loader = SnapshotLoader()
        failure: RaftlogError | None = None
        try:
            try:
                await fetch_snapshot(
                    self._transport,
                    self._dialled,
                    snapshot_id,
                    loader.feed,
                    cluster_id=self._cluster_id,
                    timeout_s=SNAPSHOT_TIMEOUT_S,
                    piece_bytes=self._settings.fetch_snapshot_max_bytes,
                )
            except RaftlogError as error:
                failure = error
            self._snapshot_fetched(snapshot_id, loader, failure)
        except Exception as error:
            # A bug: the same snapshot would raise it again, and no other code awaits this task.
            log.exception("cannot apply a snapshot", controller=self._dialled)
            self._stop_following(fatal(error))

    def _snapshot_fetched(
        self, snapshot_id: SnapshotId, loader: SnapshotLoader, error: RaftlogError | None
    ) -> None:
        self._snapshot = None
        view = self._view
        try:
            if error is not None:
                raise error
            image = loader.finish()
            header = loader.header
            assert header is not None
            if (header.end_offset, header.epoch) != (snapshot_id.end_offset, snapshot_id.epoch):
                raise CorruptLogError("its snapshot does not match the announced snapshot id")
            if header.cluster_id != self._cluster_id:
                raise CorruptLogError(f"its snapshot belongs to cluster {header.cluster_id!r}")
        except FatalError as failure:
            if isinstance(failure, CorruptLogError):
                log.warning(
                    "dropped a corrupt snapshot",
                    controller=self._dialled,
                    error=str(failure),
                )
                self._elsewhere("its snapshot is corrupt")
            else:
                self._stop_following(failure)
            return
        except RaftlogError as failure:
            self._elsewhere(str(failure))
            return
        view.install(image)
        self.snapshots_installed += 1
        log.info("snapshot applied", offset=view.applied)
        self._fetch()
        self._events.moved()

    def _stop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.cancel()
            self._snapshot = None

    def _refused(self, reply: controller_pb2.MetadataFetchResponse) -> None:
        code = reply.error.error_code
        if code == ErrorCode.NOT_CONTROLLER:
            self._go(self._endpoints.redirected(reply.leader_endpoint, self._loop.time()))
        elif code == ErrorCode.INCONSISTENT_GENERATION:
            self._other_generation(reply)
        elif code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._other_cluster(reply.error.error_message)
        else:
            self._elsewhere(reply.error.error_message)

    def _other_generation(self, reply: controller_pb2.MetadataFetchResponse) -> None:
        """Follow a log that descends from this one, as after an unsafe recovery, and no other.

        Counter-example: most controllers get new disks and found another log under the same cluster
        id. A broker that followed it would delete all of its replicas, as that log never created
        them.
        """
        mine, generation = self._view.generation, reply.generation
        if mine not in reply.previous_generations:
            self._refuse_controller(
                f"its log of generation {generation} does not descend from generation {mine},"
                " which this broker has applied"
            )
            return
        log.warning("the log was replaced by another generation", old=mine, new=generation)
        self._view.reset(generation)
        self._generation_known = True
        try:
            self._events.generation_changed()
        except StorageError as error:
            self._stop_following(error)
            return
        self._fetch()

    def _diverged(self, reply: controller_pb2.MetadataFetchResponse) -> None:
        """Start over: the controller has another log or another state at the applied offset.

        If the state differs, this is done only once: folding the same records again helps only if a
        bit was flipped in this process.
        """
        view, end_offset = self._view, reply.diverging_epoch.end_offset
        lost = end_offset <= view.applied
        self.contradiction = (
            f"controller {reply.leader_id} of epoch {reply.controller_epoch}, generation"
            f" {view.generation}, has "
        ) + (
            f"another log from offset {end_offset} on; this broker had applied offset"
            f" {view.applied}: committed records are lost"
            if lost
            else f"another state at offset {view.applied} than this broker"
        )
        log.error("the log contradicts what was applied here", why=self.contradiction)
        if lost or not self._state_differed:
            self._state_differed = not lost
            view.reset(view.generation)
            self._events.log_diverged()
        if not self._closed:
            self._fetch()

    def _other_cluster(self, why: str) -> None:
        """Try another controller; stop if all known ones belong to other clusters."""
        self._refusals[self._dialled] = why
        if self._refusals.keys() >= set(self._endpoints.known):
            said = "; ".join(f"{one}: {text}" for one, text in sorted(self._refusals.items()))
            self._fail(f"no controller belongs to cluster {self._cluster_id!r}: {said}")
            return
        self._refuse_controller(why)

    def _refuse_controller(self, why: str) -> None:
        said = f"{self._dialled} is not followed: {why}"
        if self.refused != said:
            self.refused = said
            log.error("not following a controller", controller=self._dialled, reason=why)
        self._elsewhere(why)

    def _elsewhere(self, why: str) -> None:
        log.info("looking for another controller", controller=self._dialled, reason=why)
        self._go(self._endpoints.lost(self._loop.time()))

    def _fail(self, message: str) -> None:
        self._stop_following(FatalError(message))

    def _stop_following(self, error: FatalError) -> None:
        self.close()
        self._events.failed(error)
