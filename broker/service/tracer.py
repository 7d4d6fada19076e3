"""How somebody follows a broker process: simulations, tests, a debugger."""

from __future__ import annotations

from typing import Protocol

from broker.replication.tracer import ReplicasTracer


class BrokerTracer(ReplicasTracer, Protocol):
    """Only looks."""

    def view_moved(self) -> None:
        """The metadata view has applied records or a snapshot, has taken an announcement of LAO and
        controller epoch, or was emptied.
        """

    def fencing_checked(self, why_fenced: str) -> None:
        """A client has asked for what only an unfenced broker does. ``why_fenced``: why it is not
        done, empty if it is.
        """
