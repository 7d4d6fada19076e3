"""Result of the job lao: bounded, typed, ready for JSON; and its tables and sentences."""

from __future__ import annotations

import msgspec
from rich.console import Console

from raftlog.text import counted
from replay.kernels.histogram import HOW_EXACT
from replay.text import (
    FIXED,
    TEXT,
    Field,
    Listing,
    duration,
    format_moment,
    format_time,
    listing,
    micros,
    print_listings,
)

FENCED, NO_BROKER, FAILOVER, BEHIND, UNKNOWN = (
    "FENCED", "NO_BROKER", "FAILOVER", "BEHIND", "UNKNOWN",
)  # fmt: skip
"""Causes of a stall: see :mod:`replay.lag.hold_ups`."""


class LaoPoint(msgspec.Struct, frozen=True):
    """One progress record. Null: LAO was unknown, or nothing that is waited for was newly covered.

    ``lag_ms``: the age of the oldest record that was not acknowledged then. ``covered``: records
    that it is the first to cover; ``waited_ms``: how long the oldest of them had waited.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    lowest_acknowledged_offset: int | None
    high_watermark: int
    lag_offsets: int | None
    lag_ms: int | None
    covered: int
    waited_ms: int | None


class LaoStall(msgspec.Struct, frozen=True):
    """One time that LAO was held back for long, as in :func:`replay.lag.hold_ups.hold_ups`.

    ``broker_ids``: whom it waited for, all at once; empty: the log does not tell. ``cause``:
    FENCED, NO_BROKER, FAILOVER, BEHIND or UNKNOWN. ``broker_cause``: of a FENCED one, the name of
    the ``BrokerCause`` that ``reason`` says to people; None: it was unregistered. ``records``: how
    many waited. ``last_offset``: of the progress record that ended it; None: it goes on where the
    log ends.
    """

    broker_ids: list[int]
    cause: str
    reason: str | None
    broker_cause: str | None
    began_ms: int
    ended_ms: int
    held_ms: int
    waited_ms: int
    records: int
    samples: int
    first_offset: int | None
    last_offset: int | None

    @property
    def offset(self) -> int:
        """Offset at which to look for it in the log."""
        return next((at for at in (self.first_offset, self.last_offset) if at is not None), 0)


class BrokerLag(msgspec.Struct, frozen=True):
    """One broker over all times in which it was unfenced and had reported.

    ``reports``: progress records that name it. ``max_lag_offsets``: as far as progress records show
    it. ``hold_ups``, ``held_ms``: how often it held LAO back, and for how long in all;
    ``longest_ms``: the longest that a record waited for it.
    """

    broker_id: int
    reports: int
    last_applied_offset: int
    p50_lag_offsets: int
    max_lag_offsets: int
    hold_ups: int
    held_ms: int
    longest_ms: int


class Hour(msgspec.Struct, frozen=True):
    """From commit to visible everywhere, for what was written in one hour; None: nothing of it was
    visible by the end.
    """

    hour_ms: int
    records: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waiting: int


class Measured(msgspec.Struct, frozen=True):
    """Durations of ``records`` records from their commit on, as controllers have measured them.

    Percentiles are up to 19 % too high, the others exact.
    """

    records: int
    mean_us: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int


class LaoResult(msgspec.Struct, frozen=True):
    """``records`` are those that LAO is waited for; ``waiting`` of them were not visible everywhere
    by the end.

    ``hold_ups``: the longest first, of ``hold_ups_total``; ``held_ms``: how long LAO was held back
    in all. ``brokers``: those that did so the longest first. ``hours`` and ``timeline``: the last
    ones, oldest first, of ``hours_total`` and ``samples``; ``unknown``: samples in which LAO was
    unknown. ``end_ms``: of the last record. ``acknowledged``, ``told``: what controllers have
    measured until all brokers had applied a record, and until all knew; None: the
    log does not say.
    """

    end_ms: int
    stall_ms: int
    records: int
    waiting: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    hold_ups_total: int
    held_ms: int
    hold_ups: list[LaoStall]
    brokers_total: int
    brokers: list[BrokerLag]
    hours_total: int
    hours: list[Hour]
    samples: int
    unknown: int
    p50_lag_offsets: int | None
    p99_lag_offsets: int | None
    max_lag_offsets: int | None
    max_lag_ms: int | None
    timeline: list[LaoPoint]
    acknowledged: Measured | None = None
    told: Measured | None = None


_POINTS_SHOWN = 20


def in_words(cause: str, reason: str | None) -> str:
    """Return a cause of :mod:`replay.lag.hold_ups`, and the reason that goes with it."""
    if cause == FENCED:
        return f"went on without: {reason}"
    return {
        NO_BROKER: "no broker was in service",
        FAILOVER: "a new controller, to which not all brokers had reported",
        BEHIND: "had applied less than others",
        UNKNOWN: "the log does not say: look at the metrics",
    }[cause]


def _offsets(held: LaoStall) -> str:
    """Return the progress records between which LAO was held back: 590–600."""
    first, last = held.first_offset, held.last_offset
    if first is None:
        return "all" if last is None else f"up to {last}"
    return f"{first} on" if last is None else f"{first}–{last}"


def _from(held: LaoStall) -> str:
    length = duration(held.held_ms) + (" so far" if held.last_offset is None else "")
    return f"{format_moment(held.began_ms)}\n{length}, offsets {_offsets(held)}"


def _behind(point: LaoPoint) -> str:
    lag = point.lag_offsets
    return "unknown" if lag is None else f"{counted(lag, 'offset')}, {duration(point.lag_ms)}"


def _show(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def listings(result: LaoResult, *, samples: bool = True) -> list[Listing]:
    """Return the tables, the worst first. ``samples``: with the last samples."""
    hold_ups = listing(
        "LAO held back",
        result.hold_ups,
        Field("from, for", _from, kind=FIXED),
        Field("brokers", lambda each: ", ".join(map(str, each.broker_ids)) or "-", kind=TEXT),
        Field("records", "records"),
        Field("why", lambda each: in_words(each.cause, each.reason), kind=TEXT),
        total=result.hold_ups_total,
    )
    brokers = listing(
        "Brokers",
        result.brokers,
        Field("broker", "broker_id"),
        Field("held LAO back", "hold_ups", lambda ups: counted(ups, "time") if ups else "never"),
        Field("for", "held_ms", duration),
        Field("behind, p50", "p50_lag_offsets", lambda lag: counted(lag, "offset")),
        Field("furthest behind", "max_lag_offsets", lambda lag: counted(lag, "offset")),
        Field("applied last", "last_applied_offset"),
        total=result.brokers_total,
    )
    hours = listing(
        "From commit to visible everywhere",
        result.hours,
        Field("hour", "hour_ms", format_time, FIXED),
        Field("records", "records"),
        *(Field(name, f"{name}_ms", duration) for name in ("p50", "p90", "p99", "max")),
        Field("still waiting", "waiting"),
        total=result.hours_total,
        note=f"Percentiles are approximate: {HOW_EXACT}",
    )
    points = listing(
        "Samples",
        result.timeline[-_POINTS_SHOWN:],
        Field("offset", "offset", kind=FIXED),
        Field("time", "timestamp_ms", format_moment, FIXED),
        Field("LAO", "lowest_acknowledged_offset", _show, FIXED),
        Field("behind", _behind),
        Field("covered", "covered"),
        Field("waited", "waited_ms", lambda ms: "-" if ms is None else duration(ms)),
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
