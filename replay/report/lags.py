"""LAO on the time axis: how long writes waited to be visible everywhere, and the brokers that held
it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replay.kernels.histogram import Figures
from replay.lag import holders
from replay.lag.model import LaoStall
from replay.lag.waits import Waited
from replay.report.axis import start_of
from replay.report.model import NOTICE, WARNING, Axis, BrokerSpan, Event, Wait

HOLDING = "holding"
"""A broker's state, beside the others: LAO waited for it."""
_LONG_MS = 10_000
"""Duration from which a hold-up is a warning, in ms: shorter ones show in the curve."""


def waits_by_step(waited: Waited, axis: Axis) -> list[Wait]:
    """From commit to visible everywhere, for what was written in each step of the axis; steps
    without a write are left out.
    """
    figures, waiting = waited.steps.figures(), waited.waiting_steps
    told = []
    for step in sorted({*figures, *waiting}):
        each, late = figures.get(step, Figures()), waiting.get(step, 0)
        told.append(
            Wait(
                start_of(axis, step),
                each.durations + late,
                each.p50_ms,
                each.p99_ms,
                each.max_ms,
                late,
            )
        )
    return told


def of_hold_ups(hold_ups: Iterable[LaoStall]) -> Iterator[Event]:
    """Yield the hold-ups as events. No write waits before the first broker of a cluster."""
    for up in hold_ups:
        if up.is_before_first_broker:
            continue
        yield Event(
            "held_back",
            WARNING if up.waited_ms >= _LONG_MS else NOTICE,
            up.began_ms,
            None if up.last_offset is None else up.ended_ms,
            _offset(up),
            up.records,
            _by_whom(up),
        )


def _offset(up: LaoStall) -> int:
    return next((each for each in (up.first_offset, up.last_offset) if each is not None), 0)


def _by_whom(up: LaoStall) -> str:
    if up.broker_ids:
        several = "s" if len(up.broker_ids) > 1 else ""
        return f"LAO held back by broker{several} {', '.join(map(str, up.broker_ids))}"
    if up.cause == holders.FAILOVER:
        return "LAO unknown while brokers reported to a new controller"
    if up.cause == holders.NO_BROKER:
        return "LAO unknown, no broker was in service"
    return "LAO held back, the log does not say by whom"


def holding_spans(hold_ups: Iterable[LaoStall]) -> Iterator[tuple[int, BrokerSpan]]:
    """Yield the spans in which each broker held LAO back, for its lane."""
    for up in hold_ups:
        span = BrokerSpan(
            HOLDING,
            up.began_ms,
            up.ended_ms,
            1,
            up.ended_ms - up.began_ms,
            up.reason or "",
            _offset(up),
        )
        yield from ((broker, span) for broker in up.broker_ids)
