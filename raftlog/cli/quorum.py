"""``raftlog quorum``: the controllers, and changes of the voter set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.interrupts import run_cancellable
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    ConfigFile,
    Json,
    SetFlags,
    Timeout,
    controllers,
    opt,
)
from raftlog.cli.output import known, print_error, print_json, print_line, print_table, print_text
from raftlog.errors import ConfigError
from raftlog.text import nodes as nodes_in_words

if TYPE_CHECKING:
    from raftlog.ops.evidence import AskedNode, QuorumAnswer, Replica, Survey

app = typer.Typer(
    help="The controllers, as each sees itself: roles, lag, voters.",
    epilog=EPILOG,
    no_args_is_help=True,
)
_NODE_COLUMNS = {
    "NODE": "node_id",
    "ENDPOINT": "endpoint",
    "ROLE": "role",
    "EPOCH": "epoch",
    "LEADER": "leader_id",
    "VOTE": "voted_id",
    "LOG END": "log_end_offset",
    "DURABLE": "durable_end_offset",
    "HIGH WATERMARK": "high_watermark",
    "LAG": "lag",
    "AGE MS": "last_fetch_age_ms",
    "VERSION": "version",
}
_REPLICA_COLUMNS = {
    "NODE": "node_id",
    "DIRECTORY": "directory_id",
    "STATUS": "status",
    "ENDPOINT": "endpoint",
    "LOG END": "log_end_offset",
    "LAG": "lag",
    "FETCH MS": "last_fetch_age_ms",
    "CAUGHT UP MS": "last_caught_up_age_ms",
    "METADATA VERSION": "max_metadata_version",
    "LOW SPACE": "low",
}
_LEAST = (
    *("VOTE", "DURABLE", "METADATA VERSION", "VERSION", "AGE MS", "CAUGHT UP MS", "FETCH MS"),
    *("HIGH WATERMARK", "LEADER", "LOG END", "EPOCH", "LOW SPACE"),
)
_LEFT = ("NODE", "ENDPOINT", "ROLE", "VERSION", "DIRECTORY", "STATUS", "LOW SPACE")
_AUTO_JOIN = "controller.quorum.auto.join.enable"
_VOTER_ID = opt("--voter-id N", "The node's id.", min=0)
_VOTER = opt("--voter-id N", "The voter's node id.", min=0, autocompletion=completion.voter_ids)
DirectoryId = Annotated[
    str, opt("--directory-id UUID", "Its directory id, as `storage format` printed it.")
]


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
        opt("--status", "The quorum as a whole: leader, voters, observers, offsets, snapshots."),
    ] = False,
    replication: Annotated[
        bool,
        opt("--replication", "Each voter and observer as the leader sees it, with directory ids."),
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
    survey = _survey(bootstrap_controller, timeout)
    if not survey.answers:
        reasons = "; ".join(f"{node.endpoint}: {node.failure}" for node in survey.nodes)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)
    leader, best = survey.leader, survey.best
    assert best is not None
    rows = sorted(
        (_node_row(node, survey) for node in survey.nodes),
        key=lambda row: (row["node_id"] is None, row["node_id"], row["endpoint"]),
    )
    if as_json:
        print_json(_document(best, leader, rows))
    elif replication:
        _show_replicas(best, leader)
    elif status:
        _show_quorum(best, leader)
    else:
        _show_nodes(survey, rows)
    if leader is None or any(_is_stranger(node, survey) for node in survey.nodes):
        raise typer.Exit(Exit.FOUND)


def _survey(bootstrap_controller: str, timeout_s: float) -> Survey:
    from raftlog.client.options import security_of_environment
    from raftlog.ops.collector import Collector

    addresses = controllers(bootstrap_controller)
    security = security_of_environment()
    return asyncio.run(Collector(security).survey(addresses, timeout_s, looks=1))


def _is_stranger(node: AskedNode, survey: Survey) -> bool:
    """Whether a node of another cluster answers there."""
    one, best = node.description, survey.best
    return one is not None and best is not None and one.cluster_id != best.cluster_id


def _failure(node: AskedNode, survey: Survey) -> str:
    if node.description is None or not _is_stranger(node, survey):
        return node.failure
    return f"it is node {node.description.node_id} of cluster {node.description.cluster_id}"


_OF_ITSELF = (
    *("directory_id", "role", "epoch", "leader_id", "voted_id", "log_start_offset"),
    *("log_end_offset", "durable_end_offset", "high_watermark", "lag", "last_fetch_age_ms"),
)
"""Fields that only a node's own answer has."""


def _node_row(node: AskedNode, survey: Survey) -> dict[str, Any]:
    """Return the row of a node; of one that does not answer, what the others know of it."""
    one, leader = node.description, survey.leader
    row: dict[str, Any] = {"failure": None, "node_id": known(node.node_id)}
    row |= {"endpoint": node.endpoint, **dict.fromkeys(_OF_ITSELF), "version": None}
    if one is None or _is_stranger(node, survey):
        ids = {
            voter.endpoint: voter.replica_id
            for one in survey.answers
            if one.cluster_id == survey.cluster_id
            for voter in one.voters
        }
        return row | {"node_id": ids.get(node.endpoint), "failure": _failure(node, survey)}
    ages = {voter.replica_id: voter.last_fetch_age_ms for voter in leader.voters} if leader else {}
    return row | {
        "directory_id": one.directory_id,
        "role": one.role,
        "epoch": one.leader_epoch,
        "leader_id": known(one.leader_id),
        "voted_id": known(one.voted_id),
        "log_start_offset": one.log_start_offset,
        "log_end_offset": one.log_end_offset,
        "durable_end_offset": one.durable_end_offset,
        "high_watermark": known(one.high_watermark),
        "lag": None if leader is None else max(0, leader.log_end_offset - one.log_end_offset),
        "last_fetch_age_ms": None if one.role == "leader" else known(ages.get(one.node_id, -1)),
        "version": (node.report.node.version if node.report is not None else "") or None,
    }


def _document(
    best: QuorumAnswer, leader: QuorumAnswer | None, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "cluster_id": best.cluster_id,
        "generation": best.generation,
        "leader_id": leader.node_id if leader else None,
        "leader_epoch": leader.leader_epoch if leader else None,
        "high_watermark": known(leader.high_watermark) if leader else None,
        "lowest_acknowledged_offset": known(leader.lowest_acknowledged_offset) if leader else None,
        "lao_unknown_reason": (leader.lao_unknown_reason or None) if leader else "nobody leads",
        "nodes": rows,
        "voters_offset": known(best.voters_offset),
        "voters": [_replica_row(best, replica) for replica in best.voters],
        "observers": [_replica_row(best, replica) for replica in best.observers],
        "snapshots": [{"end_offset": one.end_offset, "epoch": one.epoch} for one in best.snapshots],
        "log_start_offset": best.log_start_offset,
    }


def _replica_row(best: QuorumAnswer, replica: Replica) -> dict[str, Any]:
    end = known(replica.log_end_offset)
    return {
        "node_id": replica.replica_id,
        "directory_id": replica.replica_directory_id or None,
        "endpoint": replica.endpoint or None,
        "connected_from": replica.connected_from or None,
        "endpoints": replica.endpoints.split(",") if replica.endpoints else [],
        "log_end_offset": end,
        "lag": None if end is None else max(0, best.log_end_offset - end),
        "last_fetch_age_ms": known(replica.last_fetch_age_ms),
        "last_caught_up_age_ms": known(replica.last_caught_up_age_ms),
        "max_metadata_version": replica.max_metadata_version or None,
        "low_on_space": replica.low_on_space,
    }


def _print_rows(columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    print_table(
        tuple(columns),
        [[row.get(name) for name in columns.values()] for row in rows],
        right=[name for name in columns if name not in _LEFT],
        least=[name for name in _LEAST if name in columns],
    )


def _show_nodes(survey: Survey, rows: list[dict[str, Any]]) -> None:
    strange = {node.endpoint for node in survey.nodes if _is_stranger(node, survey)}
    shown = []
    for row in rows:
        state = "other cluster" if row["endpoint"] in strange else "unreachable"
        shown.append(row | {"role": row["role"] or state})
    _print_rows(_NODE_COLUMNS, shown)
    for row in rows:
        if row["failure"]:
            is_strange = row["endpoint"] in strange
            verb = "is of another cluster" if is_strange else "does not answer"
            print_line(f"{row['endpoint']} {verb}: {row['failure']}")
    leader = survey.leader
    if leader is None:
        led = {one.leader_id for one in survey.answers if one.role == "follower"}
        who = f"{nodes_in_words(led)}, which does not answer, leads for those that follow"
        print_line(who if led else "nobody leads")
        return
    lao = leader.lowest_acknowledged_offset
    print_line(
        f"cluster {leader.cluster_id}, leader {leader.node_id} in epoch {leader.leader_epoch}"
    )
    told = lao if lao >= 0 else f"unknown ({leader.lao_unknown_reason})"
    print_line(f"lowest acknowledged offset: {told}")


def _show_quorum(best: QuorumAnswer, leader: QuorumAnswer | None) -> None:
    voters = [_replica_row(best, one) for one in best.voters]
    others = [one for one in voters if leader is None or one["node_id"] != leader.node_id]
    lags, ages = (
        [one[name] for one in others if one[name] is not None]
        for name in ("lag", "last_caught_up_age_ms")
    )
    rows = [
        ("cluster id", best.cluster_id),
        ("leader id", leader.node_id if leader else None),
        ("leader epoch", best.leader_epoch),
        ("high watermark", known(best.high_watermark)),
        ("max follower lag", max(lags, default=None)),
        ("max follower lag time ms", max(ages, default=None)),
        ("current voters", [one["node_id"] for one in voters]),
        ("current observers", [one.replica_id for one in best.observers]),
        ("voters offset", "the configured set" if best.voters_offset < 0 else best.voters_offset),
        ("log start offset", best.log_start_offset),
        ("snapshots", [one.end_offset for one in best.snapshots]),
        ("low on space", [one["node_id"] for one in voters if one["low_on_space"]]),
    ]
    print_table(("", ""), rows)


def _show_replicas(best: QuorumAnswer, leader: QuorumAnswer | None) -> None:
    rows = []
    for status, replicas in (("voter", best.voters), ("observer", best.observers)):
        for replica in replicas:
            row = _replica_row(best, replica)
            # A node that follows nobody remembers the last leader, which may be gone.
            leads = leader is not None and status == "voter" and row["node_id"] == leader.node_id
            row["status"] = "leader" if leads else status
            # Others know no address of an observer, but the one from which it connects.
            source = row["connected_from"] and f"from {row['connected_from']}"
            row["endpoint"] = ", ".join(row["endpoints"]) or row["endpoint"] or source
            row["low"] = "yes" if row["low_on_space"] else None
            rows.append(row)
    _print_rows(_REPLICA_COLUMNS, rows)
    low = [voter.replica_id for voter in best.voters if voter.low_on_space]
    if low:
        print_text(f"low on space: {nodes_in_words(low)}")


def add_voter(
    bootstrap_controller: BootstrapController = "",
    config: ConfigFile = None,
    flags: SetFlags = None,
    voter_id: Annotated[int | None, _VOTER_ID] = None,
    directory_id: DirectoryId = "",
    endpoint: Annotated[str, opt("--endpoint HOST:PORT", "Where the other nodes reach it.")] = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a running observer a voter.

    The observer was formatted with --no-initial-controllers, runs, and has caught up. Give its
    configuration, on its own machine, or all three of --voter-id, --directory-id and --endpoint.

    \b
    Examples:
      raftlog quorum add-voter -c node4.toml --bootstrap-controller 127.0.0.1:9093
      raftlog quorum add-voter --voter-id 4 --directory-id UUID --endpoint 10.0.0.4:9093
    """
    if config is not None or flags:
        if voter_id is not None or directory_id or endpoint:
            raise ConfigError(
                "give either a configuration or --voter-id, --directory-id and --endpoint, not both"
            )
        voter_id, directory_id, endpoint = _of_configuration(config, flags)
    elif voter_id is None or not directory_id or not endpoint:
        raise ConfigError("give --config FILE, or all of --voter-id, --directory-id and --endpoint")
    changes = _changes(bootstrap_controller, timeout)
    run_cancellable(changes.add_voter(voter_id, directory_id, endpoint))
    document = {"voter_id": voter_id, "directory_id": directory_id, "endpoint": endpoint}
    _say(f"node {voter_id} is a voter", document, as_json=as_json)


def remove_voter(
    voter_id: Annotated[int, _VOTER],
    bootstrap_controller: BootstrapController = "",
    directory_id: DirectoryId = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove a voter, dead or alive, from the quorum.

    A leader that is removed resigns when the removal is committed.

    Without --directory-id, the directory that the voter set has for it. Stop a node with
    controller.quorum.auto.join.enable before: it comes back by itself within seconds, and the
    command says so of a node that runs.

    \b
    Examples:
      raftlog quorum remove-voter --voter-id 3 --bootstrap-controller 127.0.0.1:9093
    """
    best = _survey(bootstrap_controller, timeout).best
    voters = best.voters if best is not None else []
    # The controller says what is wrong with an id that is no voter's.
    listed = next((one for one in voters if one.replica_id == voter_id), None)
    directory_id = directory_id or (listed.replica_directory_id if listed else "")
    changes = _changes(bootstrap_controller, timeout)
    run_cancellable(changes.remove_voter(voter_id, directory_id))
    joins = _joins_by_itself(listed.endpoint, timeout) if listed and listed.endpoint else None
    document = {"voter_id": voter_id, "directory_id": directory_id, "auto_join": joins}
    _say(f"node {voter_id} is no voter any more", document, as_json=as_json)
    if joins:
        print_error(
            f"warning: node {voter_id} runs with {_AUTO_JOIN}, and becomes a voter again by itself"
            " within seconds: stop it, then remove it again"
        )


def transfer(
    bootstrap_controller: BootstrapController = "",
    to: Annotated[
        int,
        opt(
            "--to N",
            "The voter that is to lead; default: the one with the most complete log.",
            autocompletion=completion.voter_ids,
        ),
    ] = -1,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Transfer the leadership to another voter.

    No accepted write is lost; writes wait a moment.

    \b
    Examples:
      raftlog quorum transfer --to 2 --bootstrap-controller 127.0.0.1:9093
    """
    successor = run_cancellable(_changes(bootstrap_controller, timeout).transfer(to))
    _say(f"node {successor} takes over", {"target_id": successor}, as_json=as_json)


def _changes(bootstrap_controller: str, timeout_s: float) -> Any:
    from raftlog.ops.quorum import QuorumChanges

    return QuorumChanges(controllers(bootstrap_controller), timeout_s)


def _say(text: str, document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_line(text)


def _of_configuration(config: Any, flags: list[str] | None) -> tuple[int, str, str]:
    from raftlog.node.config.load import load_config
    from raftlog.node.storage.directory import read_identity

    loaded = load_config(config, flags=flags or [])
    if loaded.controller is None:
        raise ConfigError("only a controller can vote; the configuration is a broker's")
    identity = read_identity(loaded.directory)
    return loaded.node_id, identity.directory_id, loaded.controller.advertised


def _joins_by_itself(address: str, timeout_s: float) -> bool | None:
    """Whether the node at an address becomes a voter by itself; None: it does not say."""
    from raftlog.client.options import security_of_environment
    from raftlog.ops.collector import Collector

    collector = Collector(security_of_environment())
    config = asyncio.run(collector.config_of(address, min(timeout_s, 1.0)))
    return None if config is None else config.get(_AUTO_JOIN) == "true"


# Those of Kafka's tool under its names too. Once for the module: in register() they would be there
# once more for each command line that a process builds.
app.command("add-voter", epilog=EPILOG)(add_voter)
app.command("remove-voter", epilog=EPILOG)(remove_voter)
app.command("transfer", epilog=EPILOG)(transfer)
app.command("add-controller", epilog=EPILOG, hidden=True)(add_voter)
app.command("remove-controller", epilog=EPILOG, hidden=True)(remove_voter)
