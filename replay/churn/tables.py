"""Tables and sentences with the result of the job churn."""

from __future__ import annotations

from rich.console import Console

from raftlog.metadata.words import author
from raftlog.text import counted
from replay.churn.model import BrokerChurn, ChurnResult, PartitionChurn
from replay.entities import config_key
from replay.kernels.histogram import HOW_COARSE, HOW_EXACT
from replay.listing import FIXED, NUMBER, TEXT, Listing, print_listings
from replay.request import format_time
from replay.text import duration, size


def _left(each: BrokerChurn | PartitionChurn) -> tuple[str, ...]:
    counts = (each.leaves, each.leaves_by_leader, each.returns)
    return (*map(str, counts), "-" if each.p50_out_ms is None else duration(each.p50_out_ms))


def _configs(result: ChurnResult) -> Listing:
    named = not result.origin
    columns = {"config": TEXT, "changes": NUMBER, "back again": NUMBER}
    columns |= ({"writers": NUMBER} if named else {}) | {"last change": FIXED, "value": TEXT}
    rows = [
        (
            config_key(each.resource_type, each.resource_name, each.config_name),
            str(each.changes),
            str(each.reversals),
            *((str(each.principals),) if named else ()),
            format_time(each.last_ms) + (f"\n{author(each.last_principal)}" if named else ""),
            "deleted" if each.last_value is None else each.last_value,
        )
        for each in result.configs
    ]
    return Listing("Configs", columns, rows, result.configs_total)


def listings(result: ChurnResult) -> list[Listing]:
    """Return the tables, each with the most changes first, and the forecast."""
    out = ("left ISRs", "of it lagging", "came back", "out p50")
    brokers = Listing(
        "Brokers",
        dict.fromkeys(("broker", *out, "out max", "lead lost", "lead won"), NUMBER),
        [
            (
                str(each.broker_id),
                *_left(each),
                "-" if each.max_out_ms is None else duration(each.max_out_ms),
                str(each.leaderships_lost),
                str(each.leaderships_gained),
            )
            for each in result.brokers
        ],
        result.brokers_total,
        f"out p50 is approximate: {HOW_EXACT}",
    )
    partitions = Listing(
        "Partitions",
        {"partition": TEXT} | dict.fromkeys((*out, "new leaders"), NUMBER),
        [
            (f"{each.topic_name}-{each.partition_id}", *_left(each), str(each.leader_moves))
            for each in result.partitions
        ],
        result.partitions_total,
        f"out p50 is approximate: {HOW_COARSE}",
    )
    total = sum(each.bytes for each in result.types) or 1
    types = Listing(
        "The log by record type",
        {"records": TEXT} | dict.fromkeys(("how many", "bytes", "share", "a day"), NUMBER),
        [
            (
                each.type_name,
                str(each.records),
                size(each.bytes),
                f"{100 * each.bytes / total:.1f} %",
                f"{each.per_day:.0f}",
            )
            for each in result.types
        ],
    )
    now = ("now", size(result.log_bytes), size(result.snapshot_bytes))
    forecast = Listing(
        "Forecast",
        {"": TEXT, "log, nothing deleted": NUMBER, "snapshot": NUMBER},
        [
            now,
            *(
                (f"in {counted(each.days, 'day')}", size(each.log_bytes), size(each.snapshot_bytes))
                for each in result.forecasts
            ),
        ],
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
