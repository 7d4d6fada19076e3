"""Former incarnations of a broker: a replaced incarnation is told so, and none of its heartbeats is
accepted any more.

A heartbeat that leaves its broker when a newer registration of that id is committed, and that is
answered by the controller of that registration's epoch or of a later one, must not be answered as a
good one: that controller had the registration in its log when the heartbeat arrived.

Would catch: a heartbeat whose broker epoch is not compared, which keeps the session of a dead
successor alive, unfences or stops it.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView
from simulation.checks.ledger import Ledger
from simulation.checks.pending_requests import Asked


class Incarnations(Checker):
    """Checks heartbeats of broker incarnations that are not registered any more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked = Asked[tuple[int, int, float]]("broker_heartbeat")
        """Broker id, broker epoch, when."""
        self.stale = 0
        """Answers looked at that were to a former incarnation."""

    @override
    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if self._asked.kind_of(message):
            beat = message.broker_heartbeat
            sent = beat.broker_id, beat.broker_epoch, self._ledger.world.now()
            self._asked.note(host.name, peer, message.correlation_id, sent)
            return
        found = self._asked.answered(host.name, peer, message)
        if found is not None:
            self._answered(host.name, peer, message, *found)

    def _answered(
        self,
        controller: str,
        peer: str,
        response: pb.ControllerResponse,
        broker_id: int,
        epoch: int,
        sent_at: float,
    ) -> None:
        newer = next(
            (s for s in self._ledger.golden.standings(broker_id) if s.broker_epoch > epoch), None
        )
        if (
            newer is None
            or newer.committed_at >= sent_at
            or response.controller_epoch < newer.controller_epoch
        ):
            return
        self.stale += 1
        if not response.HasField("error"):
            raise CheckFailedError(
                f"{controller} accepts a heartbeat of {peer}, broker {broker_id} of epoch {epoch},"
                f" in controller epoch {response.controller_epoch}; it was replaced: {newer}"
            )
