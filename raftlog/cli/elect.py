"""``raftlog partitions elect, increase``: leaders on request (KIP-460), and more partitions for a
topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import print_json, print_line
from raftlog.cli.partition_names import assignments, by_topic, partition_name
from raftlog.cli.partition_results import finish
from raftlog.cli.writes import (
    Acks,
    AcksLevel,
    ValidateOnly,
    first_error,
    print_written,
    require,
    write,
    written,
)
from raftlog.errors import ConfigError, ErrorCode
from raftlog.plural import counted
from raftlog.wire.controller.v1 import controller_pb2

MAX_ROUNDS = 1000


def add(app: typer.Typer) -> None:
    """Add the commands to their group."""
    for command in (elect, increase):
        app.command(epilog=EPILOG)(command)


def elect(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION]]...",
            help="The partitions; a topic alone means all of its partitions.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All partitions that need an election.")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help=(
                "Where there is no leader, elect any live replica. Acknowledged records that it"
                " lacks are lost."
            ),
        ),
    ] = False,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Elect the preferred leaders, or any live replica.

    The preferred leader is the first replica; with --unclean any live replica, where there is no
    leader. A partition that needs no election is not an error. The controller elects preferred
    leaders by itself every leader.imbalance.check.interval.seconds.

    \b
    Examples:
      raftlog partitions elect --all
      raftlog partitions elect orders payments:3 --validate-only
      raftlog partitions elect orders:0 --unclean
    """
    if bool(partitions) == everything:
        raise ConfigError("give TOPIC or TOPIC:PARTITION, or --all")
    kind = controller_pb2.UNCLEAN if unclean else controller_pb2.PREFERRED
    body = controller_pb2.ElectLeadersRequest(
        election_type=kind, topics=_named(partitions or []), validate_only=validate_only
    )
    done = "would be led by" if validate_only else "led by"
    for _ in range(MAX_ROUNDS):
        response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
        answer = response.elect_leaders
        if everything and not answer.topics and not as_json:
            print_line("nothing to elect")
        finish(
            response,
            answer.topics,
            acks,
            as_json=as_json,
            done=done,
            more={"remaining": answer.remaining},
            passed=frozenset({ErrorCode.ELECTION_NOT_NEEDED}),
        )
        _check_served(answer.topics, bootstrap_server, bootstrap_controller, timeout)
        if not answer.remaining or validate_only or as_json:
            return


def _check_served(
    topics: Iterable[Any], bootstrap_server: str, bootstrap_controller: str, timeout_s: float
) -> None:
    """Check the leaders of partitions that needed no election: only the leader itself knows whether
    it serves.
    """
    from raftlog.cli.serving import of_partitions
    from raftlog.cli.session import Session, run

    needless = {
        (topic.name, one.partition_index)
        for topic in topics
        for one in topic.partitions
        if one.error.error_code == ErrorCode.ELECTION_NOT_NEEDED
    }

    async def ask(session: Session) -> dict[tuple[str, int], str]:
        return await of_partitions(session, needless, bootstrap_server, bootstrap_controller)

    found = run(ask, timeout_s) if needless else {}
    if found:
        said = "; ".join(f"{topic}:{index}: {why}" for (topic, index), why in sorted(found.items()))
        raise FailedError(
            f"an election is not needed, and these are not served: {said}", Exit.FOUND
        )


def increase(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics),
    ],
    count: Annotated[
        int, typer.Option("--count", "-n", help="The new total number of partitions.")
    ],
    replica_assignment: Annotated[
        str,
        typer.Option(
            "--replica-assignment",
            metavar="1:2:3,2:3:1",
            help="The replicas of each new partition; default: chosen for you.",
        ),
    ] = "",
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Add partitions to a topic.

    This cannot be undone, and keys may map to other partitions afterwards.

    \b
    Examples:
      raftlog partitions increase orders --count 12
      raftlog partitions increase orders -n 7 --replica-assignment 4:5:6
    """
    placed = assignments(replica_assignment) if replica_assignment else []
    wanted = controller_pb2.CreatePartitionsTopic(
        name=topic,
        count=count,
        assignments=[controller_pb2.CreatePartitionsAssignment(broker_ids=ids) for ids in placed],
    )
    body = controller_pb2.CreatePartitionsRequest(topics=[wanted], validate_only=validate_only)
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    error = first_error(response.create_partitions.results)
    if error is not None:
        raise error
    if as_json:
        print_json(
            {
                "topic": topic,
                "partitions": count,
                "validate_only": validate_only,
                "write": written(response),
            }
        )
    else:
        print_line(
            f"{topic}: {'would have' if validate_only else 'has'} {counted(count, 'partition')}"
        )
        print_written(response)
    require(response, acks)


def _named(partitions: list[str]) -> list[controller_pb2.ElectableTopic]:
    whole = [text for text in partitions if ":" not in text]
    some = by_topic(partition_name(text) for text in partitions if ":" in text)
    return [
        *(controller_pb2.ElectableTopic(name=name) for name in whole),
        *(
            controller_pb2.ElectableTopic(name=name, partition_indexes=indexes)
            for name, indexes in some.items()
        ),
    ]
