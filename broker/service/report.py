"""A broker's own state: whether it may accept new requests, until when it may serve partitions, its
reports for probes, operators and RPCs, and its journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.metadata.follower import MetadataFollower
from broker.metadata.read_gate import ReadLease
from broker.metadata.view import View
from broker.partition.describe import LOG_AHEAD, LOW_SPACE, NO_HIGH_WATERMARK
from broker.partition.events import BrokerStatusChanged
from broker.registration.lifecycle import Lifecycle
from broker.registration.registration_client import RegistrationClient
from broker.replication.data_plane import DataPlane, ReplicasTracer
from broker.settings import LifecycleSettings
from raftlog.clock import NEVER, QuorumTime
from raftlog.metadata.entities import format_hash
from raftlog.node.observability.clock_watch import ClockWatch
from raftlog.node.observability.journal import Journal, Kind
from raftlog.text import counted
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2


class BrokerTracer(ReplicasTracer, Protocol):
    """Observes a broker, and changes nothing."""

    def view_moved(self) -> None:
        """Record that the metadata view has applied records or a snapshot, has accepted an
        announcement of LAO and controller epoch, or was emptied.
        """

    def fencing_checked(self, why_fenced: str) -> None:
        """Record a client's request that only an unfenced broker serves.

        ``why_fenced``: why the request is refused, or "" if it is served.
        """


class Fencing:
    """Decides from the registration, the session and the known LAO whether this broker is fenced.

    ``now``: seconds of the loop's clock.
    """

    def __init__(
        self,
        view: View,
        lifecycle: Lifecycle,
        now: Callable[[], float],
        tracer: BrokerTracer | None = None,
    ) -> None:
        self._view, self._lifecycle = view, lifecycle
        self._now, self._tracer = now, tracer

    def why(self) -> str:
        """Return why this broker accepts no new requests, or "" if it does. Also used for
        readiness.
        """
        if why := self._lifecycle.why_fenced(self._now()):
            return why
        if self._view.lao_above_applied:
            return (
                "the lowest acknowledged offset received is above the offset applied here: the"
                " controller does not count this broker"
            )
        return ""

    def why_for_client(self) -> str:
        """Return ``why`` for a client's request, and notify the tracer."""
        why = self.why()
        if self._tracer is not None:
            self._tracer.fencing_checked(why)
        return why

    def status(self) -> BrokerStatusChanged:
        """Return this broker's status, for each step of the data plane."""
        why = self.why()
        serve_until = self._lifecycle.serve_until if not why else -NEVER
        return BrokerStatusChanged(
            self._lifecycle.epoch, serve_until, why, self._lifecycle.shown_from
        )


_ALSO = {
    NO_HIGH_WATERMARK: "led partitions that wait for an ISR member before they can be read",
    LOW_SPACE: "low on space, led partitions that refuse producers",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one broker, for code that only reads them.

    ``now``: seconds of the loop's clock.
    """

    view: View
    lifecycle: Lifecycle
    lease: ReadLease
    fencing: Fencing
    follower: MetadataFollower
    registration: RegistrationClient
    data: DataPlane | None
    time: QuorumTime
    now: Callable[[], float]


class BrokerReport:
    """The reports of one broker."""

    def __init__(self, broker_id: int, parts: Parts) -> None:
        self._broker_id, self._parts = broker_id, parts

    def ready(self) -> tuple[bool, str]:
        """Return whether the broker serves, and its state or why not, with the partitions that it
        leads according to the metadata but cannot serve.

        It is not ready while it does not lead partitions that it should lead, so that a rolling
        restart does not continue. A condition that passes by itself, or that leaves reads possible,
        is only reported.
        """
        why, contradiction = self._parts.fencing.why(), self.log_contradiction
        serving = f"serving up to offset {self._parts.view.applied}"
        if contradiction:
            serving, why = f"{serving}; {contradiction}", why and f"{why}; {contradiction}"
        if why or self._parts.data is None or not self._parts.data.recovered:
            return not why, why or serving
        counts, example = self._parts.data.unserved()
        if counts[LOG_AHEAD]:
            return (
                False,
                (
                    f"{counted(counts[LOG_AHEAD], 'partition')} not led, although the metadata says"
                    f" so: {example}"
                ),
            )
        also = "".join(
            f"; {text}: {counts[reason]}" for reason, text in _ALSO.items() if counts[reason]
        )
        return True, f"{serving}{also}"

    @property
    def log_contradiction(self) -> str:
        """Why the log contradicts what is applied here, for operators, or "" if it does not."""
        return self._parts.follower.contradiction or self._parts.follower.refused

    def status(self) -> dict[str, object]:
        """Return the state that an operator checks first."""
        view, lifecycle = self._parts.view, self._parts.lifecycle
        return {
            "state": lifecycle.state.name.lower(),
            "broker epoch": lifecycle.epoch,
            "controller": self._parts.follower.controller_id,
            "controller epoch": view.controller_epoch,
            "applied": view.applied,
            "lowest acknowledged offset": view.known_lao,
            "read lease ms": self._parts.lease.remaining_ms(self._parts.now()),
            "fenced because": self._parts.fencing.why(),
            "heartbeats": ("on" if lifecycle.heartbeats else "off (broker.heartbeat.version is 0)"),
            "timeouts": self._parts.registration.misfit or "fit those of the controllers",
        }

    def describe(self) -> broker_pb2.DescribeBrokerResponse:
        """Return this broker's description of itself, by offsets and epochs."""
        view, lifecycle = self._parts.view, self._parts.lifecycle
        return broker_pb2.DescribeBrokerResponse(
            broker_id=self._broker_id,
            broker_epoch=lifecycle.epoch,
            state=controller_pb2.BrokerLifecycleState.Name(lifecycle.state),
            controller_id=self._parts.follower.controller_id,
            controller_epoch=view.controller_epoch,
            generation=view.generation,
            high_watermark=view.high_watermark,
            applied_offset=view.applied,
            lowest_acknowledged_offset=view.known_lao,
            state_hash=format_hash(view.tip.state_hash),
            self_fenced=lifecycle.self_fenced(self._parts.now()) or view.lao_above_applied,
            image_bytes_kept=view.bytes_kept,
            read_lease_ms=self._parts.lease.remaining_ms(self._parts.now()),
            clock_ahead_ms=self._parts.time.ahead_ms(),
        )


TICK_S = 0.2
LOOP_GAP_S = 0.5
SILENT_HEARTBEATS = 2
"""Number of heartbeats without an answer after which no controller counts as known."""


class BrokerLife:
    """Writes the events of a broker's own life to its journal."""

    def __init__(self, journal: Journal, settings: LifecycleSettings, parts: Parts) -> None:
        self._journal, self._parts = journal, parts
        self._silent_s = SILENT_HEARTBEATS * settings.heartbeat_interval_ms / 1000
        self._clock = ClockWatch(parts.time.ahead_ms, journal)
        self._ticked_at: float | None = None
        self._epoch = self._controller = -1
        self._unfenced = self._leased = self._low = False
        self._loaded = self._hangs = 0

    def tick(self, now: float) -> None:
        """Record what has changed since the last tick."""
        last, self._ticked_at = self._ticked_at, now
        if last is not None and now - last > TICK_S + LOOP_GAP_S:
            self._journal.note(Kind.LOOP_STALL, gap_ms=round((now - last - TICK_S) * 1000))
        self._look_at_controller(now)
        self._look_at_fencing()
        self._look_at_lease(now)
        self._look_at_data()
        self._clock.tick(now)

    def _look_at_controller(self, now: float) -> None:
        silent = self._parts.lifecycle.silent_s(now) > self._silent_s
        controller = -1 if silent else self._parts.follower.controller_id
        if controller == self._controller:
            return
        if controller >= 0:
            epoch = self._parts.view.controller_epoch
            self._journal.note(Kind.CONTROLLER_FOUND, controller_id=controller, epoch=epoch)
        else:
            self._journal.note(Kind.CONTROLLER_LOST, controller_id=self._controller)
        self._controller = controller

    def _look_at_fencing(self) -> None:
        epoch = self._parts.lifecycle.epoch
        if epoch >= 0 and epoch != self._epoch:
            self._journal.note(Kind.REGISTERED, broker_epoch=epoch)
        self._epoch = epoch
        why = self._parts.fencing.why()
        if not why and not self._unfenced:
            self._journal.note(Kind.UNFENCED, broker_epoch=epoch)
        elif why and self._unfenced:
            self._journal.note(Kind.FENCED, reason=why)
        self._unfenced = not why

    def _look_at_lease(self, now: float) -> None:
        leased = self._parts.lease.held(now)
        if leased and not self._leased:
            self._journal.note(Kind.LEASE_GRANTED)
        elif self._leased and not leased:
            wanted = self._parts.lease.wanted(now)
            reason = self._parts.lease.refusal() if wanted else "there are no more strict readers"
            self._journal.note(Kind.LEASE_LOST, reason=reason)
        self._leased = leased

    def _look_at_data(self) -> None:
        if self._parts.follower.snapshots_installed > self._loaded:
            self._loaded = self._parts.follower.snapshots_installed
            self._journal.note(Kind.SNAPSHOT_LOADED, end_offset=self._parts.view.applied + 1)
        if self._parts.data is None:
            return
        if self._parts.data.hangs > self._hangs:
            self._hangs = self._parts.data.hangs
            self._journal.note(Kind.DISK_STALL, busy_ms=self._parts.data.hung_ms)
        if self._parts.data.space.low == self._low:
            return
        self._low = self._parts.data.space.low
        kind = Kind.SPACE_LOW if self._low else Kind.SPACE_REGAINED
        self._journal.note(kind, free_bytes=self._parts.data.space.free_bytes)
