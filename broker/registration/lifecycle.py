"""A broker's life as the controller sees it: registration, heartbeats, fencing, controlled shutdown. Pure.

States (KIP-343): *initial* (not registered in this life), *inactive* (registered, fenced), *active* (unfenced), *stopping*. A
broker knows that it is unfenced from its own applied image and its own broker epoch, never from a flag in a reply.

The shell calls :meth:`Lifecycle.poll` after each stimulus and at :attr:`Lifecycle.next_deadline`, sends what it returns
(one request at a time), and reports how that ended. ``now`` is seconds of a monotonic clock.

Why: docs/decisions/012-sessions-and-fencing.md
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import IntEnum

from broker.settings import LifecycleSettings
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker
from raftlog.transport.api import TransportLimits
from raftlog.transport.dialing import Backoff
from raftlog.wire.controller.v1 import controller_pb2

NEVER = float("inf")


class State(IntEnum):
    """KIP-343's BrokerState, with its numbers on the wire."""

    INITIAL = controller_pb2.INITIAL
    INACTIVE = controller_pb2.INACTIVE
    ACTIVE = controller_pb2.ACTIVE
    STOPPING = controller_pb2.STOPPING


@dataclass(frozen=True, slots=True)
class Register:
    """Send a registration. Safe to repeat: the incarnation id makes it the same one."""

    previous_broker_epoch: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send a heartbeat; what has been applied and told is for the shell to fill in."""

    broker_epoch: int
    want_shut_down: bool
    target_state: State


@dataclass(frozen=True, slots=True)
class Exit:
    """The broker must end. ``clean``: as it was asked to, with the controller's leave or nothing to leave."""

    reason: str
    clean: bool


UNKNOWN_GENERATION = -1

# A registration refused with one of these is refused again: tell the operator at once.
HOPELESS = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class Lifecycle:
    """The state machine of one broker process."""

    def __init__(
        self, settings: LifecycleSettings, *, broker_id: int, incarnation_id: str, rng: random.Random, now: float
    ) -> None:
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
        self._generation = self._registered_in = UNKNOWN_GENERATION
        self._previous_epoch = -1
        self._in_flight: Register | Heartbeat | None = None
        self._urgent = False
        self._sent_at = self._contact_at = now
        self._next_at = now
        self._register_until = now + settings.registration_timeout_ms / 1000
        self._last_error = "the controller has not answered"
        self._stop_until = NEVER
        self._stale = False
        self._unfenced = False
        self._heartbeats = True
        self._image_offset = -1
        self._registration: Broker | None = None
        self.shown_from = -1
        """The offset that its registration was decided on: an older image tells nothing about it, whatever it shows."""

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state to show."""
        if self._stop_until != NEVER:
            return State.STOPPING
        if self.epoch < 0:
            return State.INITIAL
        return State.ACTIVE if self._unfenced else State.INACTIVE

    @property
    def unfenced(self) -> bool:
        """Whether this broker's own image shows this very registration unfenced. Controlled shutdown does not fence."""
        return self._unfenced

    def self_fenced(self, now: float) -> bool:
        """Whether it has to take itself for fenced, whatever its image says: it cannot prove that it is current."""
        silent = self._heartbeats and now - self._contact_at > self._settings.fencing_timeout_ms / 1000
        return self.epoch < 0 or self._stale or silent or self.exit is not None

    @property
    def serve_until(self) -> float:
        """When it has to take itself for fenced if it hears nothing before; -inf: it has to already, inf: silence means nothing."""
        if self.epoch < 0 or self._stale or self.exit is not None:
            return -NEVER
        if not self._heartbeats:
            return NEVER
        return self._contact_at + self._settings.fencing_timeout_ms / 1000

    def why_fenced(self, now: float) -> str:
        """For people: why it serves nothing, empty if it may serve."""
        if self.exit is not None:
            return self.exit.reason
        if self.epoch < 0:
            return f"not registered: {self._last_error}"
        if self._stale:
            return "the controller does not know this registration any more"
        if self.self_fenced(now):
            return f"no controller reached for {now - self._contact_at:.1f} s: {self._last_error}"
        return "" if self._unfenced else "fenced by the controller, or not yet unfenced"

    @property
    def heartbeats(self) -> bool:
        """Whether heartbeats are in force (``broker.heartbeat.version``): if not, it sends none and does not fence itself for silence."""
        return self._heartbeats

    @property
    def next_deadline(self) -> float:
        """When to poll again if nothing happens before."""
        if self.exit is not None:
            return NEVER
        limit = self._stop_until if self.epoch >= 0 else self._register_until
        return limit if self._in_flight is not None or self._is_quiet() else min(limit, self._next_at)

    def _is_quiet(self) -> bool:
        """Registered, heartbeats not in force. A broker that stops sends them all the same: they are its request to leave."""
        return self.epoch >= 0 and not self._heartbeats and self._stop_until == NEVER

    # --- what it does -------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> Register | Heartbeat | None:
        """What to send now, if anything; it counts as in flight from here on."""
        self._check_limits(now)
        if self.exit is not None or self._in_flight is not None or now < self._next_at or self._is_quiet():
            return None
        stopping = self._stop_until != NEVER
        if self.epoch < 0:
            self._in_flight = Register(self._previous_epoch)
        else:
            self._in_flight = Heartbeat(self.epoch, stopping, State.STOPPING if stopping else State.ACTIVE)
        self._urgent = False
        self._sent_at = now
        return self._in_flight

    def _check_limits(self, now: float) -> None:
        if self.exit is not None:
            return
        if now >= self._stop_until:
            self._leave("the controller did not end the controlled shutdown in time", clean=False)
        elif self.epoch < 0 and now >= self._register_until:
            seconds = self._settings.registration_timeout_ms / 1000
            self._leave(
                f"could not register within {seconds:g} s (initial.broker.registration.timeout.ms): {self._last_error}",
                clean=False,
            )

    # --- what happens to it -------------------------------------------------------------------------------------------

    def registered(
        self,
        epoch: int,
        now: float,
        *,
        heartbeats: bool = True,
        metadata_offset: int = -1,
        generation: int = UNKNOWN_GENERATION,
    ) -> None:
        """The registration is committed under this broker epoch. ``heartbeats``: whether they are in force, until the own image says.

        ``metadata_offset``: what the controller had decided up to then [in another generation of the log this very registration may
        stand at its beginning: an image from there would give roles of long ago, and delete what was created since].
        ``generation``: of the log in which it is registered.
        """
        self._registered_in = generation
        self.shown_from = max(epoch, metadata_offset)
        self._in_flight, self._stale = None, False
        self._heartbeats = heartbeats
        self.epoch = epoch
        self._contact_at = self._sent_at
        self._backoff.reset()
        self._next_at = now
        if generation != UNKNOWN_GENERATION and generation < self._generation:
            # The answer of a log that was taken back meanwhile.
            self._begin_again(now)
        self._look(now)

    @property
    def sent_at(self) -> float:
        """When what is in flight was sent, or what was last."""
        return self._sent_at

    def heartbeat_answered(self, now: float, *, should_shut_down: bool, next_within_s: float = NEVER) -> None:
        """The active controller took a heartbeat. Contact counts from when it was sent.

        ``next_within_s``: the next one is due by then, if that is earlier than usual.
        """
        self._in_flight = None
        if self.epoch < 0:
            return
        self._stale = False
        self._contact_at = self._sent_at
        self._backoff.reset()
        stopping = self._stop_until != NEVER
        if stopping and should_shut_down:
            self._leave("controlled shutdown", clean=True)
        settings = self._settings
        interval_ms = settings.shutdown_interval_ms if stopping else settings.heartbeat_interval_ms
        interval_s = min(interval_ms / 1000, next_within_s)
        self._next_at = now if self._urgent else now + interval_s * self._rng.uniform(0.9, 1.0)

    def failed(self, error: ApiError, now: float) -> None:
        """What was in flight has failed, or its outcome is unknown: both requests may be repeated."""
        failed, self._in_flight = self._in_flight, None
        self._last_error = str(error)
        if isinstance(failed, Register):
            self._next_at = now + self._backoff.next_s()
            if error.code in HOPELESS and not error.outcome_unknown:
                self._leave(f"the controller refuses the registration: {error}", clean=False)
        elif self.epoch >= 0:
            self._next_at = now + self._backoff.next_s()
            if error.code is ErrorCode.STALE_BROKER_EPOCH:
                self._stale = True
                self._look(now)

    def metadata_applied(
        self, image_offset: int, registration: Broker | None, now: float, *, heartbeats: bool = True
    ) -> None:
        """This broker's image moved; ``registration`` is what it holds under this broker's id, ``heartbeats``: they are in force."""
        reached = self.epoch >= 0 and self._image_offset < self.shown_from <= image_offset
        was_unfenced = self._unfenced
        self._image_offset, self._registration = image_offset, registration
        if self.epoch >= 0 and image_offset >= self.shown_from and heartbeats != self._heartbeats:
            self._heartbeats = heartbeats
            # Silence counts from here, and the first heartbeat leaves now.
            self._contact_at, self._next_at = now, now
        self._look(now)
        if reached or self._unfenced != was_unfenced:
            self.hasten(now)

    def generation_seen(self, generation: int, now: float) -> None:
        """The log is of this generation, another one than before or the first one that is known: a registration elsewhere is void.

        [A broker registers; before it has fetched anything the quorum is lost, and recovered without this registration. No controller
        of the shorter log knows its epoch, each takes itself for the stale one, and the broker asks for ever.]
        """
        first = self._generation == UNKNOWN_GENERATION
        self._generation = generation
        self._image_offset, self._registration, self._unfenced = -1, None, False
        known = self._registered_in != UNKNOWN_GENERATION
        if self.epoch >= 0 and (self._registered_in != generation if known else not first):
            self._begin_again(now)

    def hasten(self, now: float) -> None:
        """Something a controller should know at once has happened: heartbeat as soon as none is in flight."""
        if self.epoch < 0:
            return
        if self._in_flight:
            self._urgent = True
        else:
            self._next_at = min(self._next_at, now)

    def stop(self, now: float) -> None:
        """Ask for a controlled shutdown. Idempotent."""
        if self._stop_until != NEVER or self.exit is not None:
            return
        if self.epoch < 0:
            self._leave("stopped before it was registered", clean=True)
            return
        self._stop_until = now + self._settings.shutdown_timeout_ms / 1000
        self.hasten(now)

    def _look(self, now: float) -> None:
        """Read off the own image whether this registration is unfenced, and whether it is still the one in force.

        Only a registration made by this very process is renewed by itself [two live processes with one id would throw each
        other out for ever]. Until the image has reached the registration, it tells nothing.
        """
        current = self._registration
        shown = self.epoch >= 0 and self._image_offset >= self.shown_from
        self._unfenced = shown and current is not None and current.epoch == self.epoch and not current.fenced
        if not shown:
            return
        if current is None:
            self._gone(f"broker {self._broker_id} was unregistered")
        elif current.epoch != self.epoch and current.incarnation_id == self._incarnation_id:
            self._begin_again(now)
        elif current.epoch != self.epoch:
            self._gone(
                f"broker {self._broker_id} was replaced by another process: incarnation {current.incarnation_id} at "
                f"{current.endpoint or 'no endpoint'}, directory {current.process.directory_id or 'unknown'}, broker epoch "
                f"{current.epoch} (this one: incarnation {self._incarnation_id}, broker epoch {self.epoch})"
            )

    def _gone(self, reason: str) -> None:
        """Somebody else ended the registration: for a broker that was leaving anyway, that is the leave."""
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
