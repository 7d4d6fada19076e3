"""``raftlog storage recover`` and ``raftlog storage restore``: what is left when a quorum, or a
cluster, is lost for good.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import ConfigFile, InitialControllers, Json, NodeId, SetFlags, Standalone
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.errors import ConfigError

if TYPE_CHECKING:
    from raftlog.recovery.restore import Restored
    from raftlog.recovery.unsafe_recovery import Survivor

Where = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of a stopped node.")]

WARNING = """\
This gives up what the quorum promised.
  * Committed records that are not in this directory are lost. Records in it that were never committed become committed.
  * Node {node_id} will be the only voter. Add others afterwards, with directories formatted anew.
  * Never start another directory of the old quorum again: it would go on with another history under the same cluster id."""  # noqa: E501


def register(app: typer.Typer) -> None:
    """Add the commands to the storage group."""
    app.command("recover", epilog=EPILOG)(recover)
    app.command("restore", epilog=EPILOG)(restore_)


def recover(
    directory: Where,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Recover. Without it nothing is changed.")
    ] = False,
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            metavar="HOST:PORT",
            help="Where this node listens; default: its endpoint in the voter set.",
        ),
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for the record in the log.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the cluster id.")] = False,
    as_json: Json = False,
) -> None:
    """Recover a quorum whose majority is lost, from one directory.

    Only when the directories of a majority are lost for good. Without --unsafe the command only
    shows what the directory has. Do that for every remaining directory, and recover the one with
    the highest last record epoch and, among equals, the highest log end offset: no other has more
    committed records. Committed records that it lacks are lost. The log records the recovery: a
    RecoveryRecord and a voter set of this node alone. When the node starts, it gives the log a new
    generation.

    \b
    Examples:
      raftlog storage recover /var/lib/raftlog
      raftlog storage recover /var/lib/raftlog --unsafe --reason "racks A and B burnt down"
    """
    import structlog

    from raftlog.recovery.unsafe_recovery import examine, recover_unsafely

    if endpoint:
        _check_endpoint(endpoint)
    # What opening the directory has to say is not what the command prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    survivor = asyncio.run(examine(directory))
    if not unsafe:
        _show_survivor(directory, survivor, as_json=as_json)
        return
    typer.echo(WARNING.format(node_id=survivor.identity.node_id), err=True)
    if not yes:
        _confirm(survivor.identity.cluster_id)
    done = asyncio.run(
        recover_unsafely(
            directory,
            endpoint=endpoint,
            reason=reason,
            now_ms=time.time_ns() // 1_000_000,
        )
    )
    if as_json:
        print_json(
            {
                "before": _document(directory, done.before),
                "epoch": done.epoch,
                "voter": dataclasses.asdict(done.voter),
                "end_offset": done.end_offset,
            }
        )
        return
    print_line(
        f"{directory}: node {done.voter.node_id} at {done.voter.endpoint} is the only voter of"
        f" cluster {done.before.identity.cluster_id}, from offset {done.before.end_offset} and"
        f" epoch {done.epoch} on; the log gets a new generation when the node starts"
    )


def _check_endpoint(endpoint: str) -> None:
    from raftlog.endpoint import parse_endpoint

    try:
        parse_endpoint(endpoint)
    except ValueError as error:
        raise ConfigError(f"--endpoint: {error}") from error


def _confirm(cluster_id: str) -> None:
    try:
        typed = typer.prompt(f"Type the cluster id ({cluster_id}) to go on", err=True)
    except typer.Abort:
        typed = ""
    if typed.strip() != cluster_id:
        raise FailedError("that is not the cluster id: nothing was changed", Exit.USAGE)


def _document(directory: Path, survivor: Survivor) -> dict[str, Any]:
    return {
        "directory": str(directory),
        **dataclasses.asdict(survivor.identity),
        "generation": survivor.lineage.current,
        "vote_epoch": survivor.epoch,
        "last_record_epoch": survivor.last_epoch,
        "log_start_offset": survivor.start_offset,
        "log_end_offset": survivor.end_offset,
        "voters": [dataclasses.asdict(voter) for voter in survivor.voters],
    }


def _without(value: Any, name: str) -> dict[str, Any]:
    return {
        one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.name != name
    }


def _show_survivor(directory: Path, survivor: Survivor, *, as_json: bool) -> None:
    document = _document(directory, survivor)
    if as_json:
        print_json(document)
        return
    voters = ", ".join(f"{voter.node_id}@{voter.endpoint}" for voter in survivor.voters)
    rows = {**document, "voters": voters or "as configured"}
    print_table(("", ""), [(name.replace("_", " "), value) for name, value in rows.items()])
    typer.echo(
        "Nothing was changed. Of all directories that are left, the one with the highest last"
        " record epoch, then the highest log end offset, has the most: recover that one, with"
        " --unsafe.",
        err=True,
    )


def restore_(
    snapshot: Annotated[
        Path,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="What `raftlog backup` wrote, or a node's *.checkpoint file.",
        ),
    ],
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The new data directory.")
    ] = None,
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", metavar="NEW", help="The new cluster's id.")
    ] = "",
    node_id: NodeId = None,
    config: ConfigFile = None,
    flags: SetFlags = None,
    standalone: Standalone = False,
    initial_controllers: InitialControllers = "",
    as_json: Json = False,
) -> None:
    """Make a new cluster's data directory from a backup.

    Run it for every controller, with the same file, before any is started. The new cluster needs an
    id of its own. Its voters are those of controller.quorum.voters, or of the options that `storage
    format` has too. The log begins with a record that says what it was made from; its first leader
    gives it a generation that no other log has.

    \b
    Examples:
      raftlog storage restore --snapshot metadata.checkpoint -c node1.toml
      raftlog storage restore --snapshot metadata.checkpoint --cluster-id NEW --node-id 1 /var/lib/raftlog
    """  # noqa: E501
    from raftlog.cli.format_options import beginning, identity_asked
    from raftlog.recovery.restore import restore

    where, cluster, node = identity_asked(config, flags or [], directory, cluster_id, node_id)
    if node < 0:
        raise ConfigError("a backup is restored for a controller, which has a node.id")
    loaded = None
    if config is not None or flags:
        from raftlog.config.load import load_config

        loaded = load_config(config, flags=flags or [])
    directory_id, bootstrap = beginning(
        loaded,
        node,
        standalone=standalone,
        initial_controllers=initial_controllers,
        no_initial_controllers=False,
        release_version=None,
    )
    done = restore(
        where,
        snapshot,
        cluster_id=cluster,
        node_id=node,
        directory_id=directory_id,
        bootstrap=bootstrap,
    )
    _show_restored(where, done, as_json=as_json)


def _show_restored(where: Path, done: Restored, *, as_json: bool) -> None:
    identity = done.identity
    if as_json:
        print_json(
            {
                "directory": str(where),
                **dataclasses.asdict(identity),
                "restored_from": _without(done.source, "voters"),
                "state_hash": f"{done.state_hash:032x}",
                "epoch": done.epoch,
                "log_end_offset": done.end_offset,
            }
        )
        return
    print_line(
        f"{where} restored: node {identity.node_id} of cluster {identity.cluster_id}, directory id"
        f" {identity.directory_id}; the state at offset"
        f" {done.source.end_offset - 1} of cluster {done.source.cluster_id}, state hash"
        f" {done.state_hash:032x}"
    )
