"""Tables for a terminal with the result of the job availability."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

from raftlog.text import counted
from replay.outages.model import AvailabilityResult
from replay.request import format_moment, format_time
from replay.text import between, duration, more, percent


def _objective_table(result: AvailabilityResult) -> Table:
    goal = (
        () if result.target_percent is None else (f"allowed for {result.target_percent:g} %", "met")
    )
    unknown = ("unknown",) if any(each.unknown_ms for each in result.objectives) else ()
    table = Table("of", "counted in", "available", "lost", *unknown, *goal, title="Service levels")
    for each in result.objectives:
        judged = (
            () if each.met is None else (duration(each.allowed_ms), "yes" if each.met else "NO")
        )
        not_known = (duration(each.unknown_ms),) if unknown else ()
        table.add_row(
            each.name,
            each.counted_in,
            percent(each.available_percent),
            duration(each.lost_ms),
            *not_known,
            *judged,
        )
    return table


def _fencing_table(result: AvailabilityResult) -> Table:
    table = Table(
        "broker",
        Column("from", no_wrap=True),
        Column("offset", no_wrap=True),
        Column("for", no_wrap=True),
        Column("why", overflow="fold"),
        title="Brokers out of service",
    )
    for each in result.fencings:
        length = (result.until_ms if each.ends_ms is None else each.ends_ms) - each.begins_ms
        so_far = (
            " so far"
            if each.ends_ms is None
            else ", then unregistered"
            if each.unregistered
            else ""
        )
        why = f"{each.reason} (planned)" if each.planned else each.reason
        table.add_row(
            str(each.broker_id),
            format_moment(each.begins_ms),
            str(each.begins),
            duration(length) + so_far,
            why,
        )
    return table


def _failover_table(result: AvailabilityResult) -> Table:
    without = any(each.epochs_without_leader for each in result.failovers)
    known = any(each.lao_known_ms is not None for each in result.failovers)
    table = Table(
        Column("at", no_wrap=True),
        Column("controller", no_wrap=True),
        "epoch",
        "absent",
        "silent",
        *(("elections without a leader",) if without else ()),
        *(("LAO known after",) if known else ()),
        title="Failovers",
    )
    for each in result.failovers:
        table.add_row(
            f"{format_moment(each.begins_ms)}\noffset {each.begins}",
            f"{each.previous_leader_id} → {each.leader_id}",
            str(each.epoch),
            between(each.absent_least_ms, each.absent_most_ms),
            duration(each.silent_ms),
            *((str(each.epochs_without_leader),) if without else ()),
            *((duration(each.lao_known_ms),) if known else ()),
        )
    return table


def _topic_table(result: AvailabilityResult) -> Table:
    table = Table(
        "topic",
        "partitions",
        "had a leader",
        "some leaderless",
        "leaderless",
        "under min ISR",
        title="Topics",
        caption="some leaderless: wall-clock; the others: partition-time, summed over partitions",
    )
    for each in result.topics:
        share = 100.0 if not each.life_ms else 100 * (1 - each.leaderless_ms / each.life_ms)
        times = (each.offline_ms, each.leaderless_ms, each.under_min_isr_ms)
        table.add_row(each.topic_name, str(each.partitions), percent(share), *map(duration, times))
    return table


def _partition_table(result: AvailabilityResult) -> Table:
    table = Table(
        "partition", "leaderless", "times", "longest", "under min ISR", title="Partitions"
    )
    for each in result.partitions:
        table.add_row(
            f"{each.topic_name}-{each.partition_id}",
            duration(each.leaderless_ms),
            str(each.outages),
            duration(each.longest_ms),
            duration(each.under_min_isr_ms),
        )
    return table


def _broker_table(result: AvailabilityResult) -> Table:
    table = Table(
        "broker", "out of service", "of it planned", "times", "longest", "now", title="Brokers"
    )
    for each in result.brokers:
        times = (
            duration(each.out_ms),
            duration(each.planned_ms),
            str(each.fencings),
            duration(each.longest_ms),
        )
        table.add_row(str(each.broker_id), *times, "out" if each.out else "in")
    return table


def render(result: AvailabilityResult, console: Console) -> None:
    """Print the result for people: service levels first, then the absent brokers, then the
    effects.
    """
    console.print(
        f"From {format_time(result.since_ms)} to {format_time(result.until_ms)},"
        f" {duration(result.until_ms - result.since_ms)}"
    )
    console.print(_objective_table(result))
    lists = (
        (_failover_table, result.failovers),
        (_fencing_table, result.fencings),
        (_partition_table, result.partitions),
        (_topic_table, result.topics),
        (_broker_table, result.brokers),
    )
    for table, rows in lists:
        if rows:
            console.print(table(result))
    wanting = "without a leader or under min ISR"
    away = "a broker was out of service"
    counts = (
        (result.failovers, result.failovers_total, "failover", "failovers"),
        (result.fencings, result.fencings_total, f"time {away}", f"times {away}"),
        (
            result.partitions,
            result.partitions_total,
            f"partition {wanting}",
            f"partitions {wanting}",
        ),
    )
    console.print(
        "; ".join(
            counted(total, one, many) + more(len(rows), total) for rows, total, one, many in counts
        )
    )
    missed = [each.name for each in result.objectives if each.met is False]
    if missed:
        console.print(f"Target of {result.target_percent:g} % missed: {', '.join(missed)}")
