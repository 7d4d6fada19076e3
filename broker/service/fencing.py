"""The check whether a broker may accept new requests, and until when it may serve partitions."""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.view import View
from broker.partition.events import BrokerStatusChanged
from broker.registration.lifecycle import Lifecycle
from broker.service.tracer import BrokerTracer
from raftlog.clock import NEVER


class Fencing:
    """The verdict by the registration, the session, and the known LAO.

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
        """Return why this broker accepts nothing new; empty if it does. For readiness too."""
        if why := self._lifecycle.why_fenced(self._now()):
            return why
        if self._view.lao_above_applied:
            return (
                "a lowest acknowledged offset above what is applied here was told: this broker is"
                " not counted"
            )
        return ""

    def why_for_client(self) -> str:
        """Return ``why`` for a client's request, and tell the tracer."""
        why = self.why()
        if self._tracer is not None:
            self._tracer.fencing_checked(why)
        return why

    def status(self) -> BrokerStatusChanged:
        """Return this broker's knowledge of itself: called before each step of the data plane."""
        why = self.why()
        serve_until = self._lifecycle.serve_until if not why else -NEVER
        return BrokerStatusChanged(
            self._lifecycle.epoch, serve_until, why, self._lifecycle.shown_from
        )
