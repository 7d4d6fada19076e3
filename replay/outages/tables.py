"""Tables and sentences with the result of the job availability."""

from __future__ import annotations

from rich.console import Console

from raftlog.text import counted
from replay.listing import FIXED, NUMBER, TEXT, Listing, print_listings
from replay.outages.model import AvailabilityResult, Failover, Fencing
from replay.request import format_moment, format_time
from replay.text import between, duration, percent


def _objectives(result: AvailabilityResult) -> Listing:
    target = result.target_percent
    goal = () if target is None else (f"allowed for {target:g} %", "met")
    unknown = ("unknown",) if any(each.unknown_ms for each in result.objectives) else ()
    rows = []
    for each in result.objectives:
        judged = (
            () if each.met is None else (duration(each.allowed_ms), "yes" if each.met else "NO")
        )
        rows.append(
            (
                each.name,
                each.counted_in,
                percent(each.available_percent),
                duration(each.lost_ms),
                *((duration(each.unknown_ms),) if unknown else ()),
                *judged,
            )
        )
    columns = dict.fromkeys(("of", "counted in"), TEXT)
    columns |= dict.fromkeys(("available", "lost", *unknown, *goal), NUMBER)
    return Listing("Service levels", columns, rows)


def _fencing(each: Fencing, until_ms: int) -> tuple[str, ...]:
    length = (until_ms if each.ends_ms is None else each.ends_ms) - each.begins_ms
    after = (
        " so far" if each.ends_ms is None else ", then unregistered" if each.unregistered else ""
    )
    return (
        str(each.broker_id),
        format_moment(each.begins_ms),
        str(each.begins),
        duration(length) + after,
        f"{each.reason} (planned)" if each.planned else each.reason,
    )


def _failovers(result: AvailabilityResult) -> Listing:
    without = any(each.epochs_without_leader for each in result.failovers)
    known = any(each.lao_known_ms is not None for each in result.failovers)
    columns = dict.fromkeys(("at", "controller"), FIXED) | dict.fromkeys(
        (
            "epoch",
            "absent",
            "silent",
            *(("elections without a leader",) if without else ()),
            *(("LAO known after",) if known else ()),
        ),
        NUMBER,
    )

    def row(each: Failover) -> tuple[str, ...]:
        return (
            f"{format_moment(each.begins_ms)}\noffset {each.begins}",
            f"{each.previous_leader_id} → {each.leader_id}",
            str(each.epoch),
            between(each.absent_least_ms, each.absent_most_ms),
            duration(each.silent_ms),
            *((str(each.epochs_without_leader),) if without else ()),
            *((duration(each.lao_known_ms),) if known else ()),
        )

    return Listing(
        "Failovers",
        columns,
        [row(each) for each in result.failovers],
        result.failovers_total,
        "absent: no controller led; silent: no record was written, which proves no absence",
    )


def listings(result: AvailabilityResult) -> list[Listing]:
    """Return the tables: service levels, the absent controllers and brokers, the effects."""
    fencings = Listing(
        "Brokers out of service",
        {"broker": NUMBER, "from": FIXED, "offset": NUMBER, "for": FIXED, "why": TEXT},
        [_fencing(each, result.until_ms) for each in result.fencings],
        result.fencings_total,
    )
    partitions = Listing(
        "Partitions",
        {"partition": TEXT}
        | dict.fromkeys(("leaderless", "times", "longest", "under min ISR"), NUMBER),
        [
            (
                f"{each.topic_name}-{each.partition_id}",
                duration(each.leaderless_ms),
                str(each.outages),
                duration(each.longest_ms),
                duration(each.under_min_isr_ms),
            )
            for each in result.partitions
        ],
        result.partitions_total,
    )
    names = ("partitions", "had a leader", "some leaderless", "leaderless", "under min ISR")
    topics = Listing(
        "Topics",
        {"topic": TEXT} | dict.fromkeys(names, NUMBER),
        [
            (
                each.topic_name,
                str(each.partitions),
                percent(100 * (1 - each.leaderless_ms / each.life_ms) if each.life_ms else 100.0),
                *map(duration, (each.offline_ms, each.leaderless_ms, each.under_min_isr_ms)),
            )
            for each in result.topics
        ],
        result.topics_total,
        "some leaderless: wall-clock; the others: partition-time, summed over partitions",
    )
    names = ("broker", "out of service", "of it planned", "times", "longest")
    brokers = Listing(
        "Brokers",
        dict.fromkeys(names, NUMBER) | {"now": TEXT},
        [
            (
                str(each.broker_id),
                duration(each.out_ms),
                duration(each.planned_ms),
                str(each.fencings),
                duration(each.longest_ms),
                "out" if each.out else "in",
            )
            for each in result.brokers
        ],
        result.brokers_total,
    )
    return [_objectives(result), _failovers(result), fencings, partitions, topics, brokers]


def sentences(result: AvailabilityResult) -> list[str]:
    """Return the result as a whole in words."""
    impaired, away = "without a leader or under min ISR", "a broker was out of service"
    counts = (
        counted(result.failovers_total, "failover"),
        counted(result.fencings_total, f"time {away}", f"times {away}"),
        counted(result.partitions_total, f"partition {impaired}", f"partitions {impaired}"),
    )
    said = ["; ".join(counts)]
    missed = [each.name for each in result.objectives if each.met is False]
    if missed:
        said.append(f"Target of {result.target_percent:g} % missed: {', '.join(missed)}")
    return said


def render(result: AvailabilityResult, console: Console) -> None:
    """Print the result."""
    console.print(
        f"From {format_time(result.since_ms)} to {format_time(result.until_ms)},"
        f" {duration(result.until_ms - result.since_ms)}"
    )
    print_listings(listings(result), console)
    for each in sentences(result):
        console.print(each)
