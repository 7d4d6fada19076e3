"""A tracer of a state machine's steps, for simulations, tests and debuggers.

Not an observer, which is a node of the quorum without a vote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_contra = TypeVar("Effect_contra", contravariant=True)


class StepTracer(Protocol[Event_contra, Effect_contra]):
    """A tracer. It only reads: it changes neither the state machine nor its arguments."""

    def stepped(self, event: Event_contra, effects: Sequence[Effect_contra], now: float) -> None:
        """Trace a step, before any of its effects is carried out. ``now``: the time passed to the
        step.

        An error raised here stops the shell, as an error in the step would.
        """

    def step_failed(self, error: Exception) -> None:
        """Trace a failed step: it has no effects, and no step follows."""


def traced(
    step: Callable[[Event, float], list[Effect]], tracer: StepTracer[Event, Effect] | None
) -> Callable[[Event, float], list[Effect]]:
    """Return ``step`` with a tracer, or ``step`` itself without one, so that tracing costs nothing
    when unused.
    """
    if tracer is None:
        return step

    def stepped(event: Event, now: float) -> list[Effect]:
        try:
            effects = step(event, now)
        except Exception as error:
            tracer.step_failed(error)
            raise
        tracer.stepped(event, effects, now)
        return effects

    return stepped
