"""The running partition replicas of a broker: events go in, and effects are carried out in order on
the store, the links and one timer.

Nothing is decided here. The guarantees of the pure part depend on this shell in three ways: it
carries out effects in order before the next event; it steps Flushed only when the disk has
confirmed it; and after any error of the store it steps and answers nothing more, but closes the
links of waiting clients, which means *outcome unknown*.

Below its free-space reserve the broker stores no records, whether from producers or from leaders.
The remaining space is for recovery and deletion.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from broker.partition import events as ev
from broker.partition.describe import Unserved
from broker.partition.events import Effect, Event
from broker.partition.manager import Partitions
from broker.replication.links import FollowerSessions, LeaderLinks
from broker.settings import ReplicationSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.clock import DeadlineTimer
from raftlog.errors import ApiError, ErrorCode, FatalError, StorageError
from raftlog.metadata.image import Image
from raftlog.node.observability.figures import Latency
from raftlog.node.storage.partition_api import PartitionStore, RecoveredPartition
from raftlog.step_tracer import StepTracer, traced
from raftlog.transport.api import Acceptor, Transport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.controller.v1.controller_pb2 import ReplicaLogReport
from raftlog.wire.data.v1 import data_pb2


class Figures:
    """Counters since the start, and latencies."""

    def __init__(self) -> None:
        self.bytes_in = 0
        """Bytes of batches appended, as a leader or a follower."""
        self.messages_in = 0
        self.bytes_out = 0
        """Bytes sent to consumers."""
        self.replication_bytes_out = 0
        """Bytes sent to followers."""
        self.produce_requests = 0
        self.produce = Latency()
        """Time from a produce request to its answer."""
        self.flush = Latency()
        """Time from the request to sync the disk until it is done."""

    def appended(self, size_bytes: int, records: int) -> None:
        """Count an appended chunk."""
        self.bytes_in += size_bytes
        self.messages_in += records


log = structlog.get_logger(__name__)

NOTES_MAX = 20
"""Maximum number of lines of one kind that a step logs.

A broker may become the leader of thousands of partitions in one step. Logging each would take
longer than starting to lead it, and no request is answered meanwhile.
"""


class Notes:
    """The log entries of the step under way."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """Number of notes by their event."""

    def note(self, effect: ev.Note) -> None:
        """Log a note, unless the step has logged NOTES_MAX of its kind."""
        self._counts[effect.event] += 1
        if self._counts[effect.event] <= NOTES_MAX:
            log.info(effect.event, **effect.fields)

    def end_step(self) -> None:
        """Log, for each kind, how many notes were not logged."""
        if not self._counts:
            return
        for event, count in self._counts.items():
            if count > NOTES_MAX:
                log.info(event, further=count - NOTES_MAX)
        self._counts.clear()


ENOUGH_FACTOR = 1.25
"""Multiple of the reserve that must be free before ``low`` becomes False, so that it does not flap.
"""
MAX_SHARE_OF_DISK = 0.05


def effective_reserve_bytes(configured_bytes: int, disk_bytes: int) -> int:
    """Return the reserve for a disk of this size, at most MAX_SHARE_OF_DISK of it."""
    return min(configured_bytes, int(disk_bytes * MAX_SHARE_OF_DISK))


class SpaceReserve:
    """Records whether the store's disk is below the reserve.

    With a reserve of 0 it never is.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self.reserve_bytes = reserve_bytes
        self.free_bytes = -1
        self.low = False

    def measured(self, free_bytes: int) -> bool:
        """Record a measurement; return whether ``low`` has changed."""
        limit = self.reserve_bytes * (ENOUGH_FACTOR if self.low else 1)
        self.free_bytes = free_bytes
        was, self.low = self.low, free_bytes < limit
        return was != self.low

    @property
    def refusal(self) -> str:
        """Why nothing is written, or "" if there is room."""
        if not self.low:
            return ""
        return (
            f"the disk has {self.free_bytes} bytes left, less than its reserve of"
            f" {self.reserve_bytes}"
        )


class ReplicasTracer(StepTracer[Event, Effect], Protocol):
    """Observes the steps of one broker's partition replicas, and changes nothing."""

    def replicas_recovered(self) -> None:
        """Record that the store was recovered, before any step."""


CHECK_EVERY_S = 1.0
"""Interval in seconds between checks of the disk's free space and of silent leaders."""
RETENTION_KEYS = 1_000
"""Number of partitions that one step checks for retention."""
FETCH_MAX_BYTES = 32 << 20
"""Maximum number of bytes of records in an answer to a consumer, whatever its request allows: they
are held in memory, in one message.
"""
BODIES = frozenset({"produce", "fetch", "list_offsets"})
"""The bodies of a BrokerRequest that are served here."""

Answer = Callable[..., None]
"""A function that sends the answer to one request, as a field of BrokerResponse."""
MakeReplicas = Callable[[Sequence[RecoveredPartition], float], Partitions]


class DataPlane:
    """The shell of a broker's partition replicas.

    ``broker_status``: called before each step. ``time_ms``: returns the time. ``failed``: called
    once, when the broker must stop. ``disk_changed``: called when the disk starts or stops hanging,
    or falls below or rises above its reserve.
    """

    def __init__(
        self,
        settings: ReplicationSettings,
        transport: Transport,
        store: PartitionStore,
        controllers: ControllerClient,
        *,
        cluster_id: str,
        make_replicas: MakeReplicas,
        broker_status: Callable[[], ev.BrokerStatusChanged],
        time_ms: Callable[[], int],
        failed: Callable[[FatalError], None],
        disk_changed: Callable[[], None],
        tracer: ReplicasTracer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._store = store
        self._controllers = controllers
        self._cluster_id = cluster_id
        self._make_replicas = make_replicas
        self._broker_status = broker_status
        self._time_ms = time_ms
        self._failed = failed
        self._disk_changed = disk_changed
        self._disk_hung = False
        self._hang_noted_at = -math.inf
        self.hangs, self.hung_ms = 0, 0
        """Number of flushes that hung, and the duration in ms of the last one when it was
        detected.
        """
        self._tracer = tracer
        self._replicas: Partitions | None = None
        self._events: deque[ev.Event] = deque()
        self._stepping = False
        self._stepped_status: ev.BrokerStatusChanged | None = None
        self._over = False
        self._timer = DeadlineTimer(self._loop, self._tick)
        self._checks: asyncio.TimerHandle | None = None
        self._retention_at = self._loop.time() + settings.log_retention_check_interval_ms / 1000
        self._flush_token = -1
        self._flush_due = False
        self._notes = Notes()
        self._links = LeaderLinks(
            transport, self.step, silence_s=settings.replica_socket_timeout_ms / 1000
        )
        self._sessions = FollowerSessions(self.step)
        self.space = SpaceReserve(settings.free_space_reserve_bytes)
        self.figures = Figures()
        self._carry_out: dict[type[Any], Callable[[Any], None]] = {
            ev.Append: self._append,
            ev.Truncate: lambda effect: store.truncate(effect.key, effect.end_offset),
            ev.AdvanceStart: lambda effect: store.advance_start(
                effect.key, effect.start_offset, dropped_bytes=effect.dropped_bytes
            ),
            ev.Reset: lambda effect: store.reset(effect.key, effect.start_offset),
            ev.Delete: lambda effect: store.delete(effect.key),
            ev.Flush: self._flush_wanted,
            ev.AnswerProduce: self._answer_produce,
            ev.AnswerFetch: self._answer_fetch,
            ev.AnswerReplicaFetch: self._answer_replica_fetch,
            ev.WantLink: lambda effect: self._links.want(effect.leader_id, effect.endpoint),
            ev.DropLink: lambda effect: self._links.drop(effect.leader_id),
            ev.SendReplicaFetch: lambda effect: self._links.send(
                effect.leader_id, effect.request, self._loop.time()
            ),
            ev.SendAlterPartition: self._send_alter_partition,
            ev.Note: self._notes.note,
        }

    # --- from outside ----------------------------------------------------------------------------

    @property
    def accept(self) -> Acceptor:
        """The acceptor of followers' links."""
        return self._sessions.accept

    @property
    def replicas(self) -> Partitions:
        """The pure part, available after recovery; for queries, not for steps."""
        assert self._replicas is not None, "not recovered yet"
        return self._replicas

    @property
    def recovered(self) -> bool:
        """True once the store was recovered; before that, nothing is served."""
        return self._replicas is not None

    def recover(self) -> dict[str, int]:
        """Check the store and begin with its replicas; return the numbers of replicas and records,
        to be logged.

        Raises CorruptLogError, StorageError.
        """
        found = self._store.recover()
        self._replicas = self._make_replicas(found, self._loop.time())
        self._step_replicas = traced(self._replicas.step, self._tracer)
        if self._tracer is not None:
            self._tracer.replicas_recovered()
        self._check()
        self._arm()
        return {"replicas": len(found), "records": sum(one.end_offset for one in found)}

    def image_moved(self, image: Image, changes: ev.Changes | None) -> None:
        """Process the broker's newest image."""
        self.step(ev.ImageMoved(image, changes))

    @property
    def has_unreported(self) -> bool:
        """See ``Partitions``."""
        return self._replicas is not None and self._replicas.has_unreported

    def replica_logs(self) -> list[ReplicaLogReport]:
        """Return the next heartbeat's reports on leaderless partitions."""
        return [] if self._over or self._replicas is None else self._replicas.replica_logs()

    def client_closed(self, client: ev.Client) -> None:
        """Drop a closed client's parked requests."""
        self.step(ev.ClientClosed(client))

    def request(
        self, request: broker_pb2.BrokerRequest, answer: Answer, client: ev.Client | None = None
    ) -> None:
        """Serve a client's request with one of ``BODIES``.

        Raises ApiError.
        """
        replicas = self._served()
        body = request.WhichOneof("body")
        if body == "fetch":
            self.step(ev.FetchReceived(request.fetch, answer, client))
        elif body == "list_offsets":
            self._step_status()
            answer(list_offsets=replicas.list_offsets(request.list_offsets, self._loop.time()))
        elif self.space.low:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.space.refusal)
        else:
            self.figures.produce_requests += 1
            reply_to = (answer, self._loop.time())
            self.step(ev.ProduceReceived(request.produce, self._time_ms(), reply_to, client))

    def describe_led(
        self, request: data_pb2.BrokerMetadataRequest
    ) -> data_pb2.BrokerMetadataResponse:
        """Return the ISRs of the partitions that this broker leads (KIP-24).

        Raises ApiError.
        """
        replicas = self._served()
        self._step_status()
        return replicas.describe_led(request, self._loop.time())

    def unserved(self) -> Unserved:
        """Return the partitions that this broker should lead according to its image, but cannot
        serve.
        """
        self._step_status()
        return self.replicas.unserved(self._loop.time(), low_space=self.space.low)

    def close(self) -> None:
        """Stop without a message to any peer.

        The store stays open. Idempotent.
        """
        if not self._over:
            self._over = True
            self._stop()

    def _served(self) -> Partitions:
        if self._over or self._replicas is None:
            raise ApiError(
                ErrorCode.BROKER_NOT_AVAILABLE, "this broker does not serve partitions now"
            )
        return self._replicas

    # --- stepping --------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        """Process an event; one that arrives during another step is queued."""
        if self._over or self._replicas is None:
            return
        self._events.append(event)
        if not self._stepping:
            self._run()

    def _step_status(self) -> None:
        """Step the data plane with this broker's status, if that has changed."""
        if not self._stepping:
            self._run()

    def _run(self) -> None:
        self._stepping = True
        try:
            broker_status = self._broker_status()
            if broker_status != self._stepped_status:
                self._stepped_status = broker_status
                self._events.appendleft(broker_status)
            while self._events and not self._over:
                for effect in self._step_replicas(self._events.popleft(), self._loop.time()):
                    self._carry_out[type(effect)](effect)
                self._notes.end_step()
        except FatalError as error:
            self._fail(error)
        except Exception as error:
            # Half a step was carried out: no later step could be trusted.
            self._fail(FatalError(f"the data plane failed: {error!r}"))
            raise
        finally:
            self._stepping = False
        self._arm()

    def _arm(self) -> None:
        if not self._over and self._replicas is not None:
            self._timer.arm(self._replicas.next_deadline())

    def _tick(self) -> None:
        self.step(ev.Tick())

    def _check(self) -> None:
        """Once a second, check the free disk space, and whether leaders answer."""
        if self._over:
            return
        try:
            # Measured in any case: a store that has failed in background work, such as a
            # compaction, reports that here.
            free_bytes = self._store.free_bytes()
            if self.space.reserve_bytes and self.space.measured(free_bytes):
                low = self.space.low
                what = "disk below the free-space reserve" if low else "disk has space again"
                log.warning(what, free_bytes=self.space.free_bytes)
                self.step(ev.SpaceChanged(self.space.low))
                self._disk_changed()
        except FatalError as error:
            self._fail(error)
            return
        self._look_at_disk()
        self._links.check(self._loop.time())
        if self._loop.time() >= self._retention_at:
            self._retain()
        self._checks = self._loop.call_later(CHECK_EVERY_S, self._check)

    @property
    def disk_hangs_ms(self) -> int:
        """Duration in ms of a flush that hangs; 0 if none does."""
        busy_ms = round(self._store.busy_s * 1000)
        return busy_ms if busy_ms >= self._settings.broker_disk_hang_timeout_ms else 0

    def _look_at_disk(self) -> None:
        hangs_ms = self.disk_hangs_ms
        if bool(hangs_ms) == self._disk_hung:
            return
        self._disk_hung = bool(hangs_ms)
        if hangs_ms:
            self._note_hang(hangs_ms)
        else:
            log.info("the disk of the partitions responds again")
        self._disk_changed()

    def _note_hang(self, flush_ms: int) -> None:
        self._hang_noted_at = self._loop.time()
        self.hangs, self.hung_ms = self.hangs + 1, flush_ms
        log.warning("the disk of the partitions hangs", flush_ms=flush_ms)

    def _retain(self) -> None:
        """Check for records that need not be retained, RETENTION_KEYS partitions per step."""
        self._retention_at = (
            self._loop.time() + self._settings.log_retention_check_interval_ms / 1000
        )
        keys, now_ms = tuple(self.replicas.keys()), self._time_ms()
        for begin in range(0, len(keys), RETENTION_KEYS):
            due = ev.RetentionDue(keys[begin : begin + RETENTION_KEYS], now_ms)
            self._loop.call_soon(self.step, due)

    # --- the disk --------------------------------------------------------------------------------

    def _append(self, effect: ev.Append) -> None:
        self._store.append(effect.key, effect.chunk, effect.base_offset, effect.end_offset)
        self.figures.appended(len(effect.chunk), effect.end_offset - effect.base_offset)

    def _flush_wanted(self, effect: ev.Flush) -> None:
        """Flush once per turn of the loop, when every event that has arrived is processed.

        Never on the loop itself: a hanging disk would block it, and with it all heartbeats.
        """
        self._flush_token = effect.token
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._over:
            return
        self._flush_due = False
        begun = self._loop.time()
        try:
            self._store.flush(partial(self._flushed, self._flush_token, begun), inline=False)
        except FatalError as error:
            self._fail(error)

    def _flushed(self, token: int, begun: float, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            took_s = self._loop.time() - begun
            self.figures.flush.observe(took_s)
            is_hang = took_s * 1000 >= self._settings.broker_disk_hang_timeout_ms
            if is_hang and self._hang_noted_at < begun:
                # It ended before the check that would have detected it.
                self._note_hang(round(took_s * 1000))
            self.step(ev.Flushed(token))

    def _fail(self, error: FatalError) -> None:
        """Stop, and report the error; nothing is acknowledged after this."""
        if self._over:
            return
        self._over = True
        log.critical("the data plane stops", error=str(error))
        self._stop()
        self._failed(error)

    def _stop(self) -> None:
        self._timer.cancel()
        if self._checks is not None:
            self._checks.cancel()
        self._events.clear()
        self._links.close()
        self._sessions.close()
        self._controllers.close()

    # --- answers ---------------------------------------------------------------------------------

    def _answer_produce(self, effect: ev.AnswerProduce) -> None:
        answer, begun = effect.reply_to
        self.figures.produce.observe(self._loop.time() - begun)
        answer(produce=effect.response)

    def _answer_fetch(self, effect: ev.AnswerFetch) -> None:
        total, limit = 0, min(effect.max_bytes, FETCH_MAX_BYTES)
        for read in effect.reads:
            if total >= limit:
                break
            records = self._read(read, min(read.max_bytes, limit - total))
            total += len(records)
            effect.response.partitions[read.index].records = records
        self.figures.bytes_out += total
        effect.reply_to(fetch=effect.response)

    def _answer_replica_fetch(self, effect: ev.AnswerReplicaFetch) -> None:
        total = 0
        for read in effect.reads:
            if total and total >= effect.max_bytes:
                # An answer that fits into no message would end the link, and likewise the next one.
                effect.response.partitions[
                    read.index
                ].error_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                self._charge(read, 0)
                continue
            records = self._read(read, read.max_bytes)
            self._charge(read, len(records))
            total += len(records)
            effect.response.partitions[read.index].records = records
        self.figures.replication_bytes_out += total
        self._sessions.answer(effect.session, effect.response)

    def _charge(self, read: ev.Read, size_bytes: int) -> None:
        if read.charged >= 0:
            self.replicas.was_read(read, size_bytes)

    def _read(self, read: ev.Read, max_bytes: int) -> bytes:
        return self._store.read(read.key, read.offset, until=read.until, max_bytes=max_bytes)

    # --- other brokers and the controller --------------------------------------------------------

    def _send_alter_partition(self, effect: ev.SendAlterPartition) -> None:
        request = controller_pb2.ControllerRequest(
            cluster_id=self._cluster_id, alter_partition=effect.request
        )
        future = self._controllers.send(request, self._settings.alter_partition_timeout_ms / 1000)
        future.add_done_callback(self._alter_partition_answered)

    def _alter_partition_answered(
        self, future: asyncio.Future[controller_pb2.ControllerResponse]
    ) -> None:
        if self._over:
            future.exception()  # Retrieved, as no caller does.
            return
        try:
            response = require_success(future.result())
        except ApiError as error:
            log.info("the controller did not accept an ISR change", error=str(error))
            self.step(ev.AlterPartitionFailed(error.code, error.outcome_unknown))
        else:
            self.step(ev.AlterPartitionAnswered(response.alter_partition))
