"""The interface by which simulations, tests and debuggers observe partition replicas."""

from __future__ import annotations

from typing import Protocol

from broker.partition.events import Effect, Event
from raftlog.step_tracer import StepTracer


class ReplicasTracer(StepTracer[Event, Effect], Protocol):
    """An observer that changes nothing, of the steps of one broker's partition replicas."""

    def replicas_recovered(self) -> None:
        """Note that the store was recovered; nothing was stepped yet."""
