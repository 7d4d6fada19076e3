"""Former incarnations of a broker: whoever has been replaced in the log is told so, and no heartbeat of his is accepted any more.

A heartbeat that leaves its broker when a newer registration of that id is committed, and that is answered by the controller of that
registration's epoch or of a later one, must not be answered as a good one: that controller had the registration in its log when the
heartbeat arrived.

Would catch: a heartbeat whose broker epoch is not compared, which keeps the session of a dead successor alive, unfences or stops him.
"""

from __future__ import annotations

from typing_extensions import override

from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView
from simulation.checks.ledger import Ledger

SENT_MAX = 1000


class Incarnations(Checker):
    """Heartbeats of who is not registered any more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sent: dict[tuple[str, str, int], tuple[int, int, float]] = {}
        """(broker's host, controller's host, correlation id) -> (broker id, broker epoch, when)."""
        self.stale = 0
        """Answers looked at that were to a former incarnation."""

    @override
    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: object) -> None:
        if type(message) is pb.ControllerRequest:
            if message.WhichOneof("body") == "broker_heartbeat":
                beat = message.broker_heartbeat
                key = host.name, peer, message.correlation_id
                self._sent.pop(key, None)
                self._sent[key] = beat.broker_id, beat.broker_epoch, self._ledger.world.now()
                if len(self._sent) > SENT_MAX:
                    del self._sent[next(iter(self._sent))]
        elif type(message) is pb.ControllerResponse and message.WhichOneof("body") in (None, "broker_heartbeat"):
            # Other links of the same two hosts count their requests, too.
            found = self._sent.pop((peer, host.name, message.correlation_id), None)
            if found is not None:
                self._answered(host.name, peer, message, *found)

    def _answered(
        self, controller: str, peer: str, response: pb.ControllerResponse, broker_id: int, epoch: int, sent_at: float
    ) -> None:
        newer = next((s for s in self._ledger.golden.standings(broker_id) if s.broker_epoch > epoch), None)
        if newer is None or newer.committed_at >= sent_at or response.controller_epoch < newer.controller_epoch:
            return
        self.stale += 1
        if not response.HasField("error"):
            raise CheckFailedError(
                f"{controller} accepts a heartbeat of {peer}, broker {broker_id} of epoch {epoch}, in controller epoch"
                f" {response.controller_epoch}; it was replaced: {newer}"
            )
