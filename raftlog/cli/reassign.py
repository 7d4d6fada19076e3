"""``raftlog partitions reassign, cancel, reassignments``: replicas from brokers to brokers
(KIP-455).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.cli.partition_names import (
    PartitionName,
    Topics,
    assigned,
    by_topic,
    partition_name,
    plan_of,
    read_plan,
)
from raftlog.cli.partition_results import finish
from raftlog.cli.writes import Acks, AcksLevel, ValidateOnly, write
from raftlog.errors import ConfigError
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2

Moves = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC:PARTITION=BROKER,...]...",
        help="The new replicas of each partition.",
        show_default=False,
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC:PARTITION]...", help="Which partitions.", show_default=False),
]


def add(app: typer.Typer) -> None:
    """Add the commands to their group."""
    for command in (reassign, cancel, reassignments):
        app.command(epilog=EPILOG)(command)


def reassign(
    moves: Moves = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Moves as JSON, as Kafka's tools write them."),
    ] = None,
    keep_replication_factor: Annotated[
        bool,
        typer.Option(
            "--keep-replication-factor", help="Refuse moves to more or fewer replicas (KIP-860)."
        ),
    ] = False,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Move replicas: the first broker named is the preferred leader.

    Each partition succeeds or fails by itself.

    The command ends when the move has begun. The new replicas then catch up; when all of them are
    in sync, the old ones go. See `raftlog partitions reassignments` for what is under way, and
    `raftlog partitions cancel` to go back. With --json the state before is printed as a plan, if it
    could be read through --bootstrap-server: it leads back.

    \b
    Examples:
      raftlog partitions reassign orders:0=4,5,6 orders:1=5,6,4
      raftlog partitions reassign --plan moves.json --validate-only
    """
    wanted = [assigned(text) for text in moves or []] + (
        read_plan(plan) if plan is not None else []
    )
    if not wanted:
        raise ConfigError("nothing to move: give TOPIC:PARTITION=BROKER,BROKER,... or --plan FILE")
    before = _before([name for name, _ in wanted], bootstrap_server, timeout) if as_json else None
    body = _request(wanted, validate_only=validate_only)
    if keep_replication_factor:
        body.allow_replication_factor_change = False
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    finish(
        response,
        response.alter_partition_reassignments.topics,
        acks,
        as_json=as_json,
        done="would be moved" if validate_only else "moving",
        more={"before": before},
    )


def cancel(
    partitions: Partitions = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Cancel all moves in progress.")
    ] = False,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Cancel moves: drop the new replicas, keep the old ones.

    Each partition succeeds or fails by itself.

    \b
    Examples:
      raftlog partitions cancel orders:0 orders:1
      raftlog partitions cancel --all
    """
    names = [partition_name(text) for text in partitions or []]
    if bool(names) == everything:
        raise ConfigError("give TOPIC:PARTITION, or --all")
    if everything:
        listed = _listed(
            controller_pb2.ListPartitionReassignmentsRequest(),
            bootstrap_server,
            bootstrap_controller,
            timeout,
        ).topics
        names = [(topic.name, one.partition_index) for topic in listed for one in topic.partitions]
        if not names:
            print_json({"partitions": [], "write": None}) if as_json else print_line(
                "nothing is under way"
            )
            return
    body = _request([(name, None) for name in names], validate_only=validate_only)
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    done = "would be cancelled" if validate_only else "cancelled"
    finish(
        response, response.alter_partition_reassignments.topics, acks, as_json=as_json, done=done
    )


def reassignments(
    topics: Topics = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 while a move is in progress.")
    ] = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the moves in progress, and what each waits for.

    It waits for the new replicas that are not in sync yet.

    \b
    Examples:
      raftlog partitions reassignments --bootstrap-controller 127.0.0.1:9093
      raftlog partitions reassignments orders --check --json
    """
    asked = [controller_pb2.ListReassignmentsTopic(name=name) for name in topics or []]
    body = controller_pb2.ListPartitionReassignmentsRequest(topics=asked)
    answer = _listed(body, bootstrap_server, bootstrap_controller, timeout)
    rows = [_row(topic.name, one) for topic in answer.topics for one in topic.partitions]
    if as_json:
        print_json({"offset": answer.offset, "reassignments": rows})
    else:
        columns = ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITING FOR")
        print_table(
            columns,
            ([_cell(value) for value in row.values()] for row in rows),
            right=("PARTITION",),
            least=("ISR", "REPLICAS"),
        )
        print_line(f"{len(rows)} reassignments are under way" if rows else "nothing is under way")
    if check and rows:
        raise FailedError(f"{len(rows)} reassignments are under way", Exit.FOUND)


def _request(
    wanted: Sequence[tuple[PartitionName, list[int] | None]], *, validate_only: bool
) -> controller_pb2.AlterPartitionReassignmentsRequest:
    request = controller_pb2.AlterPartitionReassignmentsRequest(validate_only=validate_only)
    topics: dict[str, Any] = {}
    for (topic, index), ids in wanted:
        if topic not in topics:
            topics[topic] = request.topics.add(name=topic)
        replicas = None if ids is None else records_pb2.IdList(ids=ids)
        topics[topic].partitions.add(partition_index=index, replicas=replicas)
    return request


def _listed(body: Any, bootstrap_server: str, bootstrap_controller: str, timeout: float) -> Any:
    response = write(body, AcksLevel.COMMITTED, bootstrap_server, bootstrap_controller, timeout)
    return response.list_partition_reassignments


def _before(
    names: list[PartitionName], bootstrap_server: str, timeout: float
) -> dict[str, Any] | None:
    """The replicas before, as a broker shows them; None without a broker to ask."""
    from raftlog.cli.reads import ReadMode, read
    from raftlog.wire.broker.v1 import broker_pb2

    if not bootstrap_server:
        return None
    topics = by_topic(names)
    metadata = read(
        broker_pb2.MetadataRequest(topics=topics), ReadMode.LATEST, bootstrap_server, timeout
    ).metadata
    found = {
        (topic.name, one.partition_index): list(one.replica_nodes)
        for topic in metadata.topics
        for one in topic.partitions
    }
    return plan_of((name, found[name]) for name in names if name in found)


def _row(topic: str, one: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": one.partition_index,
        "replicas": list(one.replicas),
        "adding_replicas": list(one.adding_replicas),
        "removing_replicas": list(one.removing_replicas),
        "isr": list(one.isr),
        "waiting_for": [replica for replica in one.adding_replicas if replica not in one.isr],
    }


def _cell(value: Any) -> object:
    return (", ".join(map(str, value)) or None) if isinstance(value, list) else value
