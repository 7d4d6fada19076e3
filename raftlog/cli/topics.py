"""``raftlog topics``: create, list, describe, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.config_hints import did_you_mean, without_effect
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import known, print_json, print_line, print_note, print_table
from raftlog.cli.partition_names import assignments
from raftlog.cli.reads import ReadMode, ReadModeOption, read
from raftlog.cli.writes import (
    Acks,
    AcksLevel,
    ValidateOnly,
    first_error,
    print_written,
    raise_errors,
    require,
    write,
    written,
)
from raftlog.errors import ConfigError, ErrorCode
from raftlog.metadata.config_keys import ResourceType
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

if TYPE_CHECKING:
    from raftlog.cli.session import Session

app = typer.Typer(help="Topics and their partitions.", epilog=EPILOG, no_args_is_help=True)

Names = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topic names.", autocompletion=completion.topics),
]


DESCRIBED = (
    "TOPIC",
    "PARTITION",
    "LEADER",
    "LEADER EPOCH",
    "REPLICAS",
    "OFFLINE",
    "NOT SERVED",
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="topics")


@app.command(epilog=EPILOG)
def create(
    names: Names,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="Partitions of each; -1: the default.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", help="Replicas of each partition; -1: the default."
        ),
    ] = -1,
    replica_assignment: Annotated[
        str,
        typer.Option(
            "--replica-assignment",
            metavar="1:2:3,2:3:1",
            help=(
                "The replicas of each partition, the preferred leader first; instead of the two"
                " above."
            ),
        ),
    ] = "",
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-config",
            "--config",
            metavar="KEY=VALUE",
            help="A config of the topic; may be repeated.",
            autocompletion=completion.topic_config_assignments,
        ),
    ] = None,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Create topics. Each succeeds or fails by itself.

    \b
    Examples:
      raftlog topics create orders --partitions 6 --replication-factor 3 --acks visible
      raftlog topics create logs --topic-config max.message.bytes=2000000
      raftlog topics create placed --replica-assignment 1:2:3,2:3:1
    """
    entries = [
        controller_pb2.ConfigEntry(name=key, value=value)
        for key, value in map(_pair, configs or [])
    ]
    placed = [
        controller_pb2.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
        for index, ids in enumerate(assignments(replica_assignment) if replica_assignment else [])
    ]
    body = controller_pb2.CreateTopicsRequest(
        topics=[
            controller_pb2.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=placed,
                configs=entries,
            )
            for name in names
        ],
        validate_only=validate_only,
    )
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    results = response.create_topics.topics
    given = {one.name: one.value for one in entries}
    hint = did_you_mean if first_error(results) is not None else without_effect
    if said := hint(ResourceType.TOPIC, given):
        print_note(said)
    _finish(
        response,
        results,
        acks,
        as_json=as_json,
        done="would be created" if validate_only else "created",
    )


@app.command(epilog=EPILOG)
def delete(
    names: Names,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete topics with their partitions and configs. Each succeeds or fails by itself.

    \b
    Examples:
      raftlog topics delete orders
    """
    body = controller_pb2.DeleteTopicsRequest(names=names, validate_only=validate_only)
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    done = "would be deleted" if validate_only else "deleted"
    _finish(response, response.delete_topics.topics, acks, as_json=as_json, done=done)


@app.command("list", epilog=EPILOG)
def list_(
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the topics that a broker shows.

    \b
    Examples:
      raftlog topics list --bootstrap-server 127.0.0.1:9092
      raftlog topics list --read latest --json
    """
    response = read(broker_pb2.MetadataRequest(), mode, bootstrap_server, timeout)
    topics = sorted(response.metadata.topics, key=lambda topic: topic.name)
    if as_json:
        rows = [
            {"name": one.name, "topic_id": one.topic_id.hex(), "partitions": len(one.partitions)}
            for one in topics
        ]
        print_json({"offset": response.token.offset, "topics": rows})
        return
    rows_ = [(topic.name, len(topic.partitions), topic.topic_id.hex()) for topic in topics]
    print_table(("TOPIC", "PARTITIONS", "ID"), rows_, right=("PARTITIONS",))
    print_line(f"at offset {response.token.offset}")


@app.command(epilog=EPILOG)
def describe(
    names: Names,
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the partitions of topics: leader, epoch, replicas.

    Only the leader of a partition knows the in-sync replicas (KIP-24).

    The leaders are asked whether they lead: NOT SERVED says which partitions cannot be used now,
    and why.

    \b
    Examples:
      raftlog topics describe orders --bootstrap-server 127.0.0.1:9092
    """
    from raftlog.cli.serving import of_metadata
    from raftlog.cli.session import run

    async def ask(session: Session) -> tuple[Any, dict[tuple[str, int], str]]:
        client, body = session.brokers(bootstrap_server), broker_pb2.MetadataRequest(topics=names)
        response = await client.read(body, mode=mode.wire, timeout_s=timeout)
        return response, await of_metadata(session, response.metadata)

    response, not_served = run(ask, timeout)
    topics = response.metadata.topics
    rows = [
        _partition(topic, partition, not_served)
        for topic in topics
        for partition in topic.partitions
    ]
    missing = [topic.name for topic in topics if topic.error_code != ErrorCode.NONE]
    if as_json:
        print_json({"offset": response.token.offset, "partitions": rows, "missing": missing})
    elif rows:
        print_table(
            DESCRIBED,
            (_cells(row) for row in rows),
            right=("PARTITION", "LEADER", "LEADER EPOCH"),
            least=("LEADER EPOCH",),
        )
        print_line(f"at offset {response.token.offset}")
    if missing:
        raise FailedError(
            f"UNKNOWN_TOPIC_OR_PARTITION: there is no topic {', '.join(missing)}", Exit.REFUSED
        )


def _partition(
    topic: Any, partition: Any, not_served: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partition": partition.partition_index,
        "leader_id": known(partition.leader_id),
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replica_nodes),
        "offline_replicas": list(partition.offline_replicas),
        "not_served": not_served.get((topic.name, partition.partition_index)),
    }


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        ", ".join(map(str, value)) or None if isinstance(value, list) else value
        for value in row.values()
    ]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{text!r}: write it as KEY=VALUE")
    return key, value


def _finish(response: Any, results: Any, acks: AcksLevel, *, as_json: bool, done: str) -> None:
    """Tell each topic's fate once, where the write is, and fail with the first error."""
    if as_json:
        topics = [
            {
                "name": one.name,
                "topic_id": one.topic_id.hex() or None,
                "error": ErrorCode(one.error.error_code).name if one.error.error_code else None,
                "message": one.error.error_message or None,
            }
            for one in results
        ]
        print_json({"topics": topics, "write": written(response)})
    else:
        for one in results:
            if one.error.error_code == ErrorCode.NONE:
                print_line(f"{one.name}: {done}")
        print_written(response)
    errors = [error_from_wire(one.error) for one in results if one.error.error_code]
    raise_errors(errors, said=as_json)
    require(response, acks)
