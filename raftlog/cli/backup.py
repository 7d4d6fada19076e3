"""``raftlog backup``: the state of a running cluster as one file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BackupController, Json, Timeout
from raftlog.cli.output import print_json, print_line, print_text

if TYPE_CHECKING:
    from raftlog.cli.session import Session
    from raftlog.ops.backup import BackupSummary


INSPECT = "inspect"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backup", epilog=EPILOG)(backup_)


def backup_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|inspect", help="Where the backup is to be; it must not be there yet."
        ),
    ],
    inspected: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="`inspect FILE`: what is in a backup."),
    ] = None,
    controller: BackupController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Write the committed state to a file, while writes continue.

    The file is a snapshot: the state at one committed offset, its hash, the voter set and what
    names the log. It is read back and checked before it gets its name. --timeout bounds each
    answer, not the whole.

    \b
    Examples:
      raftlog backup --controller 127.0.0.1:9093 metadata-2024-05-01.checkpoint
      raftlog backup inspect metadata-2024-05-01.checkpoint
    """
    if inspected is not None:
        if str(file) != INSPECT:
            raise typer.BadParameter(f"{inspected}: one file is wanted, or `inspect FILE`")
        _inspect(inspected, as_json=as_json)
        return
    from raftlog.cli.session import run
    from raftlog.ops.backup import backup

    async def work(session: Session) -> BackupSummary:
        with _progress() as progress:
            return await backup(session.log(controller), file, progress)

    summary = run(work, timeout)
    header = summary.header
    if as_json:
        print_json(
            {
                "file": str(summary.file),
                "cluster_id": header.cluster_id,
                "generation": header.generation,
                "end_offset": header.end_offset,
                "epoch": header.epoch,
                "timestamp_ms": header.last_timestamp_ms,
                "metadata_version": header.metadata_version,
                "state_hash": f"{summary.state_hash:032x}",
                "bytes": summary.bytes,
            }
        )
    else:
        print_text(
            f"{summary.file}: the state at offset {header.end_offset - 1}, epoch {header.epoch}, of"
            f" cluster {header.cluster_id}; state hash {summary.state_hash:032x}, {summary.bytes}"
            " bytes, verified"
        )


def _inspect(file: Path, *, as_json: bool) -> None:
    """Verify a backup and say what is in it. Raises ConfigError, CorruptLogError."""
    from raftlog.cli.output import print_table
    from raftlog.cli.render import time_text
    from raftlog.ops.backup import inspect

    found = inspect(file)
    header, image = found.header, found.image
    counts = {
        "brokers": len(image.brokers),
        "topics": len(image.topics),
        "partitions": len(image.partitions),
        "configs": sum(len(values) for _, values in image.configs.items()),
        "acls": len(image.acls),
        "clients": len(image.clients),
    }
    features = {name: image.features[name] for name in sorted(image.features)}
    if as_json:
        print_json(
            {
                "file": str(file),
                "cluster_id": header.cluster_id,
                "generation": header.generation,
                "end_offset": header.end_offset,
                "epoch": header.epoch,
                "timestamp_ms": header.last_timestamp_ms,
                "metadata_version": header.metadata_version,
                "state_hash": f"{image.state_hash:032x}",
                "bytes": found.bytes,
                "voters": [f"{one.node_id}@{one.endpoint}" for one in header.voters],
                "features": features,
                "counts": counts,
            }
        )
        return
    rows = [
        ("cluster id", header.cluster_id),
        ("taken at", time_text(header.last_timestamp_ms)),
        ("offset", header.end_offset - 1),
        ("epoch", header.epoch),
        ("generation", header.generation),
        ("voters", ", ".join(f"{one.node_id}@{one.endpoint}" for one in header.voters) or None),
        ("features", ", ".join(f"{name}={level}" for name, level in features.items())),
        *counts.items(),
        ("state hash", f"{image.state_hash:032x}"),
    ]
    print_table(("", ""), rows)
    print_line(f"{file}: {found.bytes} bytes, whole and verified")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
