"""``raftlog restore``: start a cluster with the state that another one had at some point."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.command import Answer, command
from raftlog.cli.options import (
    AtOffset,
    AtTime,
    ClusterId,
    ConfigFile,
    InitialControllers,
    NodeId,
    SetFlags,
    Standalone,
    arg,
    opt,
)
from raftlog.cli.output import print_line, print_table
from raftlog.cli.storage import StorageIdentity, beginning, confirm, identity_asked
from raftlog.cli.values import export_time_ms
from raftlog.errors import ConfigError
from raftlog.metadata.record_text import time_text
from raftlog.node.config.load import load_config
from raftlog.segments.point import ExportedState, exported_state
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.node.recovery.restore import Restored


@dataclass
class RestoredState:
    """The state that the restored cluster starts with."""

    cluster_id: str
    generations: list[int]
    end_offset: int
    epoch: int
    last_timestamp_ms: int
    metadata_version: int


@dataclass
class AfterRestore:
    """Numbers of entities that belong to programs using the old cluster."""

    brokers: int
    """Number of brokers, which are fenced until they register."""
    leases: int
    """Number of leases. Their holders have lost them: they expire after their time to live."""
    lease_keys: int
    """Number of keys that are deleted with the leases."""
    clients: int
    """Number of exactly-once clients. Their next numbered write is refused: they must open a new
    session.
    """
    export_cursors: int
    """Number of export cursors, which hold the log for exports that end at the restore."""


@dataclass
class StorageRestored(StorageIdentity):
    """A directory created from the state of another cluster."""

    restored_from: RestoredState
    vouched_by: str
    """Nodes that recorded the state's hash; empty for a backup, which contains its own hash, or if
    no node did.
    """
    left_out: Mapping[str, int]
    """For an imported log: number of entities that raftlog does not support, by kind."""
    after: AfterRestore
    state_hash: str
    epoch: int
    log_end_offset: int


WARNING = """\
The directory will belong to the same cluster, {cluster_id}, which continues from an earlier state.
  * Everything committed after that state is lost.
  * Brokers delete partitions that do not exist in that state.
  * Never start a directory of the old controllers again: it would continue a different history under the same cluster id."""  # noqa: E501


@command()
def restore_(
    source: Annotated[
        str,
        opt("--from SOURCE", "An export (directory or URI), or a file written by `backup`."),
    ],
    directory: Annotated[Path | None, arg("[DIR]", "The new data directory.")] = None,
    at_offset: AtOffset = None,
    at_time: AtTime = None,
    cluster_id: ClusterId = "",
    node_id: NodeId = None,
    config: ConfigFile = None,
    flags: SetFlags = None,
    standalone: Standalone = False,
    initial_controllers: InitialControllers = "",
    same_cluster: Annotated[
        bool,
        opt(
            "--same-cluster",
            "Keep the cluster id, and so its brokers; only if all its controllers are lost for "
            "good.",
        ),
    ] = False,
    unvouched: Annotated[
        bool,
        opt("--unvouched", "Accept a state whose hash no controller has recorded."),
    ] = False,
    yes: Annotated[bool, opt("--yes", "With --same-cluster: do not ask for confirmation.")] = False,
) -> Answer[StorageRestored]:
    """Create a controller's directory from an export or a backup.

    Run it for every controller, with the same point, before starting any of them. Folds the export
    and compares the state's hash with the one that controllers have recorded; a mismatch is
    refused. The cluster needs a new id, unless it replaces one that is lost (--same-cluster). Its
    voters come from controller.quorum.voters, or from the same options as for `storage format`. Its
    first leader gives the log a new generation, by which clients and brokers detect the restore.

    \b
    Examples:
      raftlog restore --from s3://audit/cluster-1 --at-time 14:01:59 -c node1.toml
      raftlog restore --from exported --at-offset 5119 -c side.toml --standalone
      raftlog restore --from metadata.checkpoint --cluster-id NEW --node-id 1 DIR
    """
    where, cluster, node = identity_asked(config, flags or [], directory, cluster_id, node_id)
    if node < 0:
        raise ConfigError("--config must be a controller's configuration with a node.id")
    loaded = None
    if config is not None or flags:
        loaded = load_config(config, flags=flags or [])
    directory_id, bootstrap = beginning(
        loaded,
        node,
        standalone=standalone,
        initial_controllers=initial_controllers,
        no_initial_controllers=False,
        release_version=None,
    )
    state = _state(source, at_offset, at_time, unvouched=unvouched)
    if same_cluster and not yes:
        typer.echo(WARNING.format(cluster_id=cluster), err=True)
        confirm(cluster)
    from raftlog.node.recovery.restore import restore

    done = restore(
        where,
        state.image,
        state.header,
        cluster_id=cluster,
        node_id=node,
        directory_id=directory_id,
        same_cluster=same_cluster,
        bootstrap=bootstrap,
    )
    restored = _described(where, done, state)
    return Answer(restored, lambda: _show(restored, source, is_export=state.vouched_by is not None))


def _state(
    source: str, at_offset: int | None, at_time: str | None, *, unvouched: bool
) -> ExportedState:
    """Return the state at a point of an export, or the state in a backup."""
    path = Path(source)
    if not path.is_file():
        time_ms = export_time_ms(at_time, source)
        return exported_state(source, offset=at_offset, time_ms=time_ms, unvouched=unvouched)
    from raftlog.ops.backup import inspect

    if at_offset is not None or at_time is not None:
        raise ConfigError(
            f"{source} is a backup with a single state: omit --at-offset and --at-time"
        )
    read = inspect(path)
    return ExportedState(read.image, read.header, None, {})


def _described(where: Path, done: Restored, state: ExportedState) -> StorageRestored:
    image, header = state.image, state.header
    return StorageRestored(
        str(where),
        **asdict(done.identity),
        restored_from=RestoredState(
            header.cluster_id,
            list(header.generations),
            header.end_offset,
            header.epoch,
            header.last_timestamp_ms,
            header.metadata_version,
        ),
        vouched_by=state.vouched_by or "",
        left_out=state.left_out,
        after=AfterRestore(
            len(image.brokers),
            len(image.leases),
            sum(len(keys) for _, keys in image.keys_of_lease.items()),
            len(image.clients),
            len(image.export_cursors),
        ),
        state_hash=f"{done.state_hash:032x}",
        epoch=done.epoch,
        log_end_offset=done.end_offset,
    )


def _show(done: StorageRestored, source: str, *, is_export: bool) -> None:
    of, after = done.restored_from, done.after
    print_line(
        f"{done.directory} restored: node {done.node_id} of cluster {done.cluster_id}, directory id"
        f" {done.directory_id}"
    )
    rows: list[tuple[str, object]] = [
        ("state from", f"cluster {of.cluster_id}, offset {of.end_offset - 1}"),
        ("time", time_text(of.last_timestamp_ms)),
        ("state hash", done.state_hash),
        *([("recorded by", done.vouched_by or "nobody")] if is_export else []),
        *([("left out", ", ".join(f"{n} {kind}" for kind, n in done.left_out.items()))]
          if done.left_out else []),
    ]  # fmt: skip
    told = (
        (after.brokers, "broker", "fenced until they register"),
        (after.leases, "lease",
         "lost to their holders; they expire after their time to live and delete "
         f"{counted(after.lease_keys, 'key')}"),
        (after.clients, "exactly-once client",
         "their next write is refused; they must open a new session"),
        (after.export_cursors, "export cursor", "delete those whose exports have ended"),
    )  # fmt: skip
    rows += [(f"{what}s", f"{count}: {text}") for count, what, text in told if count]
    print_table(("", ""), rows)
    if is_export:
        print_line(
            f"On every other controller: raftlog restore --from {shlex.quote(source)}"
            f" --at-offset {of.end_offset - 1} …"
        )
