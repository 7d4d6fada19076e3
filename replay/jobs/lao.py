"""The LowestAcknowledgedOffset over time: how long writes took to be visible everywhere, and the
brokers that held it back.

All of it is from the progress records, which are a sample of LAO's progress: see
:mod:`replay.lag.samples` for what they can and cannot say, and :mod:`replay.lag.hold_ups` for how a
stall is attributed to brokers. A broker counts while its registration in the log is unfenced. Lag
in offsets is up to the last committed record; times are differences of the log's timestamps, too
long by up to ``progress.interval.ms`` where controllers have not measured them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.arrays import MISSING
from replay.kernels.histogram import Figures, percentile
from replay.kernels.passes import Rows, facts_of
from replay.lag import hold_ups
from replay.lag.applied import BrokerFigures, broker_figures
from replay.lag.hold_ups import Attribution, returns
from replay.lag.result import BrokerLag, Hour, LaoResult, LaoStall, Measured, render
from replay.lag.samples import Samples, sample
from replay.lag.waits import HOUR_MS, Points, TimeSteps, Waited, points, waits
from replay.outages.service import departures, service
from replay.request import JobRequest

if TYPE_CHECKING:
    from replay.engine.pool import Pool
    from replay.kernels.facts import BrokerSpan

__all__ = ["Lao", "look", "render", "run", "summarize"]


class Lao(NamedTuple):
    """Raw material of the result. ``points``: all samples; the question is about those from the
    place ``first`` on.
    """

    points: Points
    first: int
    waited: Waited
    words: list[BrokerFigures]
    attributed: list[Attribution]
    hold_ups: list[LaoStall]
    acknowledged: Measured | None
    told: Measured | None


def look(
    log: Rows,
    brokers: list[BrokerSpan],
    *,
    stall_ms: int,
    since_ms: int | None = None,
    steps: TimeSteps | None = None,
) -> Lao:
    """Examine a log; before ``since_ms`` only intervals that last until then. ``steps``: intervals
    for which the waits of records are reported, too.
    """
    sampling = sample(log, since_ms)
    sampled = sampling.samples
    known = sampled.lao[sampled.lao != MISSING]
    asked, waited = waits(log, sampled, known + 1, since_ms=since_ms, steps=steps)
    found = points(sampled, asked, waited)
    stalled = hold_ups.stalls(found, waited, least_ms=stall_ms)
    first = 0
    if since_ms is not None:
        # Not by bisection: log time may have gone back.
        recent = np.flatnonzero(sampled.timestamp_ms >= since_ms)
        first = int(recent[0]) if len(recent) else len(sampled)
        stalled = [each for each in stalled if each.ended_ms >= since_ms]
    figures, stood = broker_figures(
        log, brokers, since_ms=since_ms, applied=hold_ups.telling(stalled)
    )
    served = service(brokers)
    attributed = hold_ups.attribute(stalled, sampled, stood, departures(served), returns(served))
    return Lao(
        found,
        first,
        waited,
        figures,
        attributed,
        hold_ups.hold_ups(attributed),
        sampling.acknowledged.measured(),
        sampling.told.measured(),
    )


def run(export: Export, request: JobRequest, pool: Pool) -> LaoResult:
    """Answer by the tasks of a pool."""
    log = ExportLog(export, pool)
    brokers = facts_of(log).brokers
    found = look(log, brokers, stall_ms=request.stall_ms, since_ms=request.since_ms)
    return summarize(found, request)


def summarize(found: Lao, request: JobRequest) -> LaoResult:
    """Return the result as figures and bounded lists."""
    limit = request.limit
    points_, waited = found.points, found.waited
    sampled: Samples = points_.samples
    recent = np.arange(found.first, len(sampled))
    known = recent[points_.lag_offsets[recent] != MISSING]
    whole = waited.hours.whole()
    hours = waited.of_groups(hours=True)
    waiting = sum(late for _, late in hours.values())
    ups = sorted(found.hold_ups, key=lambda up: (-up.held_ms, up.began_ms, up.broker_ids))
    brokers = sorted(
        _brokers(found), key=lambda each: (-each.held_ms, -each.max_lag_offsets, each.broker_id)
    )
    return LaoResult(
        end_ms=waited.end_ms,
        stall_ms=request.stall_ms,
        records=whole.durations + waiting,
        waiting=waiting,
        p50_ms=whole.p50_ms,
        p90_ms=whole.p90_ms,
        p99_ms=whole.p99_ms,
        max_ms=whole.max_ms,
        hold_ups_total=len(ups),
        held_ms=sum(attribution.stall.held_ms for attribution in found.attributed),
        hold_ups=ups[:limit],
        brokers_total=len(brokers),
        brokers=brokers[:limit],
        hours_total=len(hours),
        hours=[_hour(*each) for each in list(hours.items())[-limit:]],
        samples=len(recent),
        unknown=int((sampled.lao[recent] == MISSING).sum()),
        p50_lag_offsets=percentile(points_.lag_offsets[known], 50),
        p99_lag_offsets=percentile(points_.lag_offsets[known], 99),
        max_lag_offsets=percentile(points_.lag_offsets[known], 100),
        max_lag_ms=percentile(points_.lag_ms[known], 100),
        timeline=points_.rows(recent[-limit:]),
        acknowledged=found.acknowledged,
        told=found.told,
    )


def _hour(hour: int, found: tuple[Figures, int]) -> Hour:
    each, late = found
    records = each.durations + late
    return Hour(hour * HOUR_MS, records, each.p50_ms, each.p90_ms, each.p99_ms, each.max_ms, late)


def _brokers(found: Lao) -> list[BrokerLag]:
    held = hold_ups.by_broker(found.attributed, found.hold_ups)
    return [
        BrokerLag(*each, *held.get(each.broker_id, hold_ups.Held(0, 0, 0))) for each in found.words
    ]
