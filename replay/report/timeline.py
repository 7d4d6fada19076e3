"""The timeline: controllers, brokers, impaired partitions, LAO, the log's growth and the incidents,
on one axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from msgspec import structs

from raftlog.metadata.entities import has_left
from replay.churn.growth import Growth
from replay.jobs.lao import Lao
from replay.kernels import facts
from replay.kernels.arrays import Ints
from replay.kernels.findings import Finding
from replay.kernels.intervals import Names
from replay.kernels.passes import Rows
from replay.lag.result import LaoStall
from replay.lag.waits import TimeSteps, Waited
from replay.outages.service import Controller, service
from replay.report import events, model
from replay.report.events import BEFORE_MS, Extent, Extents, find_sessions, incidents_of
from replay.report.model import (
    MAX_BUCKETS,
    MAX_EXACT_SPANS,
    MAX_LANES,
    MAX_TYPES,
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
    Level,
    Timeline,
    Wait,
)
from replay.report.moments import Changes, Rise, Troubled

SERVING, LEAVING, STOPPED, FENCED, STARTING, HOLDING = (
    "serving", "leaving", "stopped", "fenced", "starting", "holding",
)  # fmt: skip
"""States of a broker; beside one of the others, HOLDING: LAO waited for it."""
OTHER = "other"
_EXACT_REIGNS = 400
_COARSE = 4
"""Steps of the axis that must lie between two stretches of a crowded lane, so that they are drawn
apart: about ten pixels.
"""


def choose_axis(begins_ms: int, ends_ms: int) -> Axis:
    """Return the axis from the first record to the last, both inclusive."""
    length_ms = max(1, ends_ms - begins_ms + 1)
    return Axis(begins_ms, ends_ms, -(-length_ms // MAX_BUCKETS))


def steps_of(axis: Axis) -> TimeSteps:
    """Return the steps of the axis."""
    return TimeSteps(axis.begins_ms, axis.bucket_ms)


def buckets_of(axis: Axis, at_ms: Ints) -> Ints:
    """Return the step of the axis, from 0, in which each time lies."""
    return (at_ms - axis.begins_ms) // axis.bucket_ms


def start_of(axis: Axis, bucket: int) -> int:
    """Return the begin of a step of the axis."""
    return axis.begins_ms + bucket * axis.bucket_ms


def make_timeline(
    log: Rows,
    facts_: facts.Facts,
    names: Names,
    axis: Axis,
    reigns: list[Controller],
    found: tuple[Troubled, Lao, Growth],
    offences: Iterable[Finding],
    origin: str = "",
) -> Timeline:
    """Return the timeline of a log; what was found of its partitions, of LAO and of its growth, and
    what the audit did. ``origin``: what kind of cluster wrote it.
    """
    troubled, lao, grown = found
    served = service(facts_.brokers)
    happened = [
        *events.of_controllers(reigns, served),
        *events.of_brokers(served),
        *events.of_partitions(troubled, names),
        *events.of_hold_ups(lao.hold_ups),
        *events.of_findings(offences),
    ]
    extents = Extents(
        Extent(Rise(troubled.leaderless_by), troubled.leaderless),
        Extent(Rise(troubled.short_by), troubled.short),
    )
    sessions, total = find_sessions(happened, axis, extents)
    on_purpose = events.changes_on_purpose(
        log,
        facts_,
        [each.begins_ms - BEFORE_MS for each in sessions],
        [each.begins_ms for each in sessions],
        origin,
    )
    short_isrs = partial(events.short_isrs, troubled, names)
    spans, failovers = controller_spans(reigns, axis)
    lanes, brokers_total = broker_lanes(facts_.brokers, holding_spans(lao.hold_ups), axis)
    return Timeline(
        axis=axis,
        controllers=spans,
        failovers=failovers,
        brokers=lanes,
        brokers_total=brokers_total,
        levels=impaired(troubled, axis),
        waits=waits_by_step(lao.waited, axis),
        growth=growth(grown, axis),
        incidents=incidents_of(sessions, happened, short_isrs, on_purpose),
        incidents_total=total,
    )


def controller_spans(reigns: list[Controller], axis: Axis) -> tuple[list[ControllerSpan], int]:
    """Return the reigns, drawn as one where they are too many; and how many changes of the
    controller there were.
    """
    spans, silent_since_ms = [], None
    for each in reigns:
        gap_ms = 0 if silent_since_ms is None else max(0, each.begins_ms - silent_since_ms)
        ends_ms = axis.ends_ms if each.ends_ms is None else each.ends_ms
        spans.append(
            ControllerSpan(
                each.leader_id, each.epoch, each.epoch, 1, each.begins_ms, ends_ms, gap_ms
            )
        )
        silent_since_ms = each.last_ms
    changes = max(0, len(spans) - 1)
    return (_by_step(spans, axis) if len(spans) > _EXACT_REIGNS else spans), changes


def _by_step(spans: list[ControllerSpan], axis: Axis) -> list[ControllerSpan]:
    """Reigns follow one another without gaps: those that begin in one step of the axis are put
    together.
    """
    by_step: dict[int, list[ControllerSpan]] = defaultdict(list)
    for span in spans:
        by_step[(span.begins_ms - axis.begins_ms) // axis.bucket_ms].append(span)
    return [
        structs.replace(
            some[-1],
            first_epoch=some[0].first_epoch,
            epochs=len(some),
            begins_ms=some[0].begins_ms,
            gap_ms=max(each.gap_ms for each in some),
        )
        for _, some in sorted(by_step.items())
    ]


class _Life:
    """Life of one broker."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id, self.rack = broker_id, ""
        self.registrations = self.fencings = self.fenced_ms = self.held_ms = 0
        self.spans: list[BrokerSpan] = []


def broker_lanes(
    brokers: Iterable[facts.BrokerSpan], holding: Iterable[tuple[int, BrokerSpan]], axis: Axis
) -> tuple[list[BrokerLane], int]:
    """Return the lanes of the brokers with the most trouble, by id; and how many brokers there are.

    ``holding``: when LAO waited for a broker.
    """
    lives: dict[int, _Life] = {}
    for each in sorted(brokers, key=lambda span: (span.broker_id, span.begins)):
        life = lives.setdefault(each.broker_id, _Life(each.broker_id))
        _live(life, each, axis)
    for broker_id, span in holding:
        if broker_id in lives:
            lives[broker_id].spans.append(span)
            lives[broker_id].held_ms += span.total_ms
    worst = sorted(
        lives.values(),
        key=lambda life: (
            -life.fencings,
            -life.held_ms,
            -life.fenced_ms,
            -life.registrations,
            life.broker_id,
        ),
    )
    chosen = sorted(worst[:MAX_LANES], key=lambda life: life.broker_id)
    crowded = sum(len(life.spans) for life in chosen) > MAX_EXACT_SPANS
    return [_lane(life, axis, crowded=crowded) for life in chosen], len(lives)


def _live(life: _Life, each: facts.BrokerSpan, axis: Axis) -> None:
    ends_ms = axis.ends_ms if each.ends_ms is None else each.ends_ms
    state, length = _state(each), ends_ms - each.begins_ms
    life.rack = each.rack or life.rack
    life.registrations += each.registration
    life.fencings += state == FENCED and not each.registration
    life.fenced_ms += length if state == FENCED else 0
    life.spans.append(
        BrokerSpan(state, each.begins_ms, ends_ms, 1, length, each.reason or "", each.begins)
    )


def _lane(life: _Life, axis: Axis, *, crowded: bool) -> BrokerLane:
    spans = _merged(life.spans, _COARSE * axis.bucket_ms) if crowded else life.spans
    return BrokerLane(
        life.broker_id,
        life.rack,
        life.registrations,
        life.fencings,
        life.fenced_ms,
        life.held_ms,
        sorted(spans, key=lambda span: (span.begins_ms, span.offset)),
    )


def _merged(spans: list[BrokerSpan], gap_ms: int) -> list[BrokerSpan]:
    """Return the spans of one state that overlap, or lie at most ``gap_ms`` apart, merged into
    one.
    """
    found: dict[str, list[BrokerSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda each: (each.begins_ms, each.offset)):
        same = found[span.state]
        if not same or span.begins_ms - same[-1].ends_ms > gap_ms:
            same.append(span)
            continue
        same[-1] = structs.replace(
            same[-1],
            ends_ms=max(same[-1].ends_ms, span.ends_ms),
            spans=same[-1].spans + 1,
            total_ms=same[-1].total_ms + span.total_ms,
            reason=span.reason,
        )
    return [span for some in found.values() for span in some]


def _state(each: facts.BrokerSpan) -> str:
    if has_left(bool(each.fenced), bool(each.in_controlled_shutdown)):
        return STOPPED
    if each.in_controlled_shutdown:
        return LEAVING
    if not each.fenced:
        return SERVING
    return STARTING if each.registration else FENCED


def waits_by_step(waited: Waited, axis: Axis) -> list[Wait]:
    """From commit to visible everywhere, for what was written in each step of the axis; steps
    without a write are left out.
    """
    return [
        Wait(
            start_of(axis, step),
            each.durations + late,
            each.p50_ms,
            each.p99_ms,
            each.max_ms,
            late,
        )
        for step, (each, late) in waited.of_groups(hours=False).items()
    ]


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
            up.offset,
        )
        yield from ((broker, span) for broker in up.broker_ids)


def impaired(found: Troubled, axis: Axis) -> list[Level]:
    """Return the numbers of partitions without a leader and of those with fewer members in the ISR
    than replicas: the most within each step.
    """
    highest = (_highest(each, axis).tolist() for each in (found.leaderless_by, found.short_by))
    return [
        Level(start_of(axis, step), leaderless, short)
        for step, (leaderless, short) in enumerate(zip(*highest, strict=True))
    ]


def _highest(changes: Changes, axis: Axis) -> Ints:
    """A step begins at the level at which the last one ended: the highest is that, or one
    within.
    """
    level = np.cumsum(changes.by)
    step = buckets_of(axis, changes.at_ms)
    # Number of changes before each step: its level is that after the last of them.
    before = np.searchsorted(step, np.arange(axis.buckets))
    high = np.concatenate([[0], level])[before]
    np.maximum.at(high, step, level)
    return high


def growth(found: Growth, axis: Axis) -> list[model.Growth]:
    """Records by step and type; the rarer types as one."""
    totals: dict[str, int] = {}
    for (_, name), records in found.steps.items():
        totals[name] = totals.get(name, 0) + records
    told = set(sorted(totals, key=lambda name: (-totals[name], name))[:MAX_TYPES])
    summed: dict[tuple[int, str], int] = {}
    for (step, name), records in sorted(found.steps.items()):
        key = step, name if name in told else OTHER
        summed[key] = summed.get(key, 0) + records
    return [
        model.Growth(start_of(axis, step), name, count) for (step, name), count in summed.items()
    ]
