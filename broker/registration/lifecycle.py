"""A broker's lifecycle as the controller sees it: registration, heartbeats, fencing, controlled
shutdown. Pure.

States (KIP-343): *initial* (this process has not registered yet), *inactive* (registered, fenced),
*active* (unfenced), *stopping*. A broker knows that it is unfenced from its own applied image and
its own broker epoch, never from a flag in a reply.

The shell calls :meth:`Lifecycle.poll` after each event and at :attr:`Lifecycle.next_deadline`,
sends the request that it returns (one at a time), and reports the outcome. ``now`` is in seconds of
a monotonic clock.

Why: docs/decisions/012-sessions-and-fencing.md
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from broker.settings import LifecycleSettings
from raftlog.clock import NEVER
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Broker
from raftlog.transport.api import TransportLimits
from raftlog.transport.links import Backoff
from raftlog.wire.controller.v1 import controller_pb2


class State(IntEnum):
    """KIP-343's BrokerState, with its numbers on the wire."""

    INITIAL = controller_pb2.INITIAL
    INACTIVE = controller_pb2.INACTIVE
    ACTIVE = controller_pb2.ACTIVE
    STOPPING = controller_pb2.STOPPING


@dataclass(frozen=True, slots=True)
class Register:
    """Send a registration. Safe to repeat: the incarnation id makes it the same registration."""

    previous_broker_epoch: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send a heartbeat. The shell fills in the applied offset and the known LAO."""

    broker_epoch: int
    want_shut_down: bool
    target_state: State


@dataclass(frozen=True, slots=True)
class Exit:
    """Why the process must exit.

    ``clean``: whether it was asked to stop, and the controller agreed or the broker was not
    registered.
    """

    reason: str
    clean: bool


UNREACHABLE_S = 1.5
"""Time in seconds after which a stopping broker that cannot connect to a controller stops without
one.
"""
STOPPING_ATTEMPT_S = 0.3
"""Longest wait in seconds for the answer to a stopping broker's heartbeat, and longest pause before
the next one: so that one attempt, with its margin, takes less than UNREACHABLE_S.
"""

# A registration refused with one of these errors would be refused again: end at once, so that the
# operator sees the error.
HOPELESS = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class Lifecycle:
    """The state machine of one broker process: it processes events, and returns the next
    request.
    """

    def __init__(
        self,
        settings: LifecycleSettings,
        *,
        broker_id: int,
        incarnation_id: str,
        rng: random.Random,
        now: float,
        previous_epoch: int = -1,
    ) -> None:
        """``previous_epoch``: broker epoch under which the directory was last closed cleanly; -1
        if it was not.
        """
        self._settings = settings
        self._broker_id = broker_id
        self._incarnation_id = incarnation_id
        self._rng = rng
        self._backoff = Backoff(
            TransportLimits(
                reconnect_backoff_min_ms=settings.retry_backoff_min_ms,
                reconnect_backoff_max_ms=settings.heartbeat_interval_ms,
            ),
            rng,
        )
        self.epoch = -1
        self.exit: Exit | None = None
        self._generation = self._registered_in = NO_GENERATION
        self._previous_epoch = previous_epoch
        self._in_flight: Register | Heartbeat | None = None
        self._urgent = False
        self._sent_at = self._contact_at = now
        self._next_at = now
        self._register_until = now + settings.registration_timeout_ms / 1000
        self._last_error = "the controller has not answered"
        self._stop_until = NEVER
        self._connected_at = now
        self._stale = False
        self._unfenced = False
        self._heartbeats = True
        self._image_offset = -1
        self._image_heartbeats = True
        self._registration: Broker | None = None
        self.shown_from = -1
        """Offset of the first image that can show this registration."""

    # --- status ----------------------------------------------------------------------------------

    @property
    def last_epoch(self) -> int:
        """The broker epoch, or the previous one between two registrations; -1 before the first."""
        return self.epoch if self.epoch >= 0 else self._previous_epoch

    @property
    def state(self) -> State:
        """The state, as commands and metrics show it."""
        if self._stop_until != NEVER:
            return State.STOPPING
        if self.epoch < 0:
            return State.INITIAL
        return State.ACTIVE if self._unfenced else State.INACTIVE

    @property
    def unfenced(self) -> bool:
        """Whether this broker's own image shows its current registration unfenced.

        Controlled shutdown does not fence.
        """
        return self._unfenced

    def self_fenced(self, now: float) -> bool:
        """Return whether the broker must consider itself fenced, whatever its image shows, because
        it cannot prove that the image is current.
        """
        silent = (
            self._heartbeats and now - self._contact_at > self._settings.fencing_timeout_ms / 1000
        )
        return self.epoch < 0 or self._stale or silent or self.exit is not None

    def silent_s(self, now: float) -> float:
        """Return the seconds without an answer; 0 before registering, or without heartbeats."""
        return now - self._contact_at if self.epoch >= 0 and self._heartbeats else 0.0

    @property
    def serve_until(self) -> float:
        """Time when the broker must consider itself fenced unless a controller answers first; -inf
        if it must do so now; inf if silence does not matter.
        """
        if self.epoch < 0 or self._stale or self.exit is not None:
            return -NEVER
        if not self._heartbeats:
            return NEVER
        return self._contact_at + self._settings.fencing_timeout_ms / 1000

    def why_fenced(self, now: float) -> str:
        """Return why the broker serves nothing, for operators, or "" if it may serve."""
        if self.exit is not None:
            return self.exit.reason
        if self.epoch < 0:
            return f"not registered: {self._last_error}"
        if self._stale:
            return "the controller no longer knows this registration"
        if self.self_fenced(now):
            return f"no controller answered for {now - self._contact_at:.1f} s: {self._last_error}"
        return "" if self._unfenced else "fenced by the controller, or not yet unfenced"

    @property
    def heartbeats(self) -> bool:
        """Whether heartbeats are enabled (``broker.heartbeat.version``).

        Otherwise the broker sends none, and silence does not fence it.
        """
        return self._heartbeats

    @property
    def next_deadline(self) -> float:
        """Time at which to call ``poll`` again if nothing happens first."""
        if self.exit is not None:
            return NEVER
        limit = self._register_until
        if self.epoch >= 0:
            limit = min(self._stop_until, self._unreachable_at)
        return (
            limit if self._in_flight is not None or self._is_quiet() else min(limit, self._next_at)
        )

    @property
    def answer_within_s(self) -> float:
        """Longest wait for the answer to a request, in seconds."""
        answer_within_s = self._settings.answer_within_ms / 1000
        if self._stop_until == NEVER:
            return answer_within_s
        return min(answer_within_s, STOPPING_ATTEMPT_S)

    @property
    def _unreachable_at(self) -> float:
        """Return when a stopping broker that cannot connect to any controller stops without one."""
        return NEVER if self._stop_until == NEVER else self._connected_at + UNREACHABLE_S

    def _is_quiet(self) -> bool:
        """Return whether the broker is registered, and heartbeats are disabled.

        A stopping broker sends heartbeats even then: they request the controlled shutdown.
        """
        return self.epoch >= 0 and not self._heartbeats and self._stop_until == NEVER

    # --- requests --------------------------------------------------------------------------------

    def poll(self, now: float) -> Register | Heartbeat | None:
        """Return the request to send now, or None. It counts as in flight from now on."""
        self._check_limits(now)
        if (
            self.exit is not None
            or self._in_flight is not None
            or now < self._next_at
            or self._is_quiet()
        ):
            return None
        stopping = self._stop_until != NEVER
        if self.epoch < 0:
            self._in_flight = Register(self._previous_epoch)
        else:
            self._in_flight = Heartbeat(
                self.epoch, stopping, State.STOPPING if stopping else State.ACTIVE
            )
        self._urgent = False
        self._sent_at = now
        return self._in_flight

    def _check_limits(self, now: float) -> None:
        if self.exit is not None:
            return
        if now >= self._stop_until:
            self._leave("the controller did not end the controlled shutdown in time", clean=False)
        elif now >= self._unreachable_at:
            self._leave(
                "stopped without a controlled shutdown, as no controller can be reached:"
                f" {self._last_error}",
                clean=True,
            )
        elif self.epoch < 0 and now >= self._register_until:
            seconds = self._settings.registration_timeout_ms / 1000
            self._leave(
                f"could not register within {seconds:g} s (initial.broker.registration.timeout.ms):"
                f" {self._last_error}",
                clean=False,
            )

    # --- events ----------------------------------------------------------------------------------

    def registered(
        self,
        epoch: int,
        now: float,
        *,
        heartbeats: bool = True,
        metadata_offset: int = -1,
        generation: int = NO_GENERATION,
        previous_generations: Collection[int] = (),
    ) -> None:
        """Process the reply to a registration, which is committed under this broker epoch.

        ``heartbeats``: whether they are enabled; the broker's own image decides once it shows this
        registration, even if it was ahead of this reply. (If heartbeats were enabled while the
        reply was in transit, and no further record was written, the broker would otherwise send
        none until it was fenced.) ``metadata_offset``: offset up to which the controller had
        decided by then. An older image is not used: a later generation of the log may begin with
        this registration, and an image of its beginning would assign outdated partition roles and
        delete partitions created since. ``generation``: generation of the log that has the
        registration; it descends from ``previous_generations``.
        """
        self._registered_in = generation
        self.shown_from = max(epoch, metadata_offset)
        self._in_flight, self._stale = None, False
        shown = self._image_offset >= self.shown_from
        self._heartbeats = self._image_heartbeats if shown else heartbeats
        self.epoch = epoch
        self._contact_at = self._sent_at
        self._backoff.reset()
        self._next_at = now
        if self._generation not in (NO_GENERATION, generation, *previous_generations):
            # The reply belongs to a log that a restore or recovery has replaced meanwhile.
            self._begin_again(now)
            self._next_at = now + self._backoff.next_s()
        self._check_registration(now)

    @property
    def sent_at(self) -> float:
        """When the request in flight, or else the last one, was sent."""
        return self._sent_at

    def heartbeat_answered(
        self, now: float, *, should_shut_down: bool, next_within_s: float = NEVER
    ) -> None:
        """Process the active controller's answer to a heartbeat.

        The contact counts from when the heartbeat was sent. ``next_within_s``: time in seconds
        within which the next heartbeat is due, if that is sooner than usual.
        """
        self._in_flight = None
        if self.epoch < 0:
            return
        self._stale = False
        self._contact_at, self._connected_at = self._sent_at, now
        self._backoff.reset()
        stopping = self._stop_until != NEVER
        if stopping and should_shut_down:
            self._leave("controlled shutdown", clean=True)
        settings = self._settings
        interval_ms = settings.shutdown_interval_ms if stopping else settings.heartbeat_interval_ms
        interval_s = min(interval_ms / 1000, next_within_s)
        self._next_at = now if self._urgent else now + interval_s * self._rng.uniform(0.9, 1.0)

    def failed(self, error: ApiError, now: float) -> None:
        """Record that the request in flight failed, or that its outcome is unknown; it may be
        repeated either way.
        """
        failed, self._in_flight = self._in_flight, None
        self._last_error = str(error)
        if error.code is not ErrorCode.REQUEST_TIMED_OUT or error.outcome_unknown:
            self._connected_at = now  # The request was sent, or answered.
        if isinstance(failed, Register):
            self._next_at = now + self._backoff.next_s()
            if error.code in HOPELESS and not error.outcome_unknown:
                self._leave(f"the controller refuses the registration: {error}", clean=False)
        elif self.epoch >= 0:
            pause_s = self._backoff.next_s()
            stopping = self._stop_until != NEVER
            self._next_at = now + (min(pause_s, STOPPING_ATTEMPT_S) if stopping else pause_s)
            if error.code is ErrorCode.STALE_BROKER_EPOCH:
                self._stale = True
                self._check_registration(now)

    def abandoned(self) -> None:
        """Record that the answer to the request in flight is no longer awaited."""
        self._in_flight = None

    def metadata_applied(
        self, image_offset: int, registration: Broker | None, now: float, *, heartbeats: bool = True
    ) -> None:
        """Process a new image.

        ``registration``: the image's registration under this broker's id. ``heartbeats``: whether
        the image has them enabled.
        """
        reached = self.epoch >= 0 and self._image_offset < self.shown_from <= image_offset
        was_unfenced = self._unfenced
        self._image_offset, self._registration = image_offset, registration
        self._image_heartbeats = heartbeats
        if self.epoch >= 0 and image_offset >= self.shown_from and heartbeats != self._heartbeats:
            self._heartbeats = heartbeats
            # Count silence from now on, and send the first heartbeat now.
            self._contact_at, self._next_at = now, now
        self._check_registration(now)
        if reached or self._unfenced != was_unfenced:
            self.heartbeat_soon(now)

    def passed(self, image_offset: int) -> bool:
        """Process a new image with the same brokers and levels as the previous one.

        Returns False, and changes nothing, if it may be the first to show this registration.
        """
        if self._image_offset < self.shown_from:
            return False
        self._image_offset = image_offset
        return True

    def generation_seen(self, generation: int, now: float) -> None:
        """Process a new generation of the log, or the first that is known.

        A registration in another generation is void. (Otherwise: a broker registers, and before it
        has fetched anything, the quorum is lost and recovered without this registration. No
        controller of the shorter log knows the broker epoch, each considers itself stale, and the
        broker retries for ever.)
        """
        self._generation = generation
        self._image_offset, self._registration, self._unfenced = -1, None, False
        if self.epoch >= 0 and self._registered_in != generation:
            self._begin_again(now)

    def log_diverged(self, now: float) -> None:
        """Register again, as the log lacks records that were applied here, perhaps including the
        registration.
        """
        self._image_offset, self._registration, self._unfenced = -1, None, False
        if self.epoch >= 0:
            self._begin_again(now)

    def heartbeat_soon(self, now: float) -> None:
        """Send the next heartbeat as soon as none is in flight, because the controller must be
        informed at once.
        """
        if self.epoch < 0:
            return
        if self._in_flight:
            self._urgent = True
        else:
            self._next_at = min(self._next_at, now)

    def stop(self, now: float) -> None:
        """Request a controlled shutdown. Idempotent."""
        if self._stop_until != NEVER or self.exit is not None:
            return
        if self.epoch < 0:
            self._leave("stopped before it was registered", clean=True)
            return
        self._stop_until = now + self._settings.shutdown_timeout_ms / 1000
        self._connected_at = now
        self.heartbeat_soon(now)

    def _check_registration(self, now: float) -> None:
        """Determine from the broker's own image whether its registration is unfenced, and still the
        current one.

        The broker registers again only if this same process made the current registration;
        otherwise two live processes with one id would replace each other for ever. An image that
        has not reached the registration, or belongs to another log, does not count.
        """
        current = self._registration
        shown = (
            self.epoch >= 0
            and self._image_offset >= self.shown_from
            and self._registered_in == self._generation
        )
        self._unfenced = (
            shown and current is not None and current.epoch == self.epoch and not current.fenced
        )
        if not shown:
            return
        if current is None:
            self._gone(f"broker {self._broker_id} was unregistered")
        elif current.epoch != self.epoch and current.incarnation_id == self._incarnation_id:
            self._begin_again(now)
        elif current.epoch != self.epoch:
            self._gone(
                f"broker {self._broker_id} was replaced by another process: incarnation"
                f" {current.incarnation_id} at {current.endpoint or 'no endpoint'}, directory"
                f" {current.process.directory_id or 'unknown'}, broker epoch {current.epoch} (this"
                f" one: incarnation {self._incarnation_id}, broker epoch {self.epoch})"
            )

    def _gone(self, reason: str) -> None:
        """Stop, because another process or an operator has ended the registration.

        For a broker in controlled shutdown this is a clean exit.
        """
        self._leave(reason, clean=self._stop_until != NEVER)

    def _begin_again(self, now: float) -> None:
        if self._stop_until != NEVER:
            self._leave("stopped while it was not registered", clean=True)
            return
        self._previous_epoch, self.epoch = self.epoch, -1
        self._unfenced = self._stale = self._urgent = False
        self._register_until = now + self._settings.registration_timeout_ms / 1000
        self._next_at = now

    def _leave(self, reason: str, *, clean: bool) -> None:
        if self.exit is None:
            self.exit = Exit(reason, clean)
