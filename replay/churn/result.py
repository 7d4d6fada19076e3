"""Result of the job churn: bounded, typed, ready for JSON; and its tables and sentences."""

from __future__ import annotations

import msgspec
from rich.console import Console

from raftlog.metadata.words import author, config_key
from raftlog.text import counted
from replay.kernels.histogram import HOW_EXACT
from replay.text import (
    FIXED,
    TEXT,
    Field,
    Listing,
    duration,
    format_time,
    listing,
    print_listings,
    size,
)


class BrokerChurn(msgspec.Struct, frozen=True):
    """One broker: how often it left ISRs (``leaves_by_leader``: because it lagged), came back, and
    lost and gained leaderships.

    ``p50_out_ms``, ``max_out_ms``: how long it had been out of an ISR when it came back; None: it
    never did.
    """

    broker_id: int
    leaves: int
    leaves_by_leader: int
    joins: int
    returns: int
    p50_out_ms: int | None
    max_out_ms: int | None
    leaderships_lost: int
    leaderships_gained: int


class PartitionChurn(msgspec.Struct, frozen=True):
    """One partition: how often a replica left its ISR (``leaves_by_leader``: because it lagged) and
    came back, and how often its leader became another.
    """

    topic_id: str
    topic_name: str
    partition_id: int
    leaves: int
    leaves_by_leader: int
    joins: int
    returns: int
    leader_moves: int


class ConfigChurn(msgspec.Struct, frozen=True):
    """One key of a resource.

    ``reversals``: changes back to the value before the last. ``last_value`` None: deleted.
    """

    resource_type: int
    resource_name: str
    config_name: str
    changes: int
    reversals: int
    principals: int
    last_offset: int
    last_ms: int
    last_principal: str
    last_value: str | None


class TypeGrowth(msgspec.Struct, frozen=True):
    """One record type.

    ``bytes``: of the records' bodies, without what a batch adds; ``per_day``: records, at the pace
    of all the time.
    """

    type_name: str
    records: int
    bytes: int
    per_day: float


class PeriodGrowth(msgspec.Struct, frozen=True):
    """One hour or day: records written in it, and the size of the last checkpoint by its end; None:
    there was none.
    """

    period_ms: int
    records: int
    snapshot_bytes: int | None


class Forecast(msgspec.Struct, frozen=True):
    """Sizes in bytes in ``days`` days: of the log if nothing is deleted, and of a snapshot (None:
    fewer than two sizes are known).
    """

    days: int
    log_bytes: int
    snapshot_bytes: int | None


class ChurnResult(msgspec.Struct, frozen=True):
    """Result of the job for a stretch of time, ``since_ms`` to ``until_ms``.

    Lists are the worst first, cut at the limit, of ``…_total``; ``periods``: the last ones.

    ``log_bytes`` is as of the end, ``snapshot_bytes`` as of the last checkpoint, or of the end if
    there is none; ``forecasts`` is empty if there are fewer than two periods. ``origin``: the kind
    of cluster that wrote the log, empty for raftlog's own.
    """

    since_ms: int
    until_ms: int
    brokers_total: int
    brokers: list[BrokerChurn]
    partitions_total: int
    partitions: list[PartitionChurn]
    configs_total: int
    configs: list[ConfigChurn]
    types: list[TypeGrowth]
    period_length_ms: int
    periods: list[PeriodGrowth]
    log_bytes: int
    snapshot_bytes: int
    forecasts: list[Forecast]
    origin: str = ""


def _known(ms: int | None) -> str:
    return "-" if ms is None else duration(ms)


_LEFT = (
    Field("left ISRs", "leaves"),
    Field("of it lagging", "leaves_by_leader"),
    Field("came back", "returns"),
)


def _configs(result: ChurnResult) -> Listing:
    named = not result.origin

    def changed(each: ConfigChurn) -> str:
        return format_time(each.last_ms) + (f"\n{author(each.last_principal)}" if named else "")

    return listing(
        "Configs",
        result.configs,
        Field(
            "config",
            lambda each: config_key(each.resource_type, each.resource_name, each.config_name),
            kind=TEXT,
        ),
        Field("changes", "changes"),
        Field("back again", "reversals"),
        *((Field("writers", "principals"),) if named else ()),
        Field("last change", changed, kind=FIXED),
        Field("value", "last_value", lambda each: "deleted" if each is None else each, TEXT),
        total=result.configs_total,
    )


def listings(result: ChurnResult) -> list[Listing]:
    """Return the tables, each with the most changes first, and the forecast."""
    brokers = listing(
        "Brokers",
        result.brokers,
        Field("broker", "broker_id"),
        *_LEFT,
        Field("out p50", "p50_out_ms", _known),
        Field("out max", "max_out_ms", _known),
        Field("lead lost", "leaderships_lost"),
        Field("lead won", "leaderships_gained"),
        total=result.brokers_total,
        note=f"out p50 is approximate: {HOW_EXACT}",
    )
    partitions = listing(
        "Partitions",
        result.partitions,
        Field("partition", lambda each: f"{each.topic_name}-{each.partition_id}", kind=TEXT),
        *_LEFT,
        Field("new leaders", "leader_moves"),
        total=result.partitions_total,
    )
    total = sum(each.bytes for each in result.types) or 1
    types = listing(
        "The log by record type",
        result.types,
        Field("records", "type_name", kind=TEXT),
        Field("how many", "records"),
        Field("bytes", "bytes", size),
        Field("share", "bytes", lambda count: f"{100 * count / total:.1f} %"),
        Field("a day", "per_day", lambda records: f"{records:.0f}"),
    )
    now = Forecast(0, result.log_bytes, result.snapshot_bytes)
    forecast = listing(
        "Forecast",
        [now, *result.forecasts],
        Field("", "days", lambda days: f"in {counted(days, 'day')}" if days else "now", TEXT),
        Field("log, nothing deleted", "log_bytes", size),
        Field("snapshot", "snapshot_bytes", lambda each: "-" if each is None else size(each)),
    )
    return [brokers, partitions, _configs(result), types, forecast]


def sentences(result: ChurnResult) -> list[str]:
    """Return the result as a whole in words."""
    changed = "whose ISR or leader changed"
    counts = (
        counted(result.partitions_total, f"partition {changed}", f"partitions {changed}"),
        counted(result.configs_total, "config key that changed", "config keys that changed"),
    )
    return ["; ".join(counts)]


def render(result: ChurnResult, console: Console) -> None:
    """Print the result."""
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
