"""LowestAcknowledgedOffset over time: how long writes took to become visible everywhere, and which
brokers held it back.

Progress records are samples of LAO: :mod:`replay.lag.samples` explains their precision,
:mod:`replay.lag.hold_ups` how a stall is attributed to brokers. Times are differences between log
timestamps; they are too long by up to ``progress.interval.ms`` unless controllers measured them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from rich.console import Console

from raftlog.text import counted
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.arrays import MISSING
from replay.kernels.facts import BrokerSpan
from replay.kernels.histogram import HOW_EXACT
from replay.kernels.passes import Rows, facts_of
from replay.lag.hold_ups import (
    BEHIND,
    FAILOVER,
    FENCED,
    NO_BROKER,
    UNKNOWN,
    Attribution,
    HoldUp,
    attribute,
    hold_ups,
    stalls,
)
from replay.lag.samples import Measured, sample
from replay.lag.waits import Points, TimeSteps, waits
from replay.outages.service import service
from replay.request import JobRequest
from replay.text import (
    FIXED,
    TEXT,
    Field,
    Listing,
    duration,
    format_moment,
    listing,
    micros,
    print_listings,
)

if TYPE_CHECKING:
    from replay.engine.pool import Pool


class BrokerLag(msgspec.Struct, frozen=True):
    """A broker that held LAO back: how often, for how long in total, and the longest wait of a
    record.
    """

    broker_id: int
    hold_ups: int
    held_ms: int
    longest_ms: int


class LaoResult(msgspec.Struct, frozen=True):
    """Result of the job.

    ``records``: number of records that wait for LAO; ``waiting`` of them were not visible
    everywhere by the end. ``hold_ups``: longest first, of ``hold_ups_total``. ``held_ms``: total
    time for which LAO was held back. ``brokers``: the brokers that held it back, longest first.
    ``samples``: number of progress records, ``unknown`` of them without LAO. ``acknowledged``,
    ``told``: time from commit until all brokers had applied a record, and until all knew that, as
    measured by controllers; null if the log has no measurements.
    """

    end_ms: int
    stall_ms: int
    records: int
    waiting: int
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    hold_ups_total: int
    held_ms: int
    hold_ups: list[HoldUp]
    brokers_total: int
    brokers: list[BrokerLag]
    samples: int
    unknown: int
    acknowledged: Measured | None = None
    told: Measured | None = None


class Lao(NamedTuple):
    """Intermediate results from which the result is made."""

    points: Points
    attributed: list[Attribution]
    hold_ups: list[HoldUp]
    acknowledged: Measured | None
    told: Measured | None


def analyse(
    log: Rows,
    brokers: list[BrokerSpan],
    *,
    stall_ms: int,
    since_ms: int | None = None,
    steps: TimeSteps | None = None,
) -> Lao:
    """Analyse a log; from before ``since_ms``, include only hold-ups that last until then.
    ``steps``: time steps in which the waits of records are counted.
    """
    sampling = sample(log, since_ms)
    points = waits(log, sampling.samples, since_ms=since_ms, steps=steps)
    stalled = stalls(points, least_ms=stall_ms)
    if since_ms is not None:
        stalled = [each for each in stalled if each.ended_ms >= since_ms]
    attributed = attribute(log, stalled, points, service(brokers))
    return Lao(
        points,
        attributed,
        hold_ups(attributed),
        sampling.acknowledged.measured(),
        sampling.told.measured(),
    )


def run(export: Export, request: JobRequest, pool: Pool) -> LaoResult:
    """See ``availability.run``."""
    log = ExportLog(export, pool)
    brokers = facts_of(log).brokers
    found = analyse(log, brokers, stall_ms=request.stall_ms, since_ms=request.since_ms)
    return summarize(found, request)


def summarize(found: Lao, request: JobRequest) -> LaoResult:
    """See ``availability.summarize``."""
    sampled, waited = found.points.samples, found.points.waited
    recent = sampled.timestamp_ms >= (request.since_ms or 0)
    whole = waited.durations.whole()
    waiting = sum(late for _, late in waited.by_step().values())
    ups = sorted(found.hold_ups, key=lambda up: (-up.held_ms, up.began_ms, up.broker_ids))
    brokers = sorted(_brokers(found), key=lambda each: (-each.held_ms, each.broker_id))
    return LaoResult(
        end_ms=waited.end_ms,
        stall_ms=request.stall_ms,
        records=whole.durations + waiting,
        waiting=waiting,
        p50_ms=whole.p50_ms,
        p99_ms=whole.p99_ms,
        max_ms=whole.max_ms,
        hold_ups_total=len(ups),
        held_ms=sum(attribution.stall.held_ms for attribution in found.attributed),
        hold_ups=ups[: request.limit],
        brokers_total=len(brokers),
        brokers=brokers[: request.limit],
        samples=int(recent.sum()),
        unknown=int(np.count_nonzero(sampled.lao[recent] == MISSING)),
        acknowledged=found.acknowledged,
        told=found.told,
    )


def _brokers(found: Lao) -> list[BrokerLag]:
    """Return the brokers that held LAO back. A stall caused by several counts for each of them."""
    ups = [broker for up in found.hold_ups for broker in up.broker_ids]
    of_broker: dict[int, list[Attribution]] = defaultdict(list)
    for each in found.attributed:
        for broker in each.broker_ids:
            of_broker[broker].append(each)
    return [
        BrokerLag(
            broker,
            ups.count(broker),
            sum(each.stall.held_ms for each in stalled),
            max(each.stall.waited_ms for each in stalled),
        )
        for broker, stalled in of_broker.items()
    ]


def in_words(cause: str, reason: str | None) -> str:
    """Return a text about a cause from :mod:`replay.lag.hold_ups`, with its reason."""
    return {
        FENCED: f"left service: {reason}",
        NO_BROKER: "no broker was in service",
        FAILOVER: "not all brokers had reported to the new controller",
        BEHIND: "had applied less than other brokers",
        UNKNOWN: "the log does not show why: see the metrics",
    }[cause]


def _from(held: HoldUp) -> str:
    first, last = held.first_offset, held.last_offset
    offsets = f"{'start' if first is None else first}–{'end' if last is None else last}"
    length = duration(held.held_ms) + (" so far" if last is None else "")
    return f"{format_moment(held.began_ms)}\n{length}, offsets {offsets}"


def listings(result: LaoResult) -> list[Listing]:
    """Return the tables, worst first."""
    return [
        listing(
            "LAO held back",
            result.hold_ups,
            Field("from, for", _from, kind=FIXED),
            Field("brokers", lambda each: ", ".join(map(str, each.broker_ids)) or "-", kind=TEXT),
            Field("records", "records"),
            Field("why", lambda each: in_words(each.cause, each.reason), kind=TEXT),
            total=result.hold_ups_total,
        ),
        listing(
            "Brokers",
            result.brokers,
            Field("broker", "broker_id"),
            Field("held LAO back", "hold_ups", lambda ups: counted(ups, "time")),
            Field("for", "held_ms", duration),
            Field("longest wait", "longest_ms", duration),
            total=result.brokers_total,
        ),
    ]


def sentences(result: LaoResult) -> list[str]:
    """See ``availability.sentences``."""
    said = [f"{counted(result.samples, 'sample')}, LAO unknown in {result.unknown}"]
    if not result.samples:
        return [
            *said,
            "No progress records: LAO was never known, or nothing has been written since.",
        ]
    measured = ("applied by all", result.acknowledged), ("known to all", result.told)
    for name, found in measured:
        if found is not None:
            said.append(
                f"Measured by the controllers for {counted(found.records, 'record')}, from commit"
                f" to {name}: p50 {micros(found.p50_us)}, p99 {micros(found.p99_us)} (both up to"
                f" 19 % too high), max {micros(found.max_us)}"
            )
    bound = "(upper bounds, from one progress record a second) " if result.acknowledged else ""
    said.append(
        f"{counted(result.records, 'record')}, from commit to visible everywhere {bound}p50"
        f" {duration(result.p50_ms)}, p99 {duration(result.p99_ms)} (both {HOW_EXACT}), max"
        f" {duration(result.max_ms)}; {result.waiting} not visible everywhere by the end"
    )
    if result.hold_ups:
        times = counted(result.hold_ups_total, "time")
        said.append(f"LAO was held back {times}, for {duration(result.held_ms)} in total")
    else:
        said.append(f"LAO was not held back for {duration(result.stall_ms)} or more")
    return said


def render(result: LaoResult, console: Console) -> None:
    """Print the result as text."""
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
