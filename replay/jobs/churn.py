"""Churn and growth: ISRs, leaderships, configs, the log by record type, and the state with a
forecast.

A replica that its leader removed from an ISR lagged; one that the controller removed was fenced,
shut down or moved. The size of the state is that of the export's checkpoints; the forecasts are
straight lines through the last of them, and through the last periods.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftlog.segments.manifest import RAW
from replay.churn.configs import config_churn
from replay.churn.growth import DAY_MS, Growth, StateSize, Trend, growth, state_sizes, trend
from replay.churn.moves import Moved, MoveWatcher, together
from replay.churn.result import ChurnResult, ConfigChurn, Forecast, PeriodGrowth, TypeGrowth, render
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.census import count_records
from replay.kernels.intervals import Names, of_partitions
from replay.kernels.passes import facts_of
from replay.outages.result import Stretch
from replay.request import JobRequest

if TYPE_CHECKING:
    from replay.engine.pool import Pool

__all__ = ["Churn", "render", "run", "summarize"]

AHEAD_DAYS = (7, 30, 90, 365)
_TREND_POINTS = 30


class Churn(NamedTuple):
    """Raw material of the result, unordered and unbounded but for partitions."""

    stretch: Stretch
    moved: Moved
    configs: list[ConfigChurn]
    grown: Growth
    sizes: list[StateSize]


def run(export: Export, request: JobRequest, pool: Pool) -> ChurnResult:
    """Answer by the tasks of a pool."""
    log = ExportLog(export, pool)
    facts, census = facts_of(log), count_records(log)
    stretch = Stretch.of(census.first_ms, census.last_ms, request.since_ms)
    parts = log.run(of_partitions(facts, partial(MoveWatcher, stretch.since_ms)))
    found = Churn(
        stretch,
        together([moves for (moves,) in parts], Names(facts), request.limit),
        config_churn(log, stretch.since_ms),
        growth(log, stretch.since_ms, stretch.period_ms),
        state_sizes(export, pool),
    )
    return summarize(found, export, request)


def summarize(found: Churn, export: Export, request: JobRequest) -> ChurnResult:
    """Return the result as figures and bounded lists."""
    limit = request.limit
    raw = [each for each in export.manifest.segments if each.kind == RAW]
    bytes_per_record = sum(each.bytes for each in raw) / max(1, sum(each.records for each in raw))
    brokers = sorted(
        found.moved.brokers, key=lambda each: (-each.leaves_by_leader, -each.leaves, each.broker_id)
    )
    configs = sorted(
        found.configs,
        key=lambda each: (
            -each.changes, each.resource_type, each.resource_name, each.config_name
        ),
    )  # fmt: skip
    grown = _periods(found)[-limit:]
    log_bytes = round(bytes_per_record * sum(count for count, _ in found.grown.types.values()))
    return ChurnResult(
        since_ms=found.stretch.since_ms,
        until_ms=found.stretch.until_ms,
        brokers_total=len(brokers),
        brokers=brokers[:limit],
        partitions_total=found.moved.partitions_total,
        partitions=found.moved.partitions,
        configs_total=len(configs),
        configs=configs[:limit],
        types=_types(found),
        period_length_ms=found.stretch.period_ms,
        periods=grown,
        log_bytes=log_bytes,
        snapshot_bytes=found.sizes[-1].bytes,
        forecasts=_forecasts(found, grown[-_TREND_POINTS:], bytes_per_record, log_bytes),
    )


def _types(found: Churn) -> list[TypeGrowth]:
    days = max(found.stretch.length_ms, 1) / DAY_MS
    types = [
        TypeGrowth(name, records, size, records / days)
        for name, (records, size) in found.grown.types.items()
    ]
    return sorted(types, key=lambda each: (-each.bytes, each.type_name))


def _periods(found: Churn) -> list[PeriodGrowth]:
    """Return the periods with records, in order."""
    told, length = [], found.stretch.period_ms
    for period, records in sorted(found.grown.periods.items()):
        if period + length > found.stretch.since_ms:
            size = [each.bytes for each in found.sizes if each.at_ms < period + length]
            told.append(PeriodGrowth(period, records, size[-1] if size else None))
    return told


def _forecasts(
    found: Churn, grown: list[PeriodGrowth], bytes_per_record: float, log_bytes: int
) -> list[Forecast]:
    if len(grown) < 2:
        return []
    until_ms = found.stretch.until_ms
    snapshot = trend(found.sizes[-_TREND_POINTS:])
    since_last = (until_ms - found.sizes[-1].at_ms) / DAY_MS
    # The last period is not over: it says how far the log has come, not how fast it grows.
    days = max(until_ms - grown[0].period_ms, 1) / DAY_MS
    log = Trend(log_bytes, bytes_per_record * sum(each.records for each in grown) / days)
    return [
        Forecast(
            ahead,
            log.after(ahead),
            None if snapshot is None else snapshot.after(since_last + ahead),
        )
        for ahead in AHEAD_DAYS
    ]
