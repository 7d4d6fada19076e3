"""``raftlog storage``: data directories and their identities."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli import recovery
from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    ConfigFile,
    Directory,
    InitialControllers,
    Json,
    NodeId,
    SetFlags,
    Standalone,
)
from raftlog.cli.output import print_error, print_json, print_line, print_table
from raftlog.errors import ConfigError

app = typer.Typer(
    help="Prepare and inspect data directories (of stopped nodes).",
    epilog=EPILOG,
    no_args_is_help=True,
)
recovery.register(app)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="storage")


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a new random id, as for cluster.id."""
    typer.echo(str(uuid.uuid4()))


@app.command("format", epilog=EPILOG)
def format_(
    config: ConfigFile = None,
    flags: SetFlags = None,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", metavar="ID", help="The cluster's id.")
    ] = "",
    node_id: NodeId = None,
    without_node_id: Annotated[
        bool,
        typer.Option(
            "--without-node-id", help="For a broker that gets its id at its first start (KIP-426)."
        ),
    ] = False,
    directory: Directory = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option(
            "--ignore-formatted",
            "-g",
            help="Accept a directory that is formatted for this node already.",
        ),
    ] = False,
    standalone: Standalone = False,
    initial_controllers: InitialControllers = "",
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers",
            "-N",
            help="For a controller that joins an existing quorum, or a broker.",
        ),
    ] = False,
    release_version: Annotated[
        int | None,
        typer.Option(
            "--release-version",
            "-r",
            metavar="LEVEL",
            help=(
                "metadata.version that a new cluster starts with; default: the latest. 1 for"
                " programs before voter sets."
            ),
        ),
    ] = None,
    super_user: Annotated[
        list[str] | None,
        typer.Option(
            "--super-user",
            metavar="PRINCIPAL",
            help=(
                "Let this principal, for instance User:alice, do everything in the new cluster, by"
                " access control entries. Give it to each first controller. Can be repeated."
            ),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Format an empty data directory for a node.

    It gets the cluster id, the node id and a new directory id. A directory of another node or
    cluster is refused. A node starts only on a formatted directory: a directory that is empty
    because its disk is not mounted must not pass for a new one.

    The voters of a new quorum are those of controller.quorum.voters, or, where that is empty, one
    of: this node alone (--standalone; others are added later), a list with directory ids
    (--initial-controllers; make the ids with `raftlog storage random-uuid`), or none
    (--no-initial-controllers: a node that joins a quorum through
    controller.quorum.bootstrap.servers). A voter's new disk is formatted with
    --no-initial-controllers too: it must not count before the quorum says so.

    A broker whose configuration has no node.id, or a directory formatted --without-node-id, gets
    its id at its first start: that of its hostname, or the one that is missing, or a new one; see
    `raftlog cluster hostnames`.

    \b
    Examples:
      raftlog storage format -c node1.toml
      raftlog storage format -c node1.toml --standalone
      raftlog storage format -c node4.toml --no-initial-controllers
      raftlog storage format --cluster-id ID --node-id 1 --directory /var/lib/raftlog
      raftlog storage format --cluster-id ID --without-node-id --directory /var/lib/raftlog
    """
    from raftlog.cli.format_options import beginning, identity_asked
    from raftlog.storage.api import NO_NODE_ID, NodeIdentity
    from raftlog.storage.meta_file import format_storage

    wanted = NO_NODE_ID if without_node_id and node_id is None else node_id
    if without_node_id and node_id is not None:
        raise ConfigError("give either --node-id or --without-node-id")
    where, cluster, node = identity_asked(config, flags or [], directory, cluster_id, wanted)
    loaded = None
    if directory is None:
        from raftlog.config.load import load_config
        from raftlog.transport.configured import check_tls_files

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
    if as_json:
        print_json({"directory": str(where), **dataclasses.asdict(identity)})
        return
    done = "formatted" if identity == asked else "was formatted already"
    who = (
        f"node {identity.node_id}"
        if identity.node_id != NO_NODE_ID
        else "a broker that has no id yet,"
    )
    print_line(f"{where} {done}: {who} of cluster {cluster}, directory id {identity.directory_id}")


@app.command(epilog=EPILOG)
def info(
    config: ConfigFile = None,
    flags: SetFlags = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Show a data directory's node, its vote, and what its log holds.

    The node must be stopped.

    \b
    Examples:
      raftlog storage info -d /var/lib/raftlog
      raftlog storage info -c node1.toml --json
    """
    from raftlog.ops.logs import say_left_out
    from raftlog.storage.reader import open_read_only
    from raftlog.storage.vote_file import damaged_copies

    where = _directory_asked(config, flags or [], directory)
    with open_read_only(where) as log:
        say_left_out(log)
        vote, damaged = log.vote, damaged_copies(where)
        document = {
            "directory": str(where),
            **dataclasses.asdict(log.identity),
            **{
                f"vote_{name}".replace("vote_vote", "vote"): value
                for name, value in dataclasses.asdict(vote).items()
            },
            "log_start_offset": log.start_offset,
            "log_end_offset": log.end_offset,
            "vote_copy_damaged": bool(damaged),
        }
    for what in damaged:
        print_error(f"{what}; the node's next start writes both anew")
    if as_json:
        print_json(document)
    else:
        print_table(("", ""), [(name.replace("_", " "), value) for name, value in document.items()])


def _directory_asked(config: Path | None, flags: list[str], directory: Path | None) -> Path:
    if directory is not None:
        return directory
    from raftlog.config.sources import environment_configures

    if config is None and not flags and not environment_configures():
        raise ConfigError("give --directory DIR, --config FILE or variables RAFTLOG_...")
    from raftlog.config.load import load_config

    return load_config(config, flags=flags).directory
