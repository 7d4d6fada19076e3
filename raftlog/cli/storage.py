"""``raftlog storage`` and ``backup``: create, show, back up and recover data directories."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.command import Answer, call, command, group
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BackupController,
    ClusterId,
    ConfigFile,
    Directory,
    InitialControllers,
    NodeId,
    SetFlags,
    Standalone,
    Timeout,
    arg,
    opt,
)
from raftlog.cli.output import print_error, print_line, print_table, print_text
from raftlog.endpoint import Voter
from raftlog.errors import ConfigError
from raftlog.identity import parse_super_users
from raftlog.metadata.versions import LATEST_METADATA_VERSION, MIN_METADATA_VERSION
from raftlog.node.config.fields import parse_voter
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.sources import environment_configures
from raftlog.node.storage.files import Bootstrap

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.metadata.snapshot_file import SnapshotHeader
    from raftlog.node.recovery.unsafe_recovery import Survivor
    from raftlog.ops.backup import BackupSummary

app = group()


@dataclass
class StorageIdentity:
    """A data directory and its node's identity."""

    directory: str
    cluster_id: str
    node_id: int
    directory_id: str
    generation: int
    """The generation of the log, or 0 if it has none yet."""
    format_version: int


@dataclass
class StorageInfo(StorageIdentity):
    """A data directory with its vote and its log."""

    vote_epoch: int
    vote_leader_id: int
    voted_id: int
    voted_directory_id: str
    log_start_offset: int
    log_end_offset: int
    vote_copy_damaged: bool


@dataclass
class SurvivorDescription(StorageIdentity):
    """The directory of a surviving node, with its part of the log."""

    vote_epoch: int
    last_record_epoch: int
    log_start_offset: int
    log_end_offset: int
    voters: Sequence[Voter]


@dataclass
class Recovered:
    """The result of a recovery with --unsafe."""

    before: SurvivorDescription
    epoch: int
    voter: Voter
    end_offset: int


@dataclass
class BackupWritten:
    """A backup: the committed state up to ``end_offset``, exclusive."""

    file: str
    cluster_id: str
    generation: int
    end_offset: int
    epoch: int
    timestamp_ms: int
    metadata_version: int
    state_hash: str
    bytes: int


@dataclass
class BackupInspected(BackupWritten):
    """A backup and its content."""

    voters: Sequence[str]
    features: Mapping[str, int]
    counts: Mapping[str, int]
    """Numbers of brokers, topics, partitions, configs, acls and clients."""


@command(app)
def random_uuid() -> None:
    """Print a new random id, such as for cluster.id."""
    typer.echo(str(uuid.uuid4()))


@command(app, "format")
def format_(
    config: ConfigFile = None,
    flags: SetFlags = None,
    cluster_id: ClusterId = "",
    node_id: NodeId = None,
    without_node_id: Annotated[
        bool,
        opt("--without-node-id", "For a broker that gets its id at its first start (KIP-426)."),
    ] = False,
    directory: Directory = None,
    ignore_formatted: Annotated[
        bool,
        opt("--ignore-formatted -g", "Accept a directory that is already formatted for this node."),
    ] = False,
    standalone: Standalone = False,
    initial_controllers: InitialControllers = "",
    no_initial_controllers: Annotated[
        bool,
        opt(
            "--no-initial-controllers -N",
            "For a controller that joins an existing quorum, or a broker.",
        ),
    ] = False,
    release_version: Annotated[
        int | None,
        opt(
            "--release-version -r LEVEL",
            "metadata.version of a new cluster; default: the latest. Use 1 for programs that do "
            "not support voter sets.",
        ),
    ] = None,
    super_user: Annotated[
        list[str] | None,
        opt(
            "--super-user PRINCIPAL",
            "Add access control entries that let this principal, such as User:alice, do everything "
            "in the new cluster. Give it to each initial controller. May be repeated.",
        ),
    ] = None,
) -> Answer[StorageIdentity]:
    """Format an empty data directory for a node.

    Writes the cluster id, the node id and a new directory id. Refuses the directory of another node
    or cluster. A node starts only on a formatted directory: one that is empty because its disk is
    not mounted must not pass for a new one.

    A new quorum's voters are those in controller.quorum.voters or, if that is empty, one of: this
    node alone (--standalone; add others later), a list with directory ids (--initial-controllers;
    create the ids with `raftlog storage random-uuid`), or none (--no-initial-controllers: the node
    joins a quorum through controller.quorum.bootstrap.servers). Format a voter's replacement disk
    with --no-initial-controllers, too: it must not count for a majority before the quorum adds it.

    A broker whose configuration has no node.id, or a directory formatted --without-node-id, gets
    its id at its first start: the id mapped to its hostname, else a missing one, else a new one;
    see `raftlog cluster hostnames`.

    \b
    Examples:
      raftlog storage format -c node1.toml
      raftlog storage format -c node1.toml --standalone
      raftlog storage format -c node4.toml --no-initial-controllers
      raftlog storage format --cluster-id ID --node-id 1 --directory /var/lib/raftlog
      raftlog storage format --cluster-id ID --without-node-id --directory /var/lib/raftlog
    """
    from raftlog.node.storage.api import NO_NODE_ID, NodeIdentity
    from raftlog.node.storage.directory import format_storage

    wanted = NO_NODE_ID if without_node_id and node_id is None else node_id
    if without_node_id and node_id is not None:
        raise ConfigError("give either --node-id or --without-node-id")
    where, cluster, node = identity_asked(config, flags or [], directory, cluster_id, wanted)
    loaded = None
    if directory is None:
        from raftlog.node.transport import check_tls_files

        loaded = load_config(config, flags=flags or [])
        check_tls_files(loaded)
    directory_id, bootstrap = beginning(
        loaded,
        node,
        standalone=standalone,
        initial_controllers=initial_controllers,
        no_initial_controllers=no_initial_controllers,
        release_version=release_version,
        super_users=super_user or [],
    )
    asked = NodeIdentity(cluster_id=cluster, node_id=node, directory_id=directory_id)
    identity = format_storage(where, asked, ignore_formatted=ignore_formatted, bootstrap=bootstrap)
    done = "formatted" if identity == asked else "was already formatted"
    has_id = identity.node_id != NO_NODE_ID
    who = f"node {identity.node_id}" if has_id else "a broker without an id yet,"
    text = f"{who} of cluster {cluster}, directory id {identity.directory_id}"
    document = StorageIdentity(str(where), **asdict(identity))
    return Answer(document, lambda: print_line(f"{where} {done}: {text}"))


@command(app)
def info(
    config: ConfigFile = None,
    flags: SetFlags = None,
    directory: Directory = None,
) -> Answer[StorageInfo]:
    """Show a data directory's node, its vote, and what its log holds.

    The node must be stopped.

    \b
    Examples:
      raftlog storage info -d /var/lib/raftlog
      raftlog storage info -c node1.toml --json
    """
    from raftlog.node.storage.files import damaged_copies
    from raftlog.node.storage.reader import open_read_only
    from raftlog.ops.logs import warn_left_out

    where = _directory_asked(config, flags or [], directory)
    with open_read_only(where) as log:
        warn_left_out(log)
        vote, damaged = log.vote, damaged_copies(where)
        found = StorageInfo(
            str(where),
            **asdict(log.identity),
            vote_epoch=vote.epoch,
            vote_leader_id=vote.leader_id,
            voted_id=vote.voted_id,
            voted_directory_id=vote.voted_directory_id,
            log_start_offset=log.start_offset,
            log_end_offset=log.end_offset,
            vote_copy_damaged=bool(damaged),
        )
    for what in damaged:
        print_error(f"{what}; the node rewrites both copies when it starts")
    return Answer(found, lambda: _print_fields(vars(found)))


def _print_fields(found: Mapping[str, object]) -> None:
    print_table(("", ""), [(name.replace("_", " "), value) for name, value in found.items()])


def _directory_asked(config: Path | None, flags: list[str], directory: Path | None) -> Path:
    if directory is not None:
        return directory
    if config is None and not flags and not environment_configures():
        raise ConfigError("give --directory DIR or --config FILE, or set RAFTLOG_... variables")
    return load_config(config, flags=flags).directory


def beginning(
    config: NodeConfig | None,
    node_id: int,
    *,
    standalone: bool,
    initial_controllers: str,
    no_initial_controllers: bool,
    release_version: int | None,
    super_users: Sequence[str] = (),
) -> tuple[str, Bootstrap]:
    """Return the node's directory id (a new one unless given) and what its directory records about
    the quorum. Raises ConfigError.
    """
    level = _level(release_version)
    administrators = _administrators(super_users)
    directory_id = str(uuid.uuid4())
    ways = sum((standalone, bool(initial_controllers), no_initial_controllers))
    controller = config.controller if config is not None else None
    if ways > 1:
        raise ConfigError(
            "give only one of --standalone, --initial-controllers and --no-initial-controllers"
        )
    if (standalone or initial_controllers) and controller is not None and controller.voters:
        raise ConfigError(
            "controller.quorum.voters already names the voters: leave it empty, or omit the option"
        )
    if not ways:
        if controller is not None and not controller.voters:
            raise ConfigError(
                "controller.quorum.voters is empty: give --standalone, --initial-controllers or"
                " --no-initial-controllers"
            )
        return directory_id, Bootstrap(None, level, administrators)
    if no_initial_controllers:
        if administrators:
            raise ConfigError(
                "--super-user is only for the initial controllers of a cluster: a joining node "
                "gets the entries from the log"
            )
        return directory_id, Bootstrap((), level)
    if standalone:
        if controller is None:
            raise ConfigError("--standalone needs a controller's configuration with its listener")
        return directory_id, Bootstrap(
            (Voter(node_id, controller.advertised, directory_id),), level, administrators
        )
    voters = parse_initial_controllers(initial_controllers)
    own = next((voter for voter in voters if voter.node_id == node_id), None)
    if own is None:
        raise ConfigError(f"--initial-controllers: node {node_id} is not among them")
    if controller is not None and own.endpoint != controller.advertised:
        raise ConfigError(
            f"--initial-controllers: the list has node {node_id} at {own.endpoint}, but its "
            f"configuration at {controller.advertised}"
        )
    return own.directory_id, Bootstrap(voters, level, administrators)


def parse_initial_controllers(value: str) -> tuple[Voter, ...]:
    """Parse ``id@host:port:directory-id,...``. Raises ConfigError."""
    voters: list[Voter] = []
    for part in value.split(","):
        address, _, directory_id = part.strip().rpartition(":")
        try:
            voter = parse_voter(address)
            known = str(uuid.UUID(directory_id))
        except ValueError as error:
            raise ConfigError(
                f"--initial-controllers: {part.strip()!r} is not id@host:port:directory-id with a "
                f"UUID as directory id ({error})"
            ) from error
        voters.append(Voter(voter.node_id, voter.endpoint, known))
    for what, values in (
        ("id", [voter.node_id for voter in voters]),
        ("address", [voter.endpoint for voter in voters]),
        ("directory id", [voter.directory_id for voter in voters]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"--initial-controllers: two voters have the same {what}")
    return tuple(sorted(voters, key=lambda voter: voter.node_id))


def _administrators(super_users: Sequence[str]) -> tuple[str, ...]:
    """Return the principals to make administrators. Raises ConfigError."""
    try:
        found = tuple(sorted(parse_super_users(";".join(super_users))))
    except ValueError as error:
        raise ConfigError(f"--super-user: {error}") from error
    return found


def _level(release_version: int | None) -> int:
    if release_version is None:
        return 0
    if not MIN_METADATA_VERSION <= release_version <= LATEST_METADATA_VERSION:
        raise ConfigError(
            f"--release-version must be {MIN_METADATA_VERSION} to {LATEST_METADATA_VERSION}, not "
            f"{release_version}"
        )
    return release_version


def identity_asked(
    config: Path | None,
    flags: list[str],
    directory: Path | None,
    cluster_id: str,
    node_id: int | None,
) -> tuple[Path, str, int]:
    """Return the directory, cluster id and node id to format, from either a configuration (or the
    environment) or the three options. Raises ConfigError if both are given.
    """
    options_given = directory is not None or cluster_id or node_id is not None
    if config is None and not flags and (options_given or not environment_configures()):
        missing = [
            option
            for option, value in (
                ("--directory", directory),
                ("--cluster-id", cluster_id),
                ("--node-id", node_id),
            )
            if value in (None, "")
        ]
        if directory is None or not cluster_id or node_id is None:
            raise ConfigError(
                f"give --config FILE, or {', '.join(missing)}, or set RAFTLOG_... variables"
            )
        return directory, cluster_id, node_id
    if options_given:
        raise ConfigError(
            "give either --config, or --directory, --cluster-id and --node-id, not both"
        )
    loaded = load_config(config, flags=flags)
    return loaded.directory, loaded.cluster_id, loaded.node_id


Where = Annotated[Path, arg("DIR", "The data directory of a stopped node.")]

WARNING = """\
This breaks the quorum's guarantees.
  * Committed records that are not in this directory are lost. Records in it that were never committed become committed.
  * Node {node_id} will be the only voter. Add others afterwards, with newly formatted directories.
  * Never start another directory of the old quorum again: it would continue a different history under the same cluster id."""  # noqa: E501


@command(app)
def recover(
    directory: Where,
    unsafe: Annotated[
        bool, opt("--unsafe", "Recover; without it the command changes nothing.")
    ] = False,
    endpoint: Annotated[
        str,
        opt(
            "--endpoint HOST:PORT",
            "The address at which this node listens; default: its endpoint in the voter set.",
        ),
    ] = "",
    reason: Annotated[str, opt("--reason TEXT", "The reason, recorded in the log.")] = "",
    yes: Annotated[bool, opt("--yes", "Do not ask for confirmation.")] = False,
) -> Answer[SurvivorDescription | Recovered]:
    """Recover a quorum whose majority is lost, from one directory.

    Use it only if the directories of a majority are lost. Without --unsafe the command only shows
    what the directory contains. Do that for every remaining directory, then recover the one with
    the highest last record epoch and, among equals, the highest log end offset: no other can
    contain more committed records. Committed records that it lacks are lost. The log records the
    recovery: a RecoveryRecord, and a voter set with only this node. When the node starts, it gives
    the log a new generation.

    \b
    Examples:
      raftlog storage recover /var/lib/raftlog
      raftlog storage recover /var/lib/raftlog --unsafe --reason "racks A and B burnt down"
    """
    import structlog

    from raftlog.endpoint import reachable_error
    from raftlog.node.recovery.unsafe_recovery import examine, recover_unsafely

    if endpoint and (wrong := reachable_error(endpoint)):
        raise ConfigError(f"--endpoint: {wrong}")
    # Log lines from opening the directory are not part of the command's output.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    survivor = asyncio.run(examine(directory))
    if not unsafe:
        found = _described(directory, survivor)
        return Answer(found, lambda: _show_survivor(found))
    typer.echo(WARNING.format(node_id=survivor.identity.node_id), err=True)
    if not yes:
        confirm(survivor.identity.cluster_id)
    done = asyncio.run(
        recover_unsafely(
            directory, endpoint=endpoint, reason=reason, now_ms=time.time_ns() // 1_000_000
        )
    )
    text = (
        f"{directory}: node {done.voter.node_id} at {done.voter.endpoint} is the only voter of"
        f" cluster {done.before.identity.cluster_id}, from offset {done.before.end_offset} and "
        f"epoch {done.epoch} onwards; the log gets a new generation when the node starts"
    )
    before = _described(directory, done.before)
    recovered = Recovered(before, done.epoch, done.voter, done.end_offset)
    return Answer(recovered, lambda: print_line(text))


def confirm(cluster_id: str) -> None:
    """Ask the operator to type the cluster id. Raises FailedError if it does not match."""
    try:
        typed = typer.prompt(f"Type the cluster id ({cluster_id}) to continue", err=True)
    except typer.Abort:
        typed = ""
    if typed.strip() != cluster_id:
        raise FailedError("the cluster id does not match: nothing was changed", Exit.USAGE)


def _described(directory: Path, survivor: Survivor) -> SurvivorDescription:
    identity = asdict(survivor.identity) | {"generation": survivor.lineage.current}
    return SurvivorDescription(
        str(directory),
        **identity,
        vote_epoch=survivor.epoch,
        last_record_epoch=survivor.last_epoch,
        log_start_offset=survivor.start_offset,
        log_end_offset=survivor.end_offset,
        voters=survivor.voters,
    )


def _show_survivor(found: SurvivorDescription) -> None:
    voters = ", ".join(f"{voter.node_id}@{voter.endpoint}" for voter in found.voters)
    _print_fields({**vars(found), "voters": voters or "as configured"})
    typer.echo(
        "Nothing was changed. Of all remaining directories, recover, with --unsafe, the one with "
        "the highest last record epoch and, among equals, the highest log end offset.",
        err=True,
    )


INSPECT = "inspect"


@command()
def backup_(
    file: Annotated[Path, arg("FILE|inspect", "The backup to write; the file must not exist yet.")],
    inspected: Annotated[Path | None, arg("[FILE]", "The backup to inspect.")] = None,
    controller: BackupController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[BackupWritten | BackupInspected]:
    """Write the committed state to a file, while writes continue.

    The file is a snapshot: the state at one committed offset, its hash, the voter set, and the
    log's identity. The command reads the file back and checks it before naming it FILE. --timeout
    applies to each response, not to the whole backup.

    \b
    Examples:
      raftlog backup --controller 127.0.0.1:9093 metadata-2024-05-01.checkpoint
      raftlog backup inspect metadata-2024-05-01.checkpoint
    """
    if inspected is not None:
        if str(file) != INSPECT:
            raise typer.BadParameter(
                f"unexpected argument {str(inspected)!r}: give one FILE, or `inspect FILE`"
            )
        return _inspect(inspected)
    from raftlog.ops.backup import backup

    async def work(client: AsyncClient) -> BackupSummary:
        with _progress() as progress:
            return await backup(client.core.log_reader(timeout), file, progress)

    summary = call(work, {"bootstrap_controller": controller, "timeout": timeout})
    written = _written(summary.file, summary.header, summary.state_hash, summary.bytes)
    text = (
        f"{file}: the state at offset {written.end_offset - 1}, epoch {written.epoch}, of cluster"
        f" {written.cluster_id}; state hash {written.state_hash}, {written.bytes} bytes, verified"
    )
    return Answer(written, lambda: print_text(text))


def _written(file: Path, header: SnapshotHeader, state_hash: int, size: int) -> BackupWritten:
    return BackupWritten(
        str(file),
        header.cluster_id,
        header.generation,
        header.end_offset,
        header.epoch,
        header.last_timestamp_ms,
        header.metadata_version,
        f"{state_hash:032x}",
        size,
    )


def _inspect(file: Path) -> Answer[BackupWritten | BackupInspected]:
    """Verify a backup and describe it. Raises ConfigError, CorruptLogError."""
    from raftlog.metadata.record_text import time_text
    from raftlog.ops.backup import inspect

    read = inspect(file)
    header, image = read.header, read.image
    counts = {
        "brokers": len(image.brokers),
        "topics": len(image.topics),
        "partitions": len(image.partitions),
        "configs": sum(len(values) for _, values in image.configs.items()),
        "acls": len(image.acls),
        "clients": len(image.clients),
    }
    features = {name: image.features[name] for name in sorted(image.features)}
    voters = [f"{one.node_id}@{one.endpoint}" for one in header.voters]
    found = BackupInspected(
        **vars(_written(file, header, image.state_hash, read.bytes)),
        voters=voters,
        features=features,
        counts=counts,
    )

    def show() -> None:
        rows = [
            ("cluster id", found.cluster_id),
            ("taken at", time_text(found.timestamp_ms)),
            ("offset", found.end_offset - 1),
            ("epoch", found.epoch),
            ("generation", found.generation),
            ("voters", voters),
            ("features", ", ".join(f"{name}={level}" for name, level in features.items())),
            *counts.items(),
            ("state hash", found.state_hash),
        ]
        print_table(("", ""), rows)
        print_line(f"{file}: {found.bytes} bytes, complete and verified")

    return Answer(found, show)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
