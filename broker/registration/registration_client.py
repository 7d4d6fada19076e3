"""Registration and heartbeats: carries out the lifecycle's decisions, over separate links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from broker.metadata.read_gate import ReadLease
from broker.metadata.view import View
from broker.registration.lifecycle import Exit, Heartbeat, Lifecycle, Register
from broker.settings import BrokerSettings, ClientListener
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.clock import DeadlineTimer, QuorumTime
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Process
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2

REGISTRATION_VERSION = 1
"""Registration version of a broker that sends heartbeats, and reports what it has applied."""
LISTENER_NAME = "PLAINTEXT"
"""Listener name of a broker whose listener has no name."""


def registration_request(
    settings: BrokerSettings,
    process: Process,
    incarnation_id: str,
    bound: Sequence[str],
    previous_broker_epoch: int,
) -> controller_pb2.RegisterBrokerRequest:
    """Return the registration of a process that listens at ``bound``, in the order of its
    listeners.

    Listeners without a bound address yet are registered as configured.
    """
    return controller_pb2.RegisterBrokerRequest(
        broker_id=settings.broker_id,
        cluster_id=settings.cluster_id,
        incarnation_id=incarnation_id,
        listeners=list(_listeners(settings, bound)),
        features=[
            records_pb2.FeatureRange(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, low, high in settings.features
        ],
        rack=settings.rack,
        log_dirs=settings.log_dirs,
        previous_broker_epoch=previous_broker_epoch,
        registration_version=REGISTRATION_VERSION,
        process=records_pb2.ProcessProof(
            boot_id=process.boot_id,
            directory_id=process.directory_id,
            lock_device=process.lock_device,
            lock_inode=process.lock_inode,
        ),
    )


def _listeners(settings: BrokerSettings, bound: Sequence[str]) -> Iterator[records_pb2.Listener]:
    """Yield all listeners, the one for brokers first: other brokers use the first."""
    of_brokers = ClientListener(
        settings.listener_name or LISTENER_NAME,
        settings.listen,
        settings.advertised_host,
        settings.advertised_port,
    )
    listeners = (of_brokers, *settings.client_listeners)
    known = (*bound, *(one.listen for one in listeners[len(bound) :]))
    for one, address in zip(listeners, known, strict=True):
        host, _, port = address.rpartition(":")
        yield records_pb2.Listener(
            name=one.name, host=one.advertised_host or host, port=one.advertised_port or int(port)
        )


log = structlog.get_logger(__name__)

Answered = Callable[[controller_pb2.ControllerResponse], None]


class RegistrationClient:
    """The shell around a :class:`Lifecycle`; it owns ``client``.

    Call :meth:`pump` after each event.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        lifecycle: Lifecycle,
        view: View,
        lease: ReadLease,
        client: ControllerClient,
        *,
        process: Process,
        incarnation_id: str,
        on_heartbeat: Callable[[], None],
        on_exit: Callable[[Exit], None],
        time: QuorumTime,
        replica_logs: Callable[[], Sequence[controller_pb2.ReplicaLogReport]],
        disk_hangs_ms: Callable[[], int],
        low_on_space: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._lifecycle = lifecycle
        self._view = view
        self._lease = lease
        self._client = client
        self._process = process
        self._incarnation_id = incarnation_id
        self._on_heartbeat = on_heartbeat
        self._on_exit = on_exit
        self._time = time
        self._replica_logs = replica_logs
        self._disk_hangs_ms = disk_hangs_ms
        self._low_on_space = low_on_space
        self._bound: Sequence[str] = ()
        self._timer = DeadlineTimer(self._loop, self.pump)
        self._last_error = ""
        self._checked_ms = 0
        self.misfit = ""
        """Why this broker's timeouts do not fit the controllers' session timeout, or "" if they
        fit.
        """
        self._over = False
        self._in_flight: asyncio.Future[controller_pb2.ControllerResponse] | None = None

    def start(self, bound: Sequence[str]) -> None:
        """Begin to register this process as listening at ``bound``, in the order of its
        listeners.
        """
        self._bound = bound
        self.pump()

    def stop(self) -> None:
        """Request a controlled shutdown at once, without waiting for the request in flight."""
        self._lifecycle.stop(self._loop.time())
        if self._in_flight is not None and not self._in_flight.done():
            self._in_flight.cancel()
        self.pump()

    def close(self) -> None:
        """Stop without a message to any controller. Idempotent."""
        self._over = True
        self._timer.cancel()
        self._client.close()

    def pump(self) -> None:
        """Send the request that the lifecycle returns, and set a timer for its next deadline."""
        if self._over:
            return
        action = self._lifecycle.poll(self._loop.time())
        if isinstance(action, Register):
            self._call(self._registration(action), self._registered)
        elif isinstance(action, Heartbeat):
            self._call(self._heartbeat(action), self._heartbeat_answered)
        if self._lifecycle.exit is not None:
            self._over = True
            self._on_exit(self._lifecycle.exit)
        self._timer.arm(self._lifecycle.next_deadline)

    def _call(self, request: controller_pb2.ControllerRequest, answered: Answered) -> None:
        # Not longer than until the next heartbeat is due, which is newer, and uses another link if
        # this one is silent.
        self._in_flight = self._client.send(request, self._lifecycle.answer_within_s)
        self._in_flight.add_done_callback(partial(self._ended, answered))

    def _ended(
        self, answered: Answered, future: asyncio.Future[controller_pb2.ControllerResponse]
    ) -> None:
        if future.cancelled():
            self._lifecycle.abandoned()
            self.pump()
            return
        if self._over:
            future.exception()  # Retrieved, as no caller does.
            return
        try:
            answered(require_success(future.result()))
            self._last_error = ""
        except ApiError as error:
            self._note(error)
            self._lifecycle.failed(error, self._loop.time())
        self.pump()

    def _note(self, error: ApiError) -> None:
        # Logged once for each new reason: a controller that stays away must not fill the log.
        if str(error) != self._last_error:
            self._last_error = str(error)
            log.warning(
                "the controller did not accept a request",
                broker=self._settings.broker_id,
                error=str(error),
            )

    def _registration(self, action: Register) -> controller_pb2.ControllerRequest:
        body = registration_request(
            self._settings,
            self._process,
            self._incarnation_id,
            self._bound,
            action.previous_broker_epoch,
        )
        body.generation = self._view.generation
        return controller_pb2.ControllerRequest(
            cluster_id=self._settings.cluster_id, register_broker=body
        )

    def _registered(self, response: controller_pb2.ControllerResponse) -> None:
        reply = response.register_broker
        epoch = reply.broker_epoch
        log.info("registered", broker=self._settings.broker_id, broker_epoch=epoch)
        self._check_timeouts(reply.broker_session_timeout_ms)
        self._lifecycle.registered(
            epoch,
            self._loop.time(),
            heartbeats=not reply.heartbeats_off,
            metadata_offset=reply.metadata_offset,
            generation=reply.generation,
            previous_generations=reply.previous_generations,
        )

    def _check_timeouts(self, session_timeout_ms: int) -> None:
        """Warn, once for each value, if the controllers' session timeout does not fit this broker's
        timeouts.
        """
        if session_timeout_ms == self._checked_ms:
            return
        self._checked_ms = session_timeout_ms
        self.misfit = self._settings.lifecycle.misfit(session_timeout_ms)
        if self.misfit:
            log.error(
                "this broker's timeouts do not fit those of the controllers",
                broker=self._settings.broker_id,
                problem=self.misfit,
            )

    def _heartbeat(self, action: Heartbeat) -> controller_pb2.ControllerRequest:
        view = self._view
        return controller_pb2.ControllerRequest(
            cluster_id=self._settings.cluster_id,
            broker_heartbeat=controller_pb2.BrokerHeartbeatRequest(
                broker_id=self._settings.broker_id,
                broker_epoch=action.broker_epoch,
                current_metadata_offset=view.applied,
                want_shut_down=action.want_shut_down,
                target_state=controller_pb2.BrokerLifecycleState.Name(action.target_state),
                controller_epoch=view.controller_epoch,
                told_lowest_acknowledged_offset=view.known_lao,
                told_high_watermark=view.high_watermark,
                want_read_lease=self._lease.wanted(self._loop.time()),
                replica_logs=self._replica_logs(),
                disk_hangs_ms=self._disk_hangs_ms(),
                generation=view.generation,
                low_on_space=self._low_on_space(),
            ),
        )

    def _heartbeat_answered(self, response: controller_pb2.ControllerResponse) -> None:
        reply = response.broker_heartbeat
        if reply.error_code:
            raise _error_of(reply.error_code)
        if self._view.generation not in (NO_GENERATION, reply.generation):
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION, "a controller of another log answered"
            )
        if not self._view.hear(reply.controller_epoch, reply.lowest_acknowledged_offset):
            raise ApiError(ErrorCode.NOT_CONTROLLER, "a deposed controller answered")
        self._check_timeouts(reply.broker_session_timeout_ms)
        lifecycle, now = self._lifecycle, self._loop.time()
        self._time.received(reply.quorum_time_ms)
        self._lease.answered(lifecycle.sent_at, reply.read_lease_ms, reply.read_lease_refusal)
        lifecycle.heartbeat_answered(
            now,
            should_shut_down=reply.should_shut_down,
            next_within_s=self._lease.next_heartbeat_s(now, reply.read_lease_ms),
        )
        self._on_heartbeat()


def _error_of(code: int) -> ApiError:
    known = (
        ErrorCode(code)
        if code in ErrorCode.__members__.values()
        else ErrorCode.UNKNOWN_SERVER_ERROR
    )
    return ApiError(known, f"the controller answered a heartbeat with error code {code}")
