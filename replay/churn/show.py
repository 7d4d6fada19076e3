"""Tables for a terminal with the result of the job churn."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from raftlog.metadata.authors import author
from raftlog.text import counted
from replay.churn.model import ChurnResult
from replay.entities import config_key
from replay.kernels.histogram import HOW_COARSE, HOW_EXACT
from replay.request import format_time
from replay.text import duration, more, size


def _broker_table(result: ChurnResult) -> Table:
    table = Table(
        "broker",
        "left ISRs",
        "of it lagging",
        "came back",
        "out p50",
        "out max",
        "leaderships lost",
        "gained",
        title="Brokers",
        caption=f"out p50 is approximate: {HOW_EXACT}",
    )
    for each in result.brokers:
        out = ("-" if ms is None else duration(ms) for ms in (each.p50_out_ms, each.max_out_ms))
        counts = (each.leaves, each.leaves_by_leader, each.returns)
        led = (str(each.leaderships_lost), str(each.leaderships_gained))
        table.add_row(str(each.broker_id), *map(str, counts), *out, *led)
    return table


def _partition_table(result: ChurnResult) -> Table:
    table = Table(
        "partition",
        "left the ISR",
        "of it lagging",
        "came back",
        "out p50",
        "leader moved",
        title="Partitions",
        caption=f"out p50 is approximate: {HOW_COARSE}",
    )
    for each in result.partitions:
        out = "-" if each.p50_out_ms is None else duration(each.p50_out_ms)
        counts = (each.leaves, each.leaves_by_leader, each.returns)
        table.add_row(
            f"{each.topic_name}-{each.partition_id}", *map(str, counts), out, str(each.leader_moves)
        )
    return table


def _config_table(result: ChurnResult) -> Table:
    named = not result.origin
    many, by = (("by how many",), ("by",)) if named else ((), ())
    table = Table("config", "changes", "back again", *many, "last", *by, "value", title="Configs")
    for each in result.configs:
        table.add_row(
            config_key(each.resource_type, each.resource_name, each.config_name),
            str(each.changes),
            str(each.reversals),
            *((str(each.principals),) if named else ()),
            format_time(each.last_ms),
            *((author(each.last_principal),) if named else ()),
            "deleted" if each.last_value is None else each.last_value,
        )
    return table


def _growth_table(result: ChurnResult) -> Table:
    total = sum(each.bytes for each in result.types) or 1
    table = Table("records", "how many", "bytes", "share", "a day", title="The log by record type")
    for each in result.types:
        share = f"{100 * each.bytes / total:.1f} %"
        table.add_row(
            each.type_name, str(each.records), size(each.bytes), share, f"{each.per_day:.0f}"
        )
    return table


def _forecast_table(result: ChurnResult) -> Table:
    table = Table("", "log, nothing deleted", "snapshot", title="Forecast")
    table.add_row("now", size(result.log_bytes), size(result.snapshot_bytes))
    for each in result.forecasts:
        table.add_row(
            f"in {counted(each.days, 'day')}",
            size(each.log_bytes),
            size(each.snapshot_bytes),
        )
    return table


def render(result: ChurnResult, console: Console) -> None:
    """Print the result for people."""
    lists = (
        (_broker_table, result.brokers),
        (_partition_table, result.partitions),
        (_config_table, result.configs),
        (_growth_table, result.types),
    )
    for table, rows in lists:
        if rows:
            console.print(table(result))
    console.print(_forecast_table(result))
    changed = "whose ISR or leader changed"
    counts = (
        (
            result.partitions,
            result.partitions_total,
            f"partition {changed}",
            f"partitions {changed}",
        ),
        (
            result.configs,
            result.configs_total,
            "config key that changed",
            "config keys that changed",
        ),
    )
    console.print(
        "; ".join(
            counted(total, one, many) + more(len(rows), total) for rows, total, one, many in counts
        )
    )
