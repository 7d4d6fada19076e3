"""A broker's reports about itself: for probes, for people, and for RPCs."""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.follower import MetadataFollower
from broker.metadata.read_lease import ReadLease
from broker.metadata.view import View
from broker.partition.describe import LOG_AHEAD, LOW_SPACE, NO_HIGH_WATERMARK
from broker.registration.lifecycle import Lifecycle
from broker.registration.registration_client import RegistrationClient
from broker.replication.data_plane import DataPlane
from broker.service.fencing import Fencing
from raftlog.clock import QuorumTime
from raftlog.metadata.entities import format_hash
from raftlog.text import counted
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

_ALSO = {
    NO_HIGH_WATERMARK: "led partitions that wait for a member of their ISR before they can be read",
    LOW_SPACE: "low on space, led partitions that refuse producers",
}


class BrokerReport:
    """A reader of one broker's parts that changes none. ``now``: seconds of the loop's clock."""

    def __init__(
        self,
        broker_id: int,
        view: View,
        lifecycle: Lifecycle,
        lease: ReadLease,
        fencing: Fencing,
        follower: MetadataFollower,
        registration: RegistrationClient,
        data: DataPlane | None,
        time: QuorumTime,
        *,
        now: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._view, self._lifecycle = view, lifecycle
        self._lease, self._fencing = lease, fencing
        self._follower, self._registration = follower, registration
        self._data, self._time, self._now = data, time, now

    def ready(self) -> tuple[bool, str]:
        """Return whether it serves, and its state or why not; also which partitions it leads by the
        metadata and cannot serve.

        Not ready with partitions that it should lead and does not: a rolling restart must not go
        on. A condition that passes by itself, or that leaves reads possible, is only reported.
        """
        why, contradiction = self._fencing.why(), self.log_contradiction
        serving = f"serving up to offset {self._view.applied}"
        if contradiction:
            serving, why = f"{serving}; {contradiction}", why and f"{why}; {contradiction}"
        if why or self._data is None or not self._data.recovered:
            return not why, why or serving
        counts, example = self._data.unserved()
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
        return True, f"{serving}{also}"

    @property
    def log_contradiction(self) -> str:
        """Return, for people, why the log contradicts what is applied here; empty: it does not."""
        return self._follower.contradiction or self._follower.refused

    def status(self) -> dict[str, object]:
        """Return the state that a person checks first."""
        view, lifecycle = self._view, self._lifecycle
        return {
            "state": lifecycle.state.name.lower(),
            "broker epoch": lifecycle.epoch,
            "controller": self._follower.controller_id,
            "controller epoch": view.controller_epoch,
            "applied": view.applied,
            "lowest acknowledged offset": view.known_lao,
            "read lease ms": self._lease.remaining_ms(self._now()),
            "fenced because": self._fencing.why(),
            "heartbeats": (
                "in force" if lifecycle.heartbeats else "off (broker.heartbeat.version is 0)"
            ),
            "timeouts": self._registration.misfit or "fit the controllers'",
        }

    def describe(self) -> broker_pb2.DescribeBrokerResponse:
        """Return this broker's description of itself, by offsets and epochs."""
        view, lifecycle = self._view, self._lifecycle
        return broker_pb2.DescribeBrokerResponse(
            broker_id=self._broker_id,
            broker_epoch=lifecycle.epoch,
            state=controller_pb2.BrokerLifecycleState.Name(lifecycle.state),
            controller_id=self._follower.controller_id,
            controller_epoch=view.controller_epoch,
            generation=view.generation,
            high_watermark=view.high_watermark,
            applied_offset=view.applied,
            lowest_acknowledged_offset=view.known_lao,
            state_hash=format_hash(view.tip.state_hash),
            self_fenced=lifecycle.self_fenced(self._now()) or view.lao_above_applied,
            image_bytes_kept=view.bytes_kept,
            read_lease_ms=self._lease.remaining_ms(self._now()),
            clock_ahead_ms=self._time.ahead_ms(),
        )
