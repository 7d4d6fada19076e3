"""``raftlog quorum``: the nodes that vote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapController, Json, Timeout, controllers
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.quorum_changes import add_voter, remove_voter, transfer
from raftlog.cli.quorum_views import members_document, show_quorum
from raftlog.words import nodes as nodes_in_words

if TYPE_CHECKING:
    from raftlog.client.quorum_queries import Answer, Quorum

app = typer.Typer(
    help="The controllers, as each sees itself: roles, lag, voters.",
    epilog=EPILOG,
    no_args_is_help=True,
)

COLUMNS = (
    "NODE",
    "ENDPOINT",
    "ROLE",
    "EPOCH",
    "LEADER",
    "VOTE",
    "LOG END",
    "DURABLE",
    "HIGH WATERMARK",
    "LAG",
    "AGE MS",
    "VERSION",
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="quorum")


@app.callback()
def _group() -> None:
    """The controllers, as each sees itself: roles, lag, voters."""


@app.command(epilog=EPILOG)
def describe(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    status: Annotated[
        bool,
        typer.Option(
            "--status", help="The quorum as a whole: leader, voters, observers, offsets, snapshots."
        ),
    ] = False,
    replication: Annotated[
        bool,
        typer.Option(
            "--replication",
            help="Each voter and observer as the leader sees it, with directory ids.",
        ),
    ] = False,
) -> None:
    """Ask every node itself: role, epoch, vote, log end, lag.

    Also the leader that it knows, and its high watermark. Answers without a leader too.

    LAG is what a node's log lacks of the leader's, in records; AGE how long ago the leader had its
    last fetch. Exit code 3 if no leader answers or an address is another cluster's, 4 if nobody
    answers.

    \b
    Examples:
      raftlog quorum describe --bootstrap-controller 127.0.0.1:9093
      raftlog quorum describe --replication
      raftlog quorum describe --json --timeout 2
    """
    addresses = controllers(bootstrap_controller)
    quorum, versions = asyncio.run(_ask(addresses, timeout))
    if not quorum.descriptions:
        reasons = "; ".join(f"{answer.address}: {answer.failure}" for answer in quorum.answers)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)
    if as_json:
        print_json(_document(quorum, versions))
    elif status or replication:
        leader = quorum.leader
        show_quorum(
            leader or quorum.descriptions[0],
            leader_id=leader.node_id if leader else None,
            replication=replication,
        )
    else:
        _show(quorum, versions)
    if quorum.leader is None or any(answer.other_cluster for answer in quorum.answers):
        raise typer.Exit(Exit.FOUND)


async def _ask(addresses: list[str], timeout_s: float) -> tuple[Quorum, dict[str, str]]:
    """What the nodes say of the quorum, and the builds of those that answer, by address."""
    from raftlog.client.quorum_queries import ask_quorum
    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector

    security = security_of_environment()
    quorum = await ask_quorum(addresses, timeout_s, security)
    there = [one.address for one in quorum.answers if one.description is not None]
    return quorum, await Collector(security).versions(there, timeout_s)


_OF_ITSELF = (
    *("directory_id", "role", "epoch", "leader_id", "voted_id", "log_start_offset"),
    *("log_end_offset", "durable_end_offset", "high_watermark", "lag", "last_fetch_age_ms"),
)
"""What only a node that answers says."""


def _rows(quorum: Quorum, versions: dict[str, str]) -> list[dict[str, Any]]:
    """One row a node, by id; those that do not answer with what the others know of them."""
    leader = quorum.leader
    ids = {voter.endpoint: voter.replica_id for one in quorum.descriptions for voter in one.voters}
    ages = (
        {voter.replica_id: voter.last_fetch_age_ms for voter in leader.voters}
        if leader is not None
        else {}
    )
    rows = [
        _row(answer, ids, leader.log_end_offset if leader else None, ages)
        | {"version": versions.get(answer.address)}
        for answer in quorum.answers
    ]
    return sorted(rows, key=lambda row: (row["node_id"] is None, row["node_id"], row["endpoint"]))


def _row(
    answer: Answer, ids: dict[str, int], leader_end: int | None, ages: dict[int, int]
) -> dict[str, Any]:
    one = answer.description
    if one is None:
        unknown = dict.fromkeys(_OF_ITSELF)
        return {"node_id": ids.get(answer.address), "endpoint": answer.address, **unknown} | {
            "failure": answer.failure
        }
    return {
        "failure": None,
        "node_id": one.node_id,
        "endpoint": answer.address,
        "directory_id": one.directory_id,
        "role": one.role,
        "epoch": one.leader_epoch,
        "leader_id": known(one.leader_id),
        "voted_id": known(one.voted_id),
        "log_start_offset": one.log_start_offset,
        "log_end_offset": one.log_end_offset,
        "durable_end_offset": one.durable_end_offset,
        "high_watermark": known(one.high_watermark),
        "lag": None if leader_end is None else max(0, leader_end - one.log_end_offset),
        "last_fetch_age_ms": None if one.role == "leader" else known(ages.get(one.node_id, -1)),
    }


def _document(quorum: Quorum, versions: dict[str, str]) -> dict[str, Any]:
    leader = quorum.leader
    first = quorum.descriptions[0]
    return {
        "cluster_id": first.cluster_id,
        "generation": first.generation,
        "leader_id": leader.node_id if leader else None,
        "leader_epoch": leader.leader_epoch if leader else None,
        "high_watermark": known(leader.high_watermark) if leader else None,
        "lowest_acknowledged_offset": known(leader.lowest_acknowledged_offset) if leader else None,
        "lao_unknown_reason": (leader.lao_unknown_reason or None) if leader else "nobody leads",
        "nodes": _rows(quorum, versions),
        **members_document(leader or first),
    }


def _show(quorum: Quorum, versions: dict[str, str]) -> None:
    rows, nodes = [], _rows(quorum, versions)
    strange = {answer.address for answer in quorum.answers if answer.other_cluster}
    for row in nodes:
        if row["role"] is None:
            state = "other cluster" if row["endpoint"] in strange else "unreachable"
            rows.append((row["node_id"], row["endpoint"], state, *[None] * 9))
            continue
        fields = (
            "node_id",
            "endpoint",
            "role",
            "epoch",
            "leader_id",
            "voted_id",
            "log_end_offset",
            "durable_end_offset",
        )
        rows.append(
            (
                *(row[name] for name in fields),
                row["high_watermark"],
                row["lag"],
                row["last_fetch_age_ms"],
                row["version"],
            )
        )
    print_table(
        COLUMNS,
        rows,
        right=("EPOCH", "LEADER", "VOTE", "LOG END", "DURABLE", "HIGH WATERMARK", "LAG", "AGE MS"),
        least=(
            "VOTE",
            "DURABLE",
            "VERSION",
            "AGE MS",
            "HIGH WATERMARK",
            "LEADER",
            "LOG END",
            "EPOCH",
        ),
    )
    for answer in quorum.answers:
        if answer.description is None:
            print_line(answer.said)
    leader = quorum.leader
    if leader is None:
        led = {one.leader_id for one in quorum.descriptions if one.role == "follower"}
        print_line(
            f"{nodes_in_words(led)}, which does not answer, leads for those that follow"
            if led
            else "nobody leads"
        )
        return
    lao = leader.lowest_acknowledged_offset
    told = lao if lao >= 0 else f"unknown ({leader.lao_unknown_reason})"
    print_line(
        f"cluster {leader.cluster_id}, leader {leader.node_id} in epoch {leader.leader_epoch}"
    )
    print_line(f"lowest acknowledged offset: {told}")


# Those of Kafka's tool under its names too. Once for the module: in register() they would be there
# once more for each command line that a process builds.
app.command("add-voter", epilog=EPILOG)(add_voter)
app.command("remove-voter", epilog=EPILOG)(remove_voter)
app.command("transfer", epilog=EPILOG)(transfer)
app.command("add-controller", epilog=EPILOG, hidden=True)(add_voter)
app.command("remove-controller", epilog=EPILOG, hidden=True)(remove_voter)
