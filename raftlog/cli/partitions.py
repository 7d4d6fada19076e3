"""``raftlog partitions``: leaders, in-sync replicas, moves and elections (KIP-455, KIP-460)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from raftlog.cli import completion
from raftlog.cli.brokers import AtOnce, Drained, Stalled, Throttle, carried_out
from raftlog.cli.command import (
    ASK,
    EITHER,
    WRITE,
    Answer,
    ValidateOnly,
    command,
    group,
    would,
    written,
)
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_error, print_line, print_table
from raftlog.cli.values import (
    PartitionName,
    Topics,
    assigned,
    assignments,
    by_topic,
    partition_name,
    plan_of,
    read_plan,
)
from raftlog.errors import ConfigError
from raftlog.metadata.config_keys import THROTTLES
from raftlog.outcome import WriteResult
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.topics import Election, PartitionResult, Reassignment
    from raftlog.client.values import ItemResult, Listing
    from raftlog.ops.isr_compare import (
        AskedBroker,
        ComparedPartition,
        IsrComparison,
        IsrMember,
        LeaderViews,
    )
    from raftlog.ops.moves import Rates

app = group()
COLUMNS = ("TOPIC", "PARTITION", "LEADER", "LEADER EPOCH", "PARTITION EPOCH", "ISR", "PROPOSED")
LEAST = ("PARTITION EPOCH", "LEADER EPOCH", "PROPOSED")
NUMBERS = ("PARTITION", "LEADER", "LEADER EPOCH", "PARTITION EPOCH", "HW", "END")


@dataclass
class PlannedPartition:
    """A partition in a plan."""

    topic: str
    partition: int
    replicas: Sequence[int]


@dataclass
class Plan:
    """A plan in Kafka's format, for --plan."""

    version: int
    partitions: Sequence[PlannedPartition]


@dataclass
class Reassigned:
    """The moves that were started, and a plan that reverts them."""

    write: WriteResult[PartitionResult]
    before: Plan | None
    """The replicas before the moves, as a plan that reverts them; None without
    --bootstrap-server.
    """


@command(app, shared=EITHER)
async def isr(
    client: AsyncClient,
    topics: Topics = None,
    compare: Annotated[
        bool,
        opt(
            "--compare",
            "Compare the leaders' ISRs with those that the controller has committed; show each"
            " difference and its reason.",
        ),
    ] = False,
    moment: Annotated[
        float, opt("--moment S", "With --compare: tolerate a difference for S seconds.", min=0.0)
    ] = 5.0,
) -> Answer[LeaderViews | IsrComparison]:
    """Show in-sync replicas as the leaders of partitions see them.

    A leader is the first to know its ISR (KIP-24). ISR is the committed ISR as far as the leader
    knows, each member as id@broker-epoch (incarnation id in KIP-343). PROPOSED is the ISR that the
    leader has proposed (AlterPartition, IsrChange in KIP-343) without an answer yet.

    --compare queries every registered broker, then reads the committed log from the active
    controller. The two always differ briefly when an ISR changes. Exit code 3 if a difference stays
    the same for --moment seconds.

    \b
    Examples:
      raftlog partitions isr --bootstrap-server 127.0.0.1:9092
      raftlog partitions isr orders --compare --bootstrap-controller 127.0.0.1:9093 --json
    """
    from raftlog.ops.isr_compare import ask_for_isrs, compare_until_settled

    if compare:
        found = await compare_until_settled(client, topics or (), moment)
        lasting = counted(found.lasting, "difference")
        why = f"{lasting} between the leaders and the controller lasted at least {moment:g} s"
        errors = [FailedError(why, Exit.FOUND)] if found.lasting else []
        return Answer(found, lambda: _show_comparison(found), errors)
    views = await ask_for_isrs(client, topics or ())

    def show() -> None:
        rows = (
            (one.topic, one.partition, one.leader_id, one.leader_epoch, one.partition_epoch,
             _members(one.isr), _members(one.proposed_isr), one.high_watermark, one.log_end_offset)
            for one in views.partitions
        )  # fmt: skip
        print_table((*COLUMNS, "HW", "END"), rows, right=NUMBERS, least=LEAST)

    return Answer(views, show, _silent(views.brokers))


def _silent(brokers: Sequence[AskedBroker]) -> list[FailedError]:
    failures = [f"broker {one.broker_id}: {one.failure}" for one in brokers if one.failure]
    why = "not every broker has answered: " + "; ".join(failures)
    return [FailedError(why, Exit.UNREACHABLE)] if failures else []


def _show_comparison(found: IsrComparison) -> None:
    columns = (*COLUMNS, "COMMITTED ISR", "DIFFERENCES")
    print_table(columns, map(_compared, found.partitions), right=NUMBERS, least=LEAST)
    differ = sum(bool(one.differences) for one in found.partitions)
    print_line(
        f"{counted(len(found.partitions), 'partition')} compared at offset {found.offset},"
        f" {differ} differ"
    )


def _compared(one: ComparedPartition) -> list[object]:
    said, committed = one.leader, one.committed
    told: list[object] = [None] * 4
    if said is not None:
        isrs = _members(said.isr), _members(said.proposed_isr)
        told = [said.leader_epoch, said.partition_epoch, *isrs]
    ours = None
    if committed is not None:
        isr = ", ".join(map(str, committed.isr))
        ours = f"{isr} ({committed.leader_epoch}/{committed.partition_epoch})"
    differences = "; ".join(
        f"{each.why}: {each.text}{' (lasting)' if each.lasting else ''}" for each in one.differences
    )
    return [one.topic, one.partition, one.leader_id, *told, ours, differences or None]


def _members(isr: Sequence[IsrMember] | None) -> list[str]:
    return [
        f"{one.broker_id}@{'?' if one.broker_epoch is None else one.broker_epoch}"
        for one in isr or ()
    ]


@command(app, shared=WRITE)
async def reassign(
    client: AsyncClient,
    moves: Annotated[
        list[str] | None,
        arg(
            "[TOPIC:PARTITION=BROKER,...]...",
            "The new replicas of each partition.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None, opt("--plan FILE", "Moves as JSON, as Kafka's tools write them.")
    ] = None,
    keep_replication_factor: Annotated[
        bool,
        opt(
            "--keep-replication-factor",
            "Refuse moves that change the number of replicas (KIP-860).",
        ),
    ] = False,
    throttle: Throttle = None,
    validate_only: ValidateOnly = False,
) -> Answer[Reassigned]:
    """Move replicas; the first broker becomes the preferred leader.

    Each partition succeeds or fails by itself.

    The command returns once the move has started. The new replicas then catch up; once all of them
    are in sync, the old ones are removed. See `raftlog partitions reassignments` for moves in
    progress, and `raftlog partitions cancel` to revert them. --throttle stays until it is removed;
    the command prints how. --json also prints the previous replicas as a plan that reverts the
    move, if they could be read through --bootstrap-server.

    \b
    Examples:
      raftlog partitions reassign orders:0=4,5,6 orders:1=5,6,4
      raftlog partitions reassign --plan moves.json --validate-only
    """
    wanted = [assigned(text) for text in moves or ()]
    wanted += read_plan(plan) if plan is not None else []
    if not wanted:
        raise ConfigError("nothing to move: give TOPIC:PARTITION=BROKER,BROKER,... or --plan FILE")
    from raftlog.ops.moves import set_throttle

    before = await _before(client, [name for name, _ in wanted])
    if throttle is not None and not validate_only:
        rates = await _rates_before(client, throttle)
        await set_throttle(client, throttle)
        print_error(f"the throttle stays. {rates.way_back()}")
    answer = await written(
        client.partitions.reassign_all(
            _moves(wanted),
            keep_replication_factor=keep_replication_factor,
            validate_only=validate_only,
        ),
        "would be moved" if validate_only else "moving",
    )
    return Answer(Reassigned(answer.document, before), answer.show, answer.errors)


async def _rates_before(client: AsyncClient, throttle: int) -> Rates:
    """Return the throttle to restore, as a broker shows it; no throttle if there is no broker to
    ask.
    """
    from raftlog.ops.moves import UNTHROTTLED, Rates

    if not client.options.bootstrap:
        return UNTHROTTLED
    shown = await client.configs.describe("broker", "", keys=THROTTLES, read="latest")
    rates = Rates({key: int(one.value) for key, one in shown.items() if not one.is_default})
    return UNTHROTTLED if rates == Rates.both(throttle) else rates


async def _before(client: AsyncClient, names: Sequence[PartitionName]) -> Any:
    """Return the replicas before the moves as shown by a broker, or None if there is no broker to
    ask.
    """
    if not client.options.bootstrap:
        return None
    topics = await client.topics.describe_all(*by_topic(names), read="latest")
    found = {(one.name, each.index): each.replicas for one in topics for each in one.partitions}
    return plan_of((name, found[name]) for name in names if name in found)


def _moves(
    wanted: Sequence[tuple[PartitionName, Sequence[int] | None]],
) -> Mapping[str, Mapping[int, Sequence[int] | None]]:
    moves: dict[str, dict[int, Sequence[int] | None]] = {}
    for (topic, index), replicas in wanted:
        if index in moves.setdefault(topic, {}):
            raise ConfigError(f"{topic}:{index} is given more than once")
        moves[topic][index] = replicas
    return moves


@command(app, shared=WRITE)
async def cancel(
    client: AsyncClient,
    partitions: Annotated[
        list[str] | None,
        arg("[TOPIC:PARTITION]...", "The partitions whose moves to cancel.", show_default=False),
    ] = None,
    everything: Annotated[bool, opt("--all", "Cancel all moves in progress.")] = False,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[PartitionResult]]:
    """Cancel moves: remove the new replicas, keep the old ones.

    Each partition succeeds or fails by itself.

    \b
    Examples:
      raftlog partitions cancel orders:0 orders:1
      raftlog partitions cancel --all
    """
    names = [partition_name(text) for text in partitions or ()]
    if bool(names) == everything:
        raise ConfigError("give at least one TOPIC:PARTITION, or --all")
    if everything:
        listed = await client.partitions.reassignments()
        names = [(one.topic, one.partition) for one in listed]
        if not names:
            return Answer(WriteResult(None, None), lambda: print_line("no moves in progress"))
    return await written(
        client.partitions.reassign_all(
            _moves([(name, None) for name in names]), validate_only=validate_only
        ),
        would("cancelled", validate_only),
    )


@command(app, shared=EITHER)
async def reassignments(
    client: AsyncClient,
    topics: Topics = None,
    check: Annotated[bool, opt("--check", "Exit with code 3 if a move is in progress.")] = False,
) -> Answer[Listing[Reassignment]]:
    """List the moves in progress, and replicas not yet in sync.

    \b
    Examples:
      raftlog partitions reassignments --bootstrap-controller 127.0.0.1:9093
      raftlog partitions reassignments orders --check --json
    """
    found = await client.partitions.reassignments(*topics or ())
    said = f"{counted(len(found), 'move')} in progress" if found else "no moves in progress"

    def show() -> None:
        rows = (
            (one.topic, one.partition, one.replicas, one.adding, one.removing, one.in_sync,
             one.waiting_for)
            for one in found
        )  # fmt: skip
        columns = ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITING FOR")
        print_table(columns, rows, right=("PARTITION",), least=("ISR", "REPLICAS"))
        print_line(said)

    return Answer(found, show, [FailedError(said, Exit.FOUND)] if check and found else [])


@command(app, shared=ASK)
async def balance(
    client: AsyncClient,
    execute: Annotated[
        bool, opt("--execute", "Carry out the plan instead of only showing it.")
    ] = False,
    at_once: AtOnce = 10,
    stalled: Stalled = 60.0,
    throttle: Throttle = None,
) -> Answer[Drained]:
    """Plan moves that spread replicas evenly over racks and brokers.

    Moves at most one replica of each partition: off a rack that holds several replicas while
    another rack has room, then from the brokers with the most replicas to those with the fewest.
    Brokers that are cordoned or low on space receive none. With --execute a few partitions move at
    a time; the command may be interrupted and run again. Exit code 3 if any move is left.
    --throttle: as for `raftlog brokers drain`.

    \b
    Examples:
      raftlog partitions balance --bootstrap-controller 127.0.0.1:9093
      raftlog partitions balance --execute --at-once 20
    """
    from raftlog.ops.moves import Mover, balance_plan

    mover = Mover(
        client,
        balance_plan,
        at_once=at_once,
        stalled_s=stalled,
        report=print_error,
        throttle=throttle,
    )
    _, plan = await mover.present()
    return await carried_out(mover, plan, "replicas are balanced", dry_run=not execute)


@command(app, shared=WRITE)
async def elect(
    client: AsyncClient,
    partitions: Annotated[
        list[str] | None,
        arg(
            "[TOPIC[:PARTITION]]...",
            "The partitions; a topic alone means all of its partitions.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ] = None,
    everything: Annotated[bool, opt("--all", "All partitions that need an election.")] = False,
    unclean: Annotated[
        bool,
        opt(
            "--unclean",
            "For partitions without a leader, elect any live replica. Acknowledged records that it "
            "lacks are lost.",
        ),
    ] = False,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[Election]]:
    """Elect the preferred leaders, or any live replica.

    The preferred leader is the first replica. --unclean elects any live replica of a partition
    without a leader. A partition that needs no election is not an error. The controller also elects
    preferred leaders by itself, every leader.imbalance.check.interval.seconds.

    \b
    Examples:
      raftlog partitions elect --all
      raftlog partitions elect orders payments:3 --validate-only
      raftlog partitions elect orders:0 --unclean
    """
    from raftlog.ops.serving import not_served_among

    if bool(partitions) == everything:
        raise ConfigError("give at least one TOPIC or TOPIC:PARTITION, or --all")
    some = by_topic(partition_name(text) for text in partitions or () if ":" in text)
    whole: dict[str, list[int]] = {text: [] for text in partitions or () if ":" not in text}
    led = would("led by", validate_only)
    answer = await written(
        client.partitions.elect_all(some | whole, unclean=unclean, validate_only=validate_only),
        lambda one: f"{led} {one.leader}" if one.needed else f"broker {one.leader} leads",
    )
    if everything and not answer.document.items:
        return replace(answer, show=lambda: print_line("nothing to elect"))
    # Only the leader itself knows whether it serves.
    needless = [(one.topic, one.partition) for one in answer.document.items if not one.needed]
    not_served = await not_served_among(client, needless)
    if not_served and not answer.errors:
        said = "; ".join(f"{name}: {why}" for name, why in sorted(not_served.items()))
        why = f"no election is needed, but these partitions are not served: {said}"
        return replace(answer, errors=[FailedError(why, Exit.FOUND)])
    return answer


@command(app, shared=WRITE)
async def increase(
    client: AsyncClient,
    topic: Annotated[str, arg("TOPIC", "The topic.", autocompletion=completion.topics)],
    count: Annotated[int, opt("--count -n", "The new total number of partitions.")],
    replica_assignment: Annotated[
        str,
        opt(
            "--replica-assignment 1:2:3,2:3:1",
            "The replicas of each new partition; default: chosen by the controller.",
        ),
    ] = "",
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[ItemResult]]:
    """Add partitions to a topic.

    This cannot be undone, and keys may map to other partitions afterwards.

    \b
    Examples:
      raftlog partitions increase orders --count 12
      raftlog partitions increase orders -n 7 --replica-assignment 4:5:6
    """
    placed = assignments(replica_assignment)
    return await written(
        client.topics.create_partitions(
            topic, count, assignments=placed, validate_only=validate_only
        ),
        f"{'would have' if validate_only else 'has'} {counted(count, 'partition')}",
    )
