"""The interface by which simulations, tests and debuggers observe a broker process."""

from __future__ import annotations

from typing import Protocol

from broker.replication.tracer import ReplicasTracer


class BrokerTracer(ReplicasTracer, Protocol):
    """An observer that changes nothing."""

    def view_moved(self) -> None:
        """Note that the metadata view has applied records or a snapshot, has accepted an
        announcement of LAO and controller epoch, or was emptied.
        """

    def fencing_checked(self, why_fenced: str) -> None:
        """Note a client's request that only an unfenced broker serves. ``why_fenced``: why it is
        refused, empty if it is not.
        """
