"""Who traces a state machine sees each step before its effects; nobody else pays for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftlog.step_tracer import traced


class Tracer:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def stepped(self, event: int, effects: Sequence[str], now: float) -> None:
        self.seen.append((event, list(effects), now))

    def step_failed(self, error: Exception) -> None:
        self.seen.append(error)


def step(event: int, now: float) -> list[str]:
    if event < 0:
        raise ValueError(event)
    return [str(event)] * event


def test_without_a_tracer_the_step_is_the_step() -> None:
    assert traced(step, None) is step


def test_each_step_is_told_with_its_effects_and_its_time() -> None:
    tracer = Tracer()
    assert traced(step, tracer)(2, 0.5) == ["2", "2"]
    assert tracer.seen == [(2, ["2", "2"], 0.5)]


def test_a_step_that_raises_is_told_and_raises() -> None:
    tracer = Tracer()
    with pytest.raises(ValueError, match="-1") as raised:
        traced(step, tracer)(-1, 0.5)
    assert tracer.seen == [raised.value]
