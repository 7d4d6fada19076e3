"""The timeline: controllers, brokers, partitions in trouble and LAO, on a common axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from raftlog.metadata.entities import has_left
from replay.kernels import facts
from replay.kernels.arrays import Ints
from replay.lag.hold_ups import HoldUp
from replay.lag.waits import TimeSteps, Waited
from replay.outages.partitions import Condition, Troubled
from replay.outages.service import Controller
from replay.report.model import (
    MAX_BUCKETS,
    MAX_EXACT_SPANS,
    MAX_LANES,
    Axis,
    Lane,
    Level,
    Span,
    Wait,
)

REIGN = "reign"
SERVING, LEAVING, STOPPED, FENCED, STARTING, HOLDING = STATES = (
    "serving", "leaving", "stopped", "fenced", "starting", "holding",
)  # fmt: skip
"""Broker states. HOLDING, for a broker for which LAO waited, comes in addition to another state."""
_COARSE = 4
"""Number of axis steps, about ten pixels, within which spans are merged on a crowded timeline."""


def choose_axis(begins_ms: int, ends_ms: int) -> Axis:
    """Return the axis from the first record to the last, both inclusive."""
    length_ms = max(1, ends_ms - begins_ms + 1)
    return Axis(begins_ms, ends_ms, -(-length_ms // MAX_BUCKETS))


def steps_of(axis: Axis) -> TimeSteps:
    """Return the time steps of the axis."""
    return TimeSteps(axis.begins_ms, axis.bucket_ms)


def lanes_of(
    reigns: Iterable[Controller],
    brokers: Iterable[facts.BrokerSpan],
    hold_ups: Iterable[HoldUp],
    axis: Axis,
) -> tuple[list[Lane], int]:
    """Return the lane of the controllers and the lanes of the brokers with the most trouble, by id;
    and the number of brokers.
    """
    controllers = []
    for reign in reigns:
        text = f"{reign.leader_id} · epoch {reign.epoch}"
        controllers.append(_span(REIGN, reign.begins_ms, reign.ends_ms, reign.begins, text, axis))
    spans: dict[int, list[Span]] = defaultdict(list)
    racks: dict[int, str] = {}
    for each in sorted(brokers, key=lambda span: (span.broker_id, span.begins)):
        racks[each.broker_id] = each.rack or racks.get(each.broker_id, "")
        spans[each.broker_id].append(
            _span(_state(each), each.begins_ms, each.ends_ms, each.begins, each.reason or "", axis)
        )
    for up in hold_ups:
        for broker_id in spans.keys() & set(up.broker_ids):
            spans[broker_id].append(
                _span(HOLDING, up.began_ms, up.ended_ms, up.offset, up.reason or "", axis)
            )
    worst = sorted(spans, key=lambda broker_id: (-_trouble_ms(spans[broker_id]), broker_id))
    chosen = [("controller", "", controllers)] + [
        (f"broker {broker_id}", racks[broker_id], spans[broker_id])
        for broker_id in sorted(worst[:MAX_LANES])
    ]
    crowded = sum(len(each) for _, _, each in chosen) > MAX_EXACT_SPANS
    return [
        Lane(name, detail, _merged(each, axis) if crowded else sorted(each, key=_begin))
        for name, detail, each in chosen
    ], len(spans)


def _begin(span: Span) -> tuple[int, int]:
    return span.begins_ms, span.offset


def _span(
    state: str, begins_ms: int, ends_ms: int | None, offset: int, text: str, axis: Axis
) -> Span:
    ends_ms = axis.ends_ms if ends_ms is None else ends_ms
    return Span(state, begins_ms, ends_ms, offset, text, 1, ends_ms - begins_ms)


def _trouble_ms(spans: Iterable[Span]) -> int:
    return sum(each.total_ms for each in spans if each.state in {FENCED, HOLDING})


def _merged(spans: Iterable[Span], axis: Axis) -> list[Span]:
    """Merge spans of one state that begin within the same few axis steps."""
    groups: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=_begin):
        step = (span.begins_ms - axis.begins_ms) // (_COARSE * axis.bucket_ms)
        groups[span.state, step].append(span)
    found = [
        Span(
            state,
            some[0].begins_ms,
            max(each.ends_ms for each in some),
            some[0].offset,
            some[-1].text,
            len(some),
            sum(each.total_ms for each in some),
        )
        for (state, _), some in groups.items()
    ]
    return sorted(found, key=_begin)


def _state(each: facts.BrokerSpan) -> str:
    if has_left(bool(each.fenced), bool(each.in_controlled_shutdown)):
        return STOPPED
    if each.in_controlled_shutdown:
        return LEAVING
    if not each.fenced:
        return SERVING
    return STARTING if each.registration else FENCED


def waits_by_step(waited: Waited, axis: Axis) -> list[Wait]:
    """Return the times from commit to visible everywhere for each axis step in which records were
    written.
    """
    return [
        Wait(
            axis.begins_ms + step * axis.bucket_ms,
            each.durations + late,
            each.p50_ms,
            each.p99_ms,
            each.max_ms,
            late,
        )
        for step, (each, late) in waited.by_step().items()
    ]


def levels_of(found: Troubled, axis: Axis) -> list[Level]:
    """Return the most partitions without a leader, and with an incomplete ISR, within each axis
    step.
    """
    highest = (_highest(each, axis).tolist() for each in (found.leaderless, found.short))
    return [
        Level(axis.begins_ms + step * axis.bucket_ms, leaderless, short)
        for step, (leaderless, short) in enumerate(zip(*highest, strict=True))
    ]


def _highest(condition: Condition, axis: Axis) -> Ints:
    """Return the highest level in each step, including the level at its beginning."""
    at_ms, level = condition.levels
    step = (at_ms - axis.begins_ms) // axis.bucket_ms
    before = np.searchsorted(step, np.arange(axis.buckets))
    high = np.append(0, level)[before]
    np.maximum.at(high, step, level)
    return high
