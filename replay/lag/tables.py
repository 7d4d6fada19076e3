"""Tables and sentences with the result of the job lao."""

from __future__ import annotations

from rich.console import Console

from raftlog.text import counted
from replay.kernels.histogram import HOW_EXACT
from replay.lag import hold_ups
from replay.lag.model import LaoPoint, LaoResult, LaoStall
from replay.listing import FIXED, NUMBER, TEXT, Listing, print_listings
from replay.request import format_moment, format_time
from replay.text import duration, micros

_POINTS_SHOWN = 20


def in_words(cause: str, reason: str | None) -> str:
    """Return a cause of :mod:`replay.lag.hold_ups`, and the reason that goes with it."""
    if cause == hold_ups.FENCED:
        return f"went on without: {reason}"
    return {
        hold_ups.NO_BROKER: "no broker was in service",
        hold_ups.FAILOVER: "a new controller, to which not all brokers had reported",
        hold_ups.BEHIND: "had applied less than others",
        hold_ups.UNKNOWN: "the log does not say: look at the metrics",
    }[cause]


def _offsets(held: LaoStall) -> str:
    """Return the progress records between which LAO was held back: 590–600."""
    first, last = held.first_offset, held.last_offset
    if first is None:
        return "all" if last is None else f"up to {last}"
    return f"{first} on" if last is None else f"{first}–{last}"


def _hold_up(held: LaoStall) -> tuple[str, ...]:
    length = duration(held.held_ms) + (" so far" if held.last_offset is None else "")
    return (
        f"{format_moment(held.began_ms)}\n{length}, offsets {_offsets(held)}",
        ", ".join(map(str, held.broker_ids)) or "-",
        str(held.records),
        in_words(held.cause, held.reason),
    )


def _point(point: LaoPoint) -> tuple[str, ...]:
    lao, lag = point.lowest_acknowledged_offset, point.lag_offsets
    return (
        str(point.offset),
        format_moment(point.timestamp_ms),
        _show(lao),
        "unknown" if lag is None else f"{counted(lag, 'offset')}, {duration(point.lag_ms)}",
        str(point.covered),
        "-" if point.waited_ms is None else duration(point.waited_ms),
    )


def _show(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def listings(result: LaoResult, *, samples: bool = True) -> list[Listing]:
    """Return the tables, the worst first. ``samples``: with the last samples."""
    hold_ups = Listing(
        "LAO held back",
        {"from, for": FIXED, "brokers": TEXT, "records": NUMBER, "why": TEXT},
        [_hold_up(each) for each in result.hold_ups],
        result.hold_ups_total,
    )
    brokers = Listing(
        "Brokers",
        {
            "broker": NUMBER, "held LAO back": NUMBER, "for": NUMBER, "behind, p50": NUMBER,
            "furthest behind": NUMBER, "applied last": NUMBER,
        },
        [
            (
                str(each.broker_id),
                counted(each.hold_ups, "time") if each.hold_ups else "never",
                duration(each.held_ms),
                counted(each.p50_lag_offsets, "offset"),
                f"{counted(each.max_lag_offsets, 'offset')}, {duration(each.max_lag_ms)}",
                str(each.last_applied_offset),
            )
            for each in result.brokers
        ],
        result.brokers_total,
    )  # fmt: skip
    hours = Listing(
        "From commit to visible everywhere",
        dict.fromkeys(("hour",), FIXED)
        | dict.fromkeys(("records", "p50", "p90", "p99", "max", "still waiting"), NUMBER),
        [
            (
                format_time(each.hour_ms),
                str(each.records),
                *map(duration, (each.p50_ms, each.p90_ms, each.p99_ms, each.max_ms)),
                str(each.waiting),
            )
            for each in result.hours
        ],
        result.hours_total,
        f"Percentiles are approximate: {HOW_EXACT}",
    )
    points = Listing(
        "Samples",
        dict.fromkeys(("offset", "time", "LAO"), FIXED)
        | dict.fromkeys(("behind", "covered", "waited"), NUMBER),
        [_point(each) for each in result.timeline[-_POINTS_SHOWN:]],
    )
    return [hold_ups, brokers, hours, *((points,) if samples else ())]


def sentences(result: LaoResult) -> list[str]:
    """Return the result as a whole in words."""
    said = [
        f"{counted(result.samples, 'sample')}, LAO unknown in {result.unknown}; lag in offsets p50"
        f" {_show(result.p50_lag_offsets)}, p99 {_show(result.p99_lag_offsets)}, max"
        f" {_show(result.max_lag_offsets)}"
    ]
    if not result.samples:
        return [
            *said,
            "No progress record: LAO was never known, or nothing was written since. Nothing can be"
            " said of it.",
        ]
    measured = ("applied by all brokers", result.acknowledged), ("known to all", result.told)
    for name, found in measured:
        if found is not None:
            said.append(
                f"As the controllers measured {counted(found.records, 'record')}, from commit to"
                f" {name}: p50 {micros(found.p50_us)}, p90 {micros(found.p90_us)}, p99"
                f" {micros(found.p99_us)} (each up to 19 % too high), mean {micros(found.mean_us)},"
                f" max {micros(found.max_us)}"
            )
    bound = "at most, as progress records come once a second, " if result.acknowledged else ""
    said.append(
        f"{counted(result.records, 'record')}, from commit to visible everywhere {bound}p50"
        f" {duration(result.p50_ms)}, p99 {duration(result.p99_ms)} (both {HOW_EXACT}), max"
        f" {duration(result.max_ms)}; {result.waiting} not visible everywhere by the end"
    )
    if result.hold_ups:
        times = counted(result.hold_ups_total, "time")
        said.append(f"LAO was held back {times}, {duration(result.held_ms)} in all")
    else:
        said.append(f"LAO was not held back for {duration(result.stall_ms)} or more")
    return said


def render(result: LaoResult, console: Console) -> None:
    """Print the result."""
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
