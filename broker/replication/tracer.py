"""How somebody follows the partition replicas of a broker: simulations, tests, a debugger."""

from __future__ import annotations

from typing import Protocol

from broker.partition.events import Effect, Event
from raftlog.step_tracer import StepTracer


class ReplicasTracer(StepTracer[Event, Effect], Protocol):
    """Only looks. The steps are those of all partition replicas of one broker."""

    def replicas_recovered(self) -> None:
        """The store was read; nothing was stepped yet."""
