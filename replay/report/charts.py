"""The timeline as marks on one time axis: bars of lanes, curves of panels, badges of incidents.

The page draws them with HTML and SVG alone, and so shows them without a script. Positions are
fractions of the axis. One set of colours serves light and dark; people who see no red or green tell
them apart, and each has a contrast of 3:1 to both grounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, log10
from typing import NamedTuple

from replay.outages.result import AvailabilityResult
from replay.report.model import (
    CRITICAL,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    BrokerLane,
    BrokerSpan,
    ControllerSpan,
    Growth,
    Incident,
    Level,
    ReportResult,
    Timeline,
    Wait,
)
from replay.text import duration, moment, number, size

BLUE, VERMILION, AMBER, TEAL, PURPLE, PINK, GREY, BROWN = (
    "#3b7fc4", "#d0521f", "#b3801a", "#1c8f80", "#8b6cc8", "#c4588f", "#7b8794", "#96704a",
)  # fmt: skip
SERIES = (BLUE, AMBER, TEAL, PURPLE, PINK, BROWN, VERMILION, GREY)
"""Colours, in this order, of series without a meaning of their own."""
STATES = {
    "serving": BLUE,
    "leaving": PURPLE,
    "stopped": GREY,
    "fenced": VERMILION,
    "starting": AMBER,
    "holding": PINK,
}
"""Colour of each state of a broker; the style sheet adds a pattern or a height of its own."""
SEVERITY_NAMES = {CRITICAL: "critical", WARNING: "warning", NOTICE: "notice", PLANNED: "planned"}
_BADGE_ROWS = 4
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
"""Tops of a scale, in powers of ten of its unit."""
_BADGE_WIDTH = 0.07
"""Share of the axis that a badge takes: one that begins closer to the last goes to the next row."""
_LOG_TICKS_MS = (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000)


class Bar(NamedTuple):
    """A stretch of a lane: where it begins on the axis, and its width; ``tip`` says what it is."""

    kind: str
    begin: float
    width: float
    colour: str
    text: str
    tip: str


class Lane(NamedTuple):
    """One row of bars."""

    name: str
    detail: str
    bars: list[Bar]


class Curve(NamedTuple):
    """One curve: SVG paths in steps of the axis, and per cent of the panel's height from above."""

    name: str
    colour: str
    line: str
    area: str


class Panel(NamedTuple):
    """Curves with one scale. ``ticks``: heights in per cent, with their labels; ``readings``: the
    values in words, each from its place on the axis to the next.
    """

    title: str
    curves: list[Curve]
    ticks: list[tuple[float, str]]
    readings: list[tuple[float, str]]


class Badge(NamedTuple):
    """Mark of an incident: its number, and the band below it. ``row``: from 0."""

    incident: Incident
    severity: str
    begin: float
    width: float
    row: int


class Chart(NamedTuple):
    """The whole timeline. ``states``: those that occur, in the order of the legend."""

    lanes: list[Lane]
    panels: list[Panel]
    badges: list[Badge]
    states: list[str]


class Unit(NamedTuple):
    """How values of a scale are shown, and the units of which its ticks are round multiples."""

    words: Callable[[float], str]
    steps: tuple[int, ...] = (1,)
    is_log: bool = False


def _milliseconds(value: float) -> str:
    return duration(round(value))


COUNT = Unit(number)
DURATION = Unit(_milliseconds, (1, 1000, 60_000, 3_600_000, 86_400_000))
LOG_DURATION = Unit(_milliseconds, is_log=True)
BYTES = Unit(size, (1, 1 << 10, 1 << 20, 1 << 30))


class Segment(NamedTuple):
    """A value between two times, or None."""

    begins_ms: float
    ends_ms: float
    value: float | None


class Series(NamedTuple):
    """A named sequence of values, in order of time."""

    name: str
    colour: str
    segments: list[Segment]


def draw(result: ReportResult) -> Chart:
    """Return the timeline of a report; the log of another system has no LAO."""
    timeline = result.timeline
    axis = timeline.axis
    panels = [
        _impaired(timeline.levels, axis),
        *(() if result.header.origin else (_waits(timeline.waits, axis),)),
        _lost(result.availability, axis),
        _growth(timeline.growth, axis),
        _state(result, axis),
    ]
    states = {span.state for lane in timeline.brokers for span in lane.spans}
    return Chart(
        [
            _controllers(timeline.controllers, axis),
            *(_lane(each, axis) for each in timeline.brokers),
        ],
        panels,
        _badges(timeline),
        [state for state in STATES if state in states],
    )


def _place(axis: Axis, begins_ms: float, ends_ms: float) -> tuple[float, float]:
    length = max(1, axis.ends_ms - axis.begins_ms)
    begin = (begins_ms - axis.begins_ms) / length
    return round(begin, 6), round(max(0.0, (ends_ms - begins_ms) / length), 6)


def _controllers(reigns: Sequence[ControllerSpan], axis: Axis) -> Lane:
    leaders = sorted({each.leader_id for each in reigns})
    colour = {each: SERIES[at % len(SERIES)] for at, each in enumerate(leaders, 1)}
    bars = []
    for reign in reigns:
        epochs = (
            f"epoch {reign.first_epoch}"
            if reign.epochs == 1
            else f"{reign.epochs} epochs, {reign.first_epoch} to {reign.last_epoch}"
        )
        length = duration(reign.ends_ms - reign.begins_ms)
        tip = (
            f"controller {reign.leader_id}, {epochs}\nfrom {moment(reign.begins_ms)}\nfor {length}"
        )
        if reign.gap_ms:
            tip += f"\nno record for {duration(reign.gap_ms)} before"
        place = _place(axis, reign.begins_ms, reign.ends_ms)
        text = f"{reign.leader_id} · epoch {reign.last_epoch}"
        bars.append(Bar("reign", *place, colour[reign.leader_id], text, tip))
    return Lane("controller", "", bars)


def _lane(lane: BrokerLane, axis: Axis) -> Lane:
    bars = [
        Bar(
            span.state,
            *_place(axis, span.begins_ms, span.ends_ms),
            STATES[span.state],
            "",
            _tip(lane, span),
        )
        for span in lane.spans
    ]
    return Lane(f"broker {lane.broker_id}", lane.rack[:12], bars)


def _tip(lane: BrokerLane, span: BrokerSpan) -> str:
    state = "holding LAO back" if span.state == "holding" else span.state
    times = f", {span.spans} times" if span.spans > 1 else ""
    within = f" within {duration(span.ends_ms - span.begins_ms)}" if span.spans > 1 else ""
    lines = [
        f"broker {lane.broker_id} {state}{times}",
        f"from {moment(span.begins_ms)}, offset {number(span.offset)}",
        f"for {duration(span.total_ms)}{within}",
        span.reason[:80],
    ]
    return "\n".join(line for line in lines if line)


def _impaired(levels: Sequence[Level], axis: Axis) -> Panel:
    at = [each.at_ms for each in levels]
    short = _steps(axis, at, [each.short for each in levels])
    leaderless = _steps(axis, at, [each.leaderless for each in levels])
    shown = [
        Series("short of replicas", AMBER, short),
        Series("without a leader", VERMILION, leaderless),
    ]
    return panel("Partitions", shown, axis, COUNT)


def _waits(waits: Sequence[Wait], axis: Axis) -> Panel:
    at = [each.at_ms for each in waits]
    curves = (
        ("longest", VERMILION, "max_ms"),
        ("p99", AMBER, "p99_ms"),
        ("median", TEAL, "p50_ms"),
    )
    shown = [
        Series(name, colour, _steps(axis, at, (getattr(each, field) for each in waits)))
        for name, colour, field in curves
    ]
    title = f"From commit to visible everywhere, by {duration(axis.bucket_ms)}"
    return panel(title, shown, axis, LOG_DURATION)


def _lost(result: AvailabilityResult, axis: Axis) -> Panel:
    at, length = [each.period_ms for each in result.periods], result.period_length_ms
    leaderless = [each.leaderless_ms for each in result.periods]
    unwritable = [each.unwritable_ms for each in result.periods]
    shown = [
        Series("under min ISR or without a leader", AMBER, _steps(axis, at, unwritable, length)),
        Series("without a leader", VERMILION, _steps(axis, at, leaderless, length)),
    ]
    return panel(f"Partition-time lost, by {duration(length)}", shown, axis, DURATION)


def _growth(growth: Sequence[Growth], axis: Axis) -> Panel:
    totals: dict[str, int] = {}
    for each in growth:
        totals[each.type_name] = totals.get(each.type_name, 0) + each.records
    counts = {(each.type_name, each.at_ms): each.records for each in growth}
    at = [axis.begins_ms + step * axis.bucket_ms for step in range(axis.buckets)]
    names = sorted(totals, key=lambda name: (-totals[name], name))
    shown = [
        Series(
            name.lower().replace("_", " "),
            SERIES[index % len(SERIES)],
            _steps(axis, at, (counts.get((name, start), 0) for start in at)),
        )
        for index, name in enumerate(names)
    ]
    return panel(
        f"Records in the log, by {duration(axis.bucket_ms)}", shown, axis, COUNT, stacked=True
    )


def _state(result: ReportResult, axis: Axis) -> Panel:
    periods, length = result.churn.periods, result.churn.period_length_ms
    at = [each.period_ms for each in periods]
    sizes = _steps(axis, at, [each.snapshot_bytes for each in periods], length)
    return panel("Size of a snapshot, about", [Series("snapshot", BLUE, sizes)], axis, BYTES)


def _steps(
    axis: Axis, at_ms: Iterable[int], values: Iterable[float | None], length_ms: int = 0
) -> list[Segment]:
    """Return segments of one length, in the axis; 0: of a step of it."""
    length = length_ms or axis.bucket_ms
    return [
        Segment(max(begins_ms, axis.begins_ms), min(begins_ms + length, axis.ends_ms + 1), value)
        for begins_ms, value in zip(at_ms, values, strict=True)
    ]


def panel(
    title: str, shown: Sequence[Series], axis: Axis, unit: Unit, *, stacked: bool = False
) -> Panel:
    """Return the panel of some series. ``stacked``: each lies on the one before, and all have the
    same times.
    """
    tops = _stacked(shown) if stacked else [each.segments for each in shown]
    highest = max((each.value or 0 for segments in tops for each in segments), default=0)
    top, ticks = _scale(highest, unit)

    def height(value: float) -> float:
        share = log10(max(value, 1)) / log10(top) if unit.is_log else value / top
        return round(100 * (1 - share), 2)

    curves, floor_of = [], None
    for each, segments in zip(shown, tops, strict=True):
        line = _line(segments, axis, height) if any(one.value for one in segments) else ""
        area = (
            ""
            if unit.is_log
            else _area(segments if stacked else _joined(segments), floor_of, axis, height)
        )
        curves.append(Curve(each.name, each.colour, "" if stacked else line, area))
        floor_of = segments if stacked else None
    heights = [(height(value), unit.words(value)) for value in ticks]
    return Panel(title, curves, heights, _readings(shown, axis, unit))


def _stacked(shown: Sequence[Series]) -> list[list[Segment]]:
    tops: list[list[Segment]] = []
    for each in shown:
        below = [segment.value or 0 for segment in tops[-1]] if tops else [0.0] * len(each.segments)
        tops.append(
            [
                segment._replace(value=(segment.value or 0) + base)
                for segment, base in zip(each.segments, below, strict=True)
            ]
        )
    return tops


def _scale(highest: float, unit: Unit) -> tuple[float, list[float]]:
    """Return the value at the top of a scale, and the values with a tick."""
    if unit.is_log:
        top = max(highest, 100) * 1.6
        marks = [float(mark) for mark in _LOG_TICKS_MS if mark <= top]
        return top, marks[:: -(-len(marks) // 4)]
    if not highest:
        return 1, [0]
    step = max(each for each in unit.steps if each <= max(highest, 1))
    power = 10 ** floor(log10(max(highest / step, 1)))
    top = next(round_ * power * step for round_ in _ROUND if round_ * power * step >= highest)
    # There is no half of a partition.
    is_whole = unit is not COUNT or top % 2 == 0
    return top, [0, top / 2, top] if is_whole else [0, top]


def _line(segments: Sequence[Segment], axis: Axis, height: Callable[[float], float]) -> str:
    """Return a path with a step at each value, and a gap without one."""
    words: list[str] = []
    reached: float | None = None
    for begins, ends, value in _joined(segments):
        if value is None:
            reached = None
            continue
        left, right = _x(axis, begins), _x(axis, ends)
        words.append(f"{'V' if reached == begins else f'M{left:g},'}{height(value):g}H{right:g}")
        reached = ends
    return "".join(words)


def _area(
    segments: Sequence[Segment],
    below: Sequence[Segment] | None,
    axis: Axis,
    height: Callable[[float], float],
) -> str:
    """Return a closed path between a curve and the one below; None: the ground."""
    words = []
    lows = below or [each._replace(value=0) for each in segments]
    for high, low in zip(segments, lows, strict=True):
        if high.value and high.value != low.value:
            left, right = _x(axis, high.begins_ms), _x(axis, high.ends_ms)
            base = height(low.value or 0)
            words.append(f"M{left:g},{base:g}V{height(high.value):g}H{right:g}V{base:g}Z")
    return "".join(words)


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments, neighbours of one value as one."""
    found: list[Segment] = []
    for each in segments:
        if found and found[-1].value == each.value and found[-1].ends_ms == each.begins_ms:
            found[-1] = found[-1]._replace(ends_ms=each.ends_ms)
        else:
            found.append(each)
    return found


def _x(axis: Axis, at_ms: float) -> float:
    return round((at_ms - axis.begins_ms) / axis.bucket_ms, 2)


def _readings(shown: Sequence[Series], axis: Axis, unit: Unit) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    for row in zip(*(each.segments for each in shown), strict=True):
        said = ", ".join(
            f"{each.name} {unit.words(segment.value)}"
            for each, segment in zip(shown, row, strict=True)
            if segment.value or (segment.value is not None and len(shown) <= 3)
        )
        begin, _ = _place(axis, row[0].begins_ms, row[0].begins_ms)
        if not found or found[-1][1] != said:
            found.append((begin, said))
    return found


def _badges(timeline: Timeline) -> list[Badge]:
    axis, found = timeline.axis, []
    reached = [float("-inf")] * _BADGE_ROWS
    for incident in sorted(timeline.incidents, key=lambda each: each.begins_ms):
        ends_ms = axis.ends_ms if incident.ends_ms is None else incident.ends_ms
        begin, width = _place(axis, incident.begins_ms, ends_ms)
        row = next((index for index, end in enumerate(reached) if end <= begin), 0)
        reached[row] = begin + _BADGE_WIDTH
        found.append(Badge(incident, SEVERITY_NAMES[incident.severity], begin, width, row))
    return found
