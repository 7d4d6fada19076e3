"""Lanes of the timeline: the controllers' reigns, and the lives of the brokers that had the most
trouble.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import structs

from raftlog.metadata.entities import has_left
from replay.kernels import facts
from replay.outages.failovers import Controller
from replay.report.model import (
    MAX_EXACT_SPANS,
    MAX_LANES,
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
)

SERVING, LEAVING, STOPPED, FENCED, STARTING = "serving", "leaving", "stopped", "fenced", "starting"
_EXACT_REIGNS = 400
_COARSE = 4
"""Steps of the axis that must lie between two stretches of a crowded lane, so that they are drawn
apart: about ten pixels.
"""


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
