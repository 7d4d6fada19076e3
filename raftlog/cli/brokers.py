"""``raftlog brokers``: brokers, what they have applied, and which one holds the others back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import (
    ASK,
    SERVER,
    WRITE,
    Answer,
    command,
    group,
    written,
)
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_error, print_line, print_table
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import CORDONED
from raftlog.text import brokers as broker_list
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import (
        ApiVersions,
        BrokerStatus,
        ItemResult,
        PartitionCounts,
        Visibility,
    )
    from raftlog.ops.moves import MoveOutcome, MovePlan, Mover
    from raftlog.outcome import WriteResult

app = group()
LEFT_SHOWN = 5
"""Maximum number of partitions listed in an error."""
AtOnce = Annotated[
    int, opt("--at-once N", "How many partitions may move at the same time, cluster-wide.", min=1)
]
Stalled = Annotated[float, opt("--stalled S", "Give up after S seconds without progress.", min=1.0)]
Throttle = Annotated[
    int | None,
    opt(
        "--throttle BYTES",
        "Bytes per second that each broker sends to, and fetches for, new replicas.",
        min=1,
    ),
]
BrokerId = Annotated[int, arg("BROKER", "The broker's id.", autocompletion=completion.broker_ids)]
BrokerIds = Annotated[
    list[int], arg("BROKER...", "The brokers' ids.", autocompletion=completion.broker_ids)
]


@command(app, "list", shared=ASK)
async def list_(client: AsyncClient) -> Answer[Visibility]:
    """List the registered brokers: state, epoch, applied offset, lag.

    APPLIED is the offset that "latest" reads show, LAO the lowest acknowledged offset that the
    broker knows, LAG the number of committed records that it has not applied. A * marks the brokers
    that hold LAO back. EPOCH is the broker epoch (KIP-343's incarnation id), FOR the time that the
    broker has been in its STATE (>: at least since this controller became active), REASON why it is
    in that state.

    \b
    Examples:
      raftlog brokers list --bootstrap-controller 127.0.0.1:9093
      raftlog brokers list --json
    """
    seen = await client.brokers.visibility()

    def show() -> None:
        print_table(
            ("BROKER", "STATE", "EPOCH", "ENDPOINT", "RACK", "APPLIED", "LAO", "LAG", "HEARD MS",
             "LEADS", "REPLICAS", "FOR", "REASON"),
            map(_cells, seen.brokers),
            right=("EPOCH", "APPLIED", "LAO", "LAG", "HEARD MS", "LEADS", "REPLICAS", "FOR"),
            least=("RACK", "REPLICAS", "LAO", "EPOCH", "HEARD MS", "LEADS", "APPLIED"),
        )  # fmt: skip
        print_line(f"high watermark {seen.high_watermark}; lowest acknowledged offset {_lao(seen)}")
        print_line(_partitions(seen.partitions))

    return Answer(seen, show)


@command(app, shared=WRITE)
async def unregister(client: AsyncClient, broker_id: BrokerId) -> Answer[WriteResult[ItemResult]]:
    """Remove the registration of a broker that will not come back.

    The broker then no longer blocks feature upgrades. It leaves every ISR and leadership, but stays
    in the replica sets: move its replicas away first (`raftlog partitions reassign`). If its
    process is still running, it exits.

    \b
    Examples:
      raftlog brokers unregister 7 --bootstrap-controller 127.0.0.1:9093
    """
    return await written(client.brokers.unregister(broker_id), "unregistered")


@command(app, shared=WRITE)
async def cordon(client: AsyncClient, broker_id: BrokerId) -> Answer[WriteResult[ItemResult]]:
    """Stop placing new replicas on a broker.

    New topics, new partitions and moves avoid the broker; it keeps and leads the replicas it has.
    Sets the broker config `cordoned` (KIP-1066).

    \b
    Examples:
      raftlog brokers cordon 5 --bootstrap-controller 127.0.0.1:9093
    """
    return await written(
        client.configs.alter("broker", broker_id, set={CORDONED: True}), "cordoned"
    )


@command(app, shared=WRITE)
async def uncordon(client: AsyncClient, broker_id: BrokerId) -> Answer[WriteResult[ItemResult]]:
    """Allow a broker to receive new replicas again.

    \b
    Examples:
      raftlog brokers uncordon 5 --bootstrap-controller 127.0.0.1:9093
    """
    return await written(
        client.configs.alter("broker", broker_id, set={CORDONED: False}), "may receive new replicas"
    )


@dataclass
class Drained:
    """The plan of a drain or a balance, and its outcome."""

    plan: MovePlan
    outcome: MoveOutcome | None
    """Null with --dry-run."""


@command(app, shared=ASK)
async def drain(
    client: AsyncClient,
    broker_ids: BrokerIds,
    dry_run: Annotated[bool, opt("--dry-run", "Show the plan without carrying it out.")] = False,
    at_once: AtOnce = 10,
    stalled: Stalled = 60.0,
    throttle: Throttle = None,
) -> Answer[Drained]:
    """Move all replicas off the given brokers.

    The brokers may be dead, or unregistered; registered brokers are cordoned first, and stay
    cordoned. New replicas are placed by racks and replica counts. A few partitions move at a time.
    The command may be interrupted and run again: it then continues with the remaining partitions,
    and replaces targets that have died. Exit code 3 if any replica is left.

    --throttle bounds the bytes per second for replicas that are being added; replicas in the ISR
    are not throttled. When all replicas have moved, the command restores the previous throttle, if
    any. If it ends earlier, its throttle stays, and it prints how to remove it.

    \b
    Examples:
      raftlog brokers drain 5 --dry-run --bootstrap-controller 127.0.0.1:9093
      raftlog brokers drain 5 6 --at-once 20 --throttle 50000000
    """
    from raftlog.ops.moves import Mover, drain_plan

    gone = frozenset(broker_ids)
    mover = Mover(
        client,
        lambda image, low_on_space: drain_plan(image, gone, low_on_space),
        at_once=at_once,
        stalled_s=stalled,
        report=print_error,
        throttle=throttle,
    )
    image, plan = await mover.present()
    unknown = [one for one in gone if one not in image.brokers and not image.replicas_of.get(one)]
    if unknown:
        raise ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"{broker_list(unknown)}: not registered, and no replicas are assigned there; nothing "
            "was changed",
        )
    if not dry_run:
        # A broker that is not registered cannot be cordoned, and receives no replicas anyway.
        for broker_id in sorted(gone.intersection(image.brokers)):
            await client.configs.alter("broker", broker_id, set={CORDONED: "true"})
    empty = f"{broker_list(gone)} hold{'s' if len(gone) == 1 else ''} no replica"
    return await carried_out(mover, plan, empty, dry_run=dry_run)


async def carried_out(mover: Mover, plan: MovePlan, done: str, *, dry_run: bool) -> Answer[Drained]:
    """Carry out a plan, or only show it with ``dry_run``. ``done``: the message when it is
    complete.
    """
    outcome = None if dry_run else await mover.run()

    def show() -> None:
        if outcome is None:
            print_table(
                ("TOPIC", "PARTITION", "REPLICAS", "NEW REPLICAS"),
                [(one.topic, one.partition, one.before, one.replicas) for one in plan.moves],
                right=("PARTITION",),
            )
            print_line(f"{counted(len(plan.moves), 'partition')} would move")
        elif outcome.is_complete:
            print_line(f"{done}; {counted(outcome.moved, 'move')}")

    stuck = plan.stuck if outcome is None else outcome.stuck
    left = [f"{one.topic}:{one.partition}: {one.why}" for one in stuck]
    if outcome is not None:
        left += [*outcome.refused, *outcome.waiting]
    more = f"; and {len(left) - LEFT_SHOWN} more" if len(left) > LEFT_SHOWN else ""
    said = f"{counted(len(left), 'partition')} left: {'; '.join(left[:LEFT_SHOWN])}{more}"
    return Answer(Drained(plan, outcome), show, [FailedError(said, Exit.FOUND)] if left else [])


def _cells(one: BrokerStatus) -> list[object]:
    longer = ">" if one.state_age_is_at_least else ""
    return [
        f"{one.id}{' *' if one.holds_lao_back else ''}",
        one.state.name.lower() + ", cordoned" * one.cordoned + ", low on space" * one.low_on_space,
        one.epoch,
        one.address, one.rack, one.applied_offset, one.told_lowest_acknowledged_offset, one.lag,
        one.last_contact_age_ms, one.leader_count, one.replica_count,
        f"{longer}{span(one.state_age_ms)}", one.reason or None,
    ]  # fmt: skip


def span(ms: int) -> str:
    """Return a duration as text, in the largest unit of which it contains at least two."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def _partitions(counts: PartitionCounts) -> str:
    """Return the number of partitions, and how many need attention and why."""
    wanting = (
        (counts.offline, "without a leader"),
        (counts.not_led_by_preferred, "not led by the preferred leader"),
        (counts.reassigning, "moving"),
        (counts.recovering, "recovering under an unclean leader"),
        (counts.awaiting_recovery, "awaiting an unclean recovery"),
    )
    said = [f"{number} {what}" for number, what in wanting if number]
    return ", ".join([counted(counts.total, "partition"), *said])


def _lao(seen: Visibility) -> str:
    if seen.lowest_acknowledged_offset is None:
        return f"unknown ({seen.unknown_reason})"
    if seen.held_back_by:
        who = ", ".join(map(str, seen.held_back_by))
        held = f"held back by {who} for {seen.held_back_ms / 1000:.1f} s"
        return f"{seen.lowest_acknowledged_offset}, {held}"
    return str(seen.lowest_acknowledged_offset)


@command(app, "api-versions", shared=SERVER)
async def api_versions(client: AsyncClient) -> Answer[ApiVersions]:
    """Show the request versions that a broker offers (ApiVersions).

    SUPPORTED is the range of feature levels that the broker's build knows. FINALIZED is the level
    that the cluster uses, once all unfenced brokers have acknowledged it; 0 if there is none or it
    is unknown.

    \b
    Examples:
      raftlog brokers api-versions --bootstrap-server 127.0.0.1:9092
      raftlog brokers api-versions --json
    """
    offered = await client.brokers.api_versions()

    def show() -> None:
        apis = ((one.key, one.name, one.min_version, one.max_version) for one in offered.apis)
        print_table(("KEY", "API", "MIN", "MAX"), apis, right=("KEY", "MIN", "MAX"))
        features = (
            (one.name, f"{one.min_supported} to {one.max_supported}", one.finalized_level)
            for one in offered.features
        )
        print_table(("FEATURE", "SUPPORTED", "FINALIZED"), features, right=("FINALIZED",))

    return Answer(offered, show)
