"""``raftlog export``: the log as files, for analysis and audit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.log_sources import DataDirectory, DirectoryLog, begins_late, open_log
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapController, Json, Timeout
from raftlog.cli.output import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftlog.cli.log_sources import LogSource


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", epilog=EPILOG)(export_)


def export_(
    target: Annotated[
        str, typer.Argument(metavar="DIR|URI", help="Where the export is, or is to be: a directory, or s3://…, gs://…")
    ],
    directory: DataDirectory = None,
    assume_committed: Annotated[
        bool,
        typer.Option(
            "--assume-committed",
            help="With --directory: export to the end of the log. Only when you know that this node had no uncommitted tail.",
        ),
    ] = False,
    cursor: Annotated[
        str,
        typer.Option(
            "--cursor",
            metavar="NAME",
            help="Have the nodes keep what this export has yet to read, under this name (see `raftlog cursors`).",
        ),
    ] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Read everything back and check it.")] = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Export the committed log: Parquet for analysis, raw segments with its exact bytes, and a manifest. Goes on where it ended.

    \b
    Examples:
      raftlog export exported --bootstrap-controller 127.0.0.1:9093
      raftlog export exported --cursor nightly
      raftlog export exported --directory data/controller-1 --verify
    """
    from raftlog.cli.export_cursor import keep_cursor
    from raftlog.segments.export import export
    from raftlog.segments.place import open_place
    from raftlog.segments.verify import verify_export

    place = open_place(target)
    with open_log(directory, None, bootstrap_controller, timeout) as source:
        if assume_committed and isinstance(source, DirectoryLog):
            source.assume_committed()
        late = begins_late(source)
        left_out = source.end_offset - source.high_watermark
        keeper = keep_cursor(cursor, source, place) if cursor else None
        with _progress(source) as progress:
            summary = export(source, place, progress, published=keeper.published if keeper is not None else None)
        if keeper is not None:
            keeper.finish()
    if verify:
        verify_export(place)
    if as_json:
        print_json({"directory": target, **asdict(summary), "records": summary.records, "verified": verify})
    else:
        print_line(
            f"{target}: {summary.records} new records (offsets {summary.first_offset} to {summary.end_offset - 1})"
            if summary.records
            else f"{target}: nothing new, it ends before offset {summary.end_offset}"
        )
        if verify:
            print_line("verified: every checksum, hash and offset")
    if late and summary.history_begin:
        typer.echo(f"{late}; so does this export", err=True)
    if left_out:
        typer.echo(
            f"left out: {left_out} records at the end of which this log alone does not prove that they are committed"
            " (see --assume-committed)",
            err=True,
        )


@contextmanager
def _progress(source: LogSource) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("exporting", total=source.high_watermark)
        yield lambda done, total: bar.update(task, completed=done, total=total)
