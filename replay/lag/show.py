"""Tables for a terminal with the result of the job lao."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

from raftlog.text import counted
from replay.kernels.histogram import HOW_EXACT
from replay.lag import holders
from replay.lag.model import LaoPoint, LaoResult, LaoStall
from replay.request import format_moment, format_time
from replay.text import duration, micros, more

_POINTS_SHOWN = 20


def _show(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _how_long(held: LaoStall) -> str:
    so_far = " so far" if held.last_offset is None else ""
    return f"{duration(held.held_ms)}{so_far}, offsets {offsets_of(held)}"


def offsets_of(held: LaoStall) -> str:
    """Between which progress records LAO was held back: 590–600."""
    first, last = held.first_offset, held.last_offset
    if first is None:
        return "all" if last is None else f"up to {last}"
    return f"{first} on" if last is None else f"{first}–{last}"


def why(held: LaoStall) -> str:
    """Why LAO was held back, in words."""
    return in_words(held.cause, held.reason)


def in_words(cause: str, reason: str | None) -> str:
    """Return a cause of :mod:`replay.lag.holders`, and the reason that goes with it."""
    if cause == holders.FENCED:
        return f"went on without: {reason}"
    return {
        holders.NO_BROKER: "no broker was in service",
        holders.FAILOVER: "a new controller, to which not all brokers had reported",
        holders.BEHIND: "had applied less than others",
        holders.UNKNOWN: "the log does not say: look at the metrics",
    }[cause]


def _hold_ups(result: LaoResult) -> Table:
    table = Table(
        Column("from, for", no_wrap=True),
        "brokers",
        "records",
        Column("why", overflow="fold"),
        title="LAO held back",
    )
    for held in result.hold_ups:
        table.add_row(
            f"{format_moment(held.began_ms)}\n{_how_long(held)}",
            ", ".join(map(str, held.broker_ids)) or "-",
            str(held.records),
            why(held),
        )
    return table


def _brokers(result: LaoResult) -> Table:
    table = Table(
        "broker",
        "held LAO back",
        "for",
        "behind, p50",
        "furthest behind",
        Column("applied last", overflow="fold"),
        title="Brokers",
    )
    for lag in result.brokers:
        table.add_row(
            str(lag.broker_id),
            counted(lag.hold_ups, "time") if lag.hold_ups else "never",
            duration(lag.held_ms),
            counted(lag.p50_lag_offsets, "offset"),
            f"{counted(lag.max_lag_offsets, 'offset')}, {duration(lag.max_lag_ms)}",
            str(lag.last_applied_offset),
        )
    return table


def _hours(result: LaoResult) -> Table:
    table = Table(
        Column("hour", no_wrap=True),
        "records",
        "p50",
        "p90",
        "p99",
        "max",
        "still waiting",
        title="From commit to visible everywhere",
        caption=f"Percentiles are approximate: {HOW_EXACT}",
    )
    for hour in result.hours:
        times = (hour.p50_ms, hour.p90_ms, hour.p99_ms, hour.max_ms)
        table.add_row(
            format_time(hour.hour_ms), str(hour.records), *map(duration, times), str(hour.waiting)
        )
    return table


def _behind(point: LaoPoint) -> str:
    if point.lag_offsets is None:
        return "unknown"
    return f"{counted(point.lag_offsets, 'offset')}, {duration(point.lag_ms)}"


def _points(result: LaoResult) -> Table:
    table = Table(
        Column("offset", no_wrap=True),
        Column("time", no_wrap=True),
        Column("LAO", no_wrap=True),
        "behind",
        "covered",
        "waited",
        title="Samples",
    )
    for point in result.timeline[-_POINTS_SHOWN:]:
        table.add_row(
            str(point.offset),
            format_moment(point.timestamp_ms),
            _show(point.lowest_acknowledged_offset),
            _behind(point),
            str(point.covered),
            "-" if point.waited_ms is None else duration(point.waited_ms),
        )
    return table


def render(result: LaoResult, console: Console) -> None:
    """Print the result for people, the worst first."""
    if result.hold_ups:
        console.print(_hold_ups(result))
    if result.brokers:
        console.print(_brokers(result))
    if result.hours:
        console.print(_hours(result))
    if result.timeline:
        console.print(_points(result))
    console.print(
        f"{counted(result.samples, 'sample')}, LAO unknown in {result.unknown}; lag in offsets p50"
        f" {_show(result.p50_lag_offsets)}, p99 {_show(result.p99_lag_offsets)}, max"
        f" {_show(result.max_lag_offsets)}"
    )
    if not result.samples:
        console.print(
            "No progress record: LAO was never known, or nothing was written since. Nothing can be"
            " said of it."
        )
        return
    for name, found in (
        ("applied by all brokers", result.acknowledged),
        ("known to all", result.told),
    ):
        if found is not None:
            console.print(
                f"As the controllers measured {counted(found.records, 'record')}, from commit to"
                f" {name}: p50 {micros(found.p50_us)}, p90 {micros(found.p90_us)}, p99"
                f" {micros(found.p99_us)} (each up to 19 % too high), mean {micros(found.mean_us)},"
                f" max {micros(found.max_us)}",
                soft_wrap=True,
            )
    bound = "at most, as progress records come once a second, " if result.acknowledged else ""
    console.print(
        f"{counted(result.records, 'record')}, from commit to visible everywhere {bound}p50"
        f" {duration(result.p50_ms)}, p99 {duration(result.p99_ms)} (both {HOW_EXACT}), max"
        f" {duration(result.max_ms)}; {result.waiting} not visible everywhere by the end"
    )
    if not result.hold_ups:
        console.print(f"LAO was not held back for {duration(result.stall_ms)} or more")
        return
    console.print(
        f"LAO was held back {counted(result.hold_ups_total, 'time')}, {duration(result.held_ms)}"
        " in all" + more(len(result.hold_ups), result.hold_ups_total)
    )
