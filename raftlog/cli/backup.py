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
from raftlog.cli.output import print_json, print_line

if TYPE_CHECKING:
    from raftlog.cli.session import Session
    from raftlog.client.backup import BackupSummary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backup", epilog=EPILOG)(backup_)


def backup_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where the backup is to be; it must not be there yet."),
    ],
    controller: BackupController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Write the newest committed state of a running cluster to a file; writes go on meanwhile.

    The file is a snapshot: the state at one committed offset, its hash, the voter set and what
    names the log. It is read back and checked before it gets its name. --timeout bounds each
    answer, not the whole.

    \b
    Examples:
      raftlog backup --controller 127.0.0.1:9093 metadata-2024-05-01.checkpoint
    """
    from raftlog.cli.session import run
    from raftlog.client.backup import backup

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
        print_line(
            f"{summary.file}: the state at offset {header.end_offset - 1}, epoch {header.epoch}, of"
            f" cluster {header.cluster_id}; state hash {summary.state_hash:032x}, {summary.bytes}"
            " bytes, verified"
        )


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
