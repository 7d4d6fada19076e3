"""``raftlog quorum``: the controllers, and changes to the voter set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.command import ASK, Answer, command, group
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    ConfigFile,
    SetFlags,
    Timeout,
    controllers,
    opt,
)
from raftlog.cli.output import known, print_error, print_line, print_table, print_text
from raftlog.errors import ConfigError
from raftlog.text import counted, span
from raftlog.text import nodes as nodes_in_words

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.ops.collector import Collector
    from raftlog.ops.evidence import AskedNode, QuorumAnswer, Replica, Snapshot, Survey

app = group()
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
    str, opt("--directory-id UUID", "The directory id printed by `storage format`.")
]


@dataclass
class QuorumNode:
    """A controller's description of itself; most fields are None if it did not answer."""

    node_id: int | None
    endpoint: str
    failure: str | None = None
    """Why the node has not answered, or None."""
    directory_id: str | None = None
    role: str | None = None
    epoch: int | None = None
    leader_id: int | None = None
    voted_id: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    durable_end_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    last_fetch_age_ms: int | None = None
    version: str | None = None


@dataclass
class QuorumMember:
    """A voter or an observer, as the leader describes it."""

    node_id: int
    directory_id: str | None
    endpoint: str | None
    connected_from: str | None
    endpoints: Sequence[str]
    log_end_offset: int | None
    lag: int | None
    last_fetch_age_ms: int | None
    last_caught_up_age_ms: int | None
    max_metadata_version: int | None
    low_on_space: bool


@dataclass
class QuorumDescription:
    """The controllers. Not read from a metadata image, so all offsets are the nodes' own."""

    cluster_id: str
    generation: int
    leader_id: int | None
    leader_epoch: int | None
    high_watermark: int | None
    lowest_acknowledged_offset: int | None
    lao_unknown_reason: str | None
    nodes: Sequence[QuorumNode]
    voters_offset: int | None
    voters: Sequence[QuorumMember]
    observers: Sequence[QuorumMember]
    snapshots: Sequence[Snapshot]
    """Snapshots of the node that describes the quorum."""
    log_start_offset: int


@dataclass
class VoterAdded:
    """The new voter."""

    voter_id: int
    directory_id: str
    endpoint: str


@dataclass
class VoterRemoved:
    """The node that is no longer a voter."""

    voter_id: int
    directory_id: str
    auto_join: bool | None
    """Whether the node joins again by itself, or None if it does not answer."""


@dataclass
class LeadershipTransferred:
    """The successor of the leader."""

    target_id: int


@command(app)
def describe(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    status: Annotated[
        bool,
        opt("--status", "The quorum as a whole: leader, voters, observers, offsets, snapshots."),
    ] = False,
    replication: Annotated[
        bool,
        opt("--replication", "Each voter and observer as the leader sees it, with directory ids."),
    ] = False,
) -> Answer[QuorumDescription]:
    """Show each controller: role, epoch, vote, log end, lag.

    Also shows the leader that each node knows, and its high watermark. Needs no leader. LAG is the
    number of records that a node's log lacks; AGE the time since the leader received the node's
    last fetch. Exit code 3 if no leader answers or an address belongs to another cluster, 4 if no
    node answers.

    \b
    Examples:
      raftlog quorum describe --bootstrap-controller 127.0.0.1:9093
      raftlog quorum describe --replication
      raftlog quorum describe --json --timeout 2
    """
    addresses = controllers(bootstrap_controller)
    survey = asyncio.run(_collector().survey(addresses, timeout, looks=1))
    if not survey.answers:
        reasons = "; ".join(f"{node.endpoint}: {node.failure}" for node in survey.nodes)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)
    leader, best = survey.leader, survey.best
    assert best is not None
    rows = sorted(
        (_node_row(node, survey) for node in survey.nodes),
        key=lambda row: (row.node_id is None, row.node_id, row.endpoint),
    )

    def show() -> None:
        if replication:
            _show_replicas(best, leader)
        elif status:
            _show_quorum(best, leader)
        else:
            _show_nodes(survey, rows)

    strange = leader is None or any(_is_stranger(node, survey) for node in survey.nodes)
    errors = [typer.Exit(Exit.FOUND)] if strange else []
    return Answer(_description(best, leader, rows), show, errors)


def _collector() -> Collector:
    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector

    return Collector(security_of_environment())


def _is_stranger(node: AskedNode, survey: Survey) -> bool:
    """Return whether a node of another cluster answers at the address."""
    one, best = node.description, survey.best
    return one is not None and best is not None and one.cluster_id != best.cluster_id


def _failure(node: AskedNode, survey: Survey) -> str:
    if node.description is None or not _is_stranger(node, survey):
        return node.failure
    return f"node {node.description.node_id} of cluster {node.description.cluster_id} answers"


def _node_row(node: AskedNode, survey: Survey) -> QuorumNode:
    """Return the row for a node; if it does not answer, the row shows what the others know about
    it.
    """
    one, leader = node.description, survey.leader
    if one is None or _is_stranger(node, survey):
        ids = {
            voter.endpoint: voter.replica_id
            for one in survey.answers
            if one.cluster_id == survey.cluster_id
            for voter in one.voters
        }
        return QuorumNode(ids.get(node.endpoint), node.endpoint, _failure(node, survey))
    ages = {voter.replica_id: voter.last_fetch_age_ms for voter in leader.voters} if leader else {}
    from raftlog.client.wire import reader

    lag = None if leader is None else max(0, leader.log_end_offset - one.log_end_offset)
    age_ms = None if one.role == "leader" else known(ages.get(one.node_id, -1))
    return reader(
        QuorumNode,
        endpoint=lambda _: node.endpoint,
        failure=lambda _: None,
        epoch="leader_epoch",
        lag=lambda _: lag,
        last_fetch_age_ms=lambda _: age_ms,
        version=lambda _: (node.report.node.version if node.report is not None else "") or None,
    )(one)


def _description(
    best: QuorumAnswer, leader: QuorumAnswer | None, rows: Sequence[QuorumNode]
) -> QuorumDescription:
    return QuorumDescription(
        best.cluster_id,
        best.generation,
        leader.node_id if leader else None,
        leader.leader_epoch if leader else None,
        known(leader.high_watermark) if leader else None,
        known(leader.lowest_acknowledged_offset) if leader else None,
        (leader.lao_unknown_reason or None) if leader else "no leader",
        rows,
        known(best.voters_offset),
        [_member(best, one) for one in best.voters],
        [_member(best, one) for one in best.observers],
        best.snapshots,
        best.log_start_offset,
    )


def _member(best: QuorumAnswer, replica: Replica) -> QuorumMember:
    from raftlog.client.wire import reader

    end = known(replica.log_end_offset)
    return reader(
        QuorumMember,
        node_id="replica_id",
        directory_id="replica_directory_id",
        endpoints=lambda one: one.endpoints.split(",") if one.endpoints else [],
        lag=lambda _: None if end is None else max(0, best.log_end_offset - end),
        max_metadata_version=lambda one: one.max_metadata_version or None,
    )(replica)


def _print_rows(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        tuple(columns),
        [[row[name] for name in columns.values()] for row in rows],
        right=[name for name in columns if name not in _LEFT],
        least=[name for name in _LEAST if name in columns],
    )


def _show_nodes(survey: Survey, rows: Sequence[QuorumNode]) -> None:
    strange = {node.endpoint for node in survey.nodes if _is_stranger(node, survey)}
    lost = ["other cluster" if one.endpoint in strange else "unreachable" for one in rows]
    shown = [
        vars(replace(one, role=one.role or state)) for one, state in zip(rows, lost, strict=True)
    ]
    _print_rows(_NODE_COLUMNS, shown)
    for one in rows:
        if one.failure:
            verb = "belongs to another cluster" if one.endpoint in strange else "does not answer"
            print_line(f"{one.endpoint} {verb}: {one.failure}")
    leader = survey.leader
    if leader is None:
        led = {one.leader_id for one in survey.answers if one.role == "follower"}
        followed = "followers report {} as leader, which does not answer"
        print_line(followed.format(nodes_in_words(led)) if led else "no leader")
        return
    lao = leader.lowest_acknowledged_offset
    print_line(
        f"cluster {leader.cluster_id}, leader {leader.node_id} in epoch {leader.leader_epoch}"
    )
    told = lao if lao >= 0 else f"unknown ({leader.lao_unknown_reason})"
    print_line(f"lowest acknowledged offset: {told}")


def _show_quorum(best: QuorumAnswer, leader: QuorumAnswer | None) -> None:
    voters = [_member(best, one) for one in best.voters]
    others = [one for one in voters if leader is None or one.node_id != leader.node_id]
    lags = [one.lag for one in others if one.lag is not None]
    ages = [one.last_caught_up_age_ms for one in others if one.last_caught_up_age_ms is not None]
    rows = [
        ("cluster id", best.cluster_id),
        ("leader id", leader.node_id if leader else None),
        ("leader epoch", best.leader_epoch),
        ("high watermark", known(best.high_watermark)),
        ("max follower lag", max(lags, default=None)),
        ("max follower lag time ms", max(ages, default=None)),
        ("current voters", [one.node_id for one in voters]),
        ("current observers", [one.replica_id for one in best.observers]),
        ("voters offset", "the configured set" if best.voters_offset < 0 else best.voters_offset),
        ("log start offset", best.log_start_offset),
        ("snapshots", [one.end_offset for one in best.snapshots]),
        ("low on space", [one.node_id for one in voters if one.low_on_space]),
    ]
    print_table(("", ""), rows)


def _show_replicas(best: QuorumAnswer, leader: QuorumAnswer | None) -> None:
    rows = []
    for status, replicas in (("voter", best.voters), ("observer", best.observers)):
        for one in (_member(best, replica) for replica in replicas):
            # A node without a leader still reports the last one, which may be dead.
            leads = leader is not None and status == "voter" and one.node_id == leader.node_id
            # Of an observer, the other nodes know only the address it connects from.
            source = one.connected_from and f"from {one.connected_from}"
            where = ", ".join(one.endpoints) or one.endpoint or source
            shown = {"status": "leader" if leads else status, "endpoint": where}
            rows.append(vars(one) | shown | {"low": "yes" if one.low_on_space else None})
    _print_rows(_REPLICA_COLUMNS, rows)
    low = [voter.replica_id for voter in best.voters if voter.low_on_space]
    if low:
        print_text(f"low on space: {nodes_in_words(low)}")


@dataclass
class AutopilotReplica:
    """A voter or an observer, as autopilot sees it."""

    node_id: int
    directory_id: str
    is_voter: bool
    condition: str
    for_ms: int


@dataclass
class AutopilotPlan:
    """The step that autopilot takes next, or would take if it were enabled."""

    enabled: bool
    after_ms: int
    seats: int
    step: str
    """ADD, REMOVE or WAIT."""
    node_id: int | None
    directory_id: str | None
    reason: str
    replicas: Sequence[AutopilotReplica]


@command(app)
def autopilot(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[AutopilotPlan]:
    """Show how autopilot replaces dead voters, and what it waits for.

    Changes nothing. If controller.quorum.voter.replace.after.ms is 0, shows what autopilot would do
    now for a silent voter. A spare is a controller that is not a voter, sets that key too, and has
    caught up with the log. Exit code 3 while a replacement is in progress.

    \b
    Examples:
      raftlog quorum autopilot --bootstrap-controller 127.0.0.1:9093
      raftlog quorum autopilot --json
    """
    survey = asyncio.run(_collector().survey(controllers(bootstrap_controller), timeout, looks=1))
    told = survey.leader.autopilot if survey.leader is not None else None
    if told is None:
        raise FailedError("no leader answers; only the leader knows the plan", Exit.UNREACHABLE)
    plan = AutopilotPlan(
        told.after_ms > 0,
        told.after_ms,
        told.seats,
        told.step,
        known(told.node_id),
        told.directory_id or None,
        told.reason,
        [
            AutopilotReplica(
                one.replica_id, one.replica_directory_id, one.is_voter, one.condition, one.for_ms
            )
            for one in told.replicas
        ],
    )

    def show() -> None:
        print_table(
            ("NODE", "DIRECTORY", "STATUS", "CONDITION", "FOR"),
            [
                (
                    one.node_id,
                    one.directory_id,
                    "voter" if one.is_voter else "observer",
                    one.condition,
                    span(one.for_ms),
                )
                for one in plan.replicas
            ],
            right=("FOR",),
            least=("DIRECTORY",),
        )
        on = f"on, after {span(plan.after_ms)}" if plan.enabled else "off"
        print_line(f"autopilot is {on}; {counted(plan.seats, 'seat')}")
        step = {"ADD": f"add node {plan.node_id}", "REMOVE": f"remove node {plan.node_id}"}
        now = step.get(plan.step, "nothing")
        print_text(f"{'now' if plan.enabled else 'would do now'}: {now} ({plan.reason})")

    found = [FailedError("a replacement is in progress", Exit.FOUND)] if told.is_replacing else []
    return Answer(plan, show, found)


@command(app, shared=ASK, also="add-controller")
async def add_voter(
    client: AsyncClient,
    config: ConfigFile = None,
    flags: SetFlags = None,
    voter_id: Annotated[int | None, _VOTER_ID] = None,
    directory_id: DirectoryId = "",
    endpoint: Annotated[
        str, opt("--endpoint HOST:PORT", "The address at which the other nodes reach it.")
    ] = "",
) -> Answer[VoterAdded]:
    """Make a running observer a voter.

    The observer must have been formatted with --no-initial-controllers, be running, and have caught
    up. Give its configuration on its own machine, or all of --voter-id, --directory-id and
    --endpoint.

    \b
    Examples:
      raftlog quorum add-voter -c node4.toml --bootstrap-controller 127.0.0.1:9093
      raftlog quorum add-voter --voter-id 4 --directory-id UUID --endpoint 10.0.0.4:9093
    """
    if config is not None or flags:
        if voter_id is not None or directory_id or endpoint:
            raise ConfigError(
                "give either --config, or --voter-id, --directory-id and --endpoint, not both"
            )
        voter_id, directory_id, endpoint = _of_configuration(config, flags)
    elif voter_id is None or not directory_id or not endpoint:
        raise ConfigError("give --config FILE, or all of --voter-id, --directory-id and --endpoint")
    await client.quorum.add_voter(voter_id, directory_id, endpoint)
    added = VoterAdded(voter_id, directory_id, endpoint)
    return Answer(added, lambda: print_line(f"node {voter_id} is now a voter"))


@command(app, shared=ASK, also="remove-controller")
async def remove_voter(
    client: AsyncClient,
    voter_id: Annotated[int, _VOTER],
    directory_id: DirectoryId = "",
) -> Answer[VoterRemoved]:
    """Remove a voter, dead or alive, from the quorum.

    A removed leader resigns once the removal is committed. Default for --directory-id: the
    directory in the voter set. Stop a node that has controller.quorum.auto.join.enable first: it
    would become a voter again within seconds. The command warns if such a node is running.

    \b
    Examples:
      raftlog quorum remove-voter --voter-id 3 --bootstrap-controller 127.0.0.1:9093
    """
    collector, timeout_s = _collector(), client.options.timeout_s
    best = (await collector.survey(client.options.controllers, timeout_s, looks=1)).best
    # The controller reports an id that is not a voter's.
    voters = best.voters if best is not None else []
    listed = next((one for one in voters if one.replica_id == voter_id), None)
    directory_id = directory_id or (listed.replica_directory_id if listed else "")
    await client.quorum.remove_voter(voter_id, directory_id)
    config = None
    if listed is not None and listed.endpoint:
        config = await collector.config_of(listed.endpoint, min(timeout_s, 1.0))
    joins = None if config is None else config.get(_AUTO_JOIN) == "true"
    if joins:
        print_error(
            f"warning: node {voter_id} runs with {_AUTO_JOIN} and becomes a voter again within "
            "seconds: stop it, then remove it again"
        )
    removed = VoterRemoved(voter_id, directory_id, joins)
    return Answer(removed, lambda: print_line(f"node {voter_id} is no longer a voter"))


@command(app, shared=ASK)
async def transfer(
    client: AsyncClient,
    to: Annotated[
        int | None,
        opt(
            "--to N",
            "The voter that becomes leader; default: the one with the most complete log.",
            min=0,
            autocompletion=completion.voter_ids,
        ),
    ] = None,
) -> Answer[LeadershipTransferred]:
    """Transfer the leadership to another voter.

    No accepted write is lost; writes are delayed briefly.

    \b
    Examples:
      raftlog quorum transfer --to 2 --bootstrap-controller 127.0.0.1:9093
    """
    successor = await client.quorum.transfer(to)
    done = LeadershipTransferred(successor)
    return Answer(done, lambda: print_line(f"node {successor} becomes the leader"))


def _of_configuration(config: Path | None, flags: list[str] | None) -> tuple[int, str, str]:
    from raftlog.node.config.load import load_config
    from raftlog.node.storage.directory import read_identity

    loaded = load_config(config, flags=flags or [])
    if loaded.controller is None:
        raise ConfigError("a voter must be a controller, but the configuration is a broker's")
    identity = read_identity(loaded.directory)
    return loaded.node_id, identity.directory_id, loaded.controller.advertised
