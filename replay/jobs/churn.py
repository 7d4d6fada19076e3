"""Churn and growth: ISRs, leaderships, configs, the log by record type, and the state with a
forecast.

A replica that its leader removed from an ISR lagged; one that the controller removed was fenced,
shut down or moved. The size of the state is by the fold, entity by entity; the forecasts are
straight lines through the last periods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftlog.segments.manifest import RAW
from replay.churn.configs import config_churn
from replay.churn.growth import (
    DAY_MS,
    Grown,
    Growth,
    Size,
    SizeWatcher,
    Trend,
    client_sizes,
    growth,
    progress_sizes,
    state_sizes,
    trend,
)
from replay.churn.moves import Moved, MoveWatcher, together
from replay.churn.result import ChurnResult, ConfigChurn, Forecast, PeriodGrowth, TypeGrowth, render
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.kernels.census import count_records
from replay.kernels.intervals import Names, of_partitions
from replay.kernels.passes import Log, facts_of
from replay.outages.result import Stretch
from replay.request import JobRequest

if TYPE_CHECKING:
    from replay.engine.pool import Pool

__all__ = ["Churn", "render", "run", "sizes_of", "summarize"]

AHEAD_DAYS = (7, 30, 90, 365)
_TREND_PERIODS = 30


class Churn(NamedTuple):
    """Raw material of the result, unordered and unbounded but for partitions."""

    stretch: Stretch
    moved: Moved
    configs: list[ConfigChurn]
    grown: Growth
    sizes: dict[int, Size]


def run(export: Export, request: JobRequest, pool: Pool) -> ChurnResult:
    """Answer by the tasks of a pool."""
    log = ExportLog(export, pool)
    facts, census = facts_of(log), count_records(log)
    stretch = Stretch.of(census.first_ms, census.last_ms, request.since_ms)
    parts = log.run(
        of_partitions(
            facts,
            partial(MoveWatcher, stretch.since_ms, request.limit),
            partial(SizeWatcher, stretch.period_ms),
        )
    )
    moves, grown = zip(*parts, strict=True)
    configs, config_sizes = config_churn(log, stretch.since_ms, stretch.period_ms)
    found = Churn(
        stretch,
        together(list(moves), Names(facts), request.limit),
        configs,
        growth(log, stretch.since_ms, stretch.period_ms),
        sizes_of(log, export, request, stretch, census.types, [*grown, *config_sizes]),
    )
    return summarize(found, export, request)


def sizes_of(
    log: Log,
    export: Export,
    request: JobRequest,
    stretch: Stretch,
    types: Mapping[int, int],
    grown: Iterable[Grown],
) -> dict[int, Size]:
    """Return the size of the state at the end of each period. ``grown``: the growth by partitions
    and configs; ``types``: the number of records of each type.

    Columns do not tell all of another system's log: it has more fields of partitions, and removes
    configs with their topic.
    """
    period_ms, by_columns = stretch.period_ms, None
    if not export.manifest.origin:
        by_columns = [*grown, progress_sizes(log, period_ms), *client_sizes(log, period_ms)]
    return state_sizes(log, period_ms, by_columns, types=types, tasks=request.partitions)


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
    log_bytes = round(bytes_per_record * sum(found.grown.records.values()))
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
        snapshot_bytes=grown[-1].snapshot_bytes,
        forecasts=_forecasts(
            grown[-_TREND_PERIODS:], bytes_per_record, log_bytes, found.stretch.until_ms
        ),
    )


def _types(found: Churn) -> list[TypeGrowth]:
    days = max(found.stretch.length_ms, 1) / DAY_MS
    types = [
        TypeGrowth(name, records, found.grown.bytes.get(name, 0), records / days)
        for name, records in found.grown.records.items()
    ]
    return sorted(types, key=lambda each: (-each.bytes, each.type_name))


def _periods(found: Churn) -> list[PeriodGrowth]:
    """Return the periods with records, in order. Each of them has a size: every record's group is
    in the state, or was.
    """
    told, size = [], Size(0, 0)
    for period, records in sorted(found.grown.periods.items()):
        size = found.sizes.get(period, size)
        if period + found.stretch.period_ms > found.stretch.since_ms:
            told.append(PeriodGrowth(period, records, *size))
    return told


def _forecasts(
    grown: list[PeriodGrowth], bytes_per_record: float, log_bytes: int, until_ms: int
) -> list[Forecast]:
    snapshot = trend([(each.period_ms, each.snapshot_bytes) for each in grown])
    if snapshot is None:
        return []
    # The last period is not over: it says how far the log has come, not how fast it grows.
    days = max(until_ms - grown[0].period_ms, 1) / DAY_MS
    pace = bytes_per_record * sum(each.records for each in grown) / days
    log = Trend(log_bytes, pace)
    return [Forecast(ahead, log.after(ahead), snapshot.after(ahead)) for ahead in AHEAD_DAYS]
