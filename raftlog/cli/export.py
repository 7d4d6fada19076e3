"""``raftlog export``: the log as files, for analysis and audit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.endings import INTERRUPTED
from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    Checkpoints,
    DataDirectory,
    Json,
    Sign,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_json, print_json_line, print_line
from raftlog.cli.stopping import StopOnSignal
from raftlog.errors import ConfigError
from raftlog.ops.logs import DirectoryLog, RunningLog, begins_late, open_log
from raftlog.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftlog.ops.logs import LogSource
    from raftlog.segments.export import ExportSummary
    from raftlog.segments.files import Place
    from raftlog.segments.manifest import Manifest, ManifestSigner
    from raftlog.segments.writer import Published


COMPACT_AT = 32
"""An export that follows merges so many small ranges at once: seldom enough, and its readers never
meet many more.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", epilog=EPILOG)(export_)


def export_(
    target: Annotated[
        str, arg("DIR|URI", "Where to write the export: a directory, or s3://…, gs://…")
    ],
    directory: DataDirectory = None,
    assume_committed: Annotated[
        bool,
        opt(
            "--assume-committed",
            "With --directory: export to the end of the log. Only when you know that this"
            " node had no uncommitted tail.",
        ),
    ] = False,
    cursor: Annotated[
        str,
        opt(
            "--cursor NAME",
            "Make the nodes keep the log that this export has not read yet, under this name"
            " (see `raftlog cluster cursors`).",
        ),
    ] = "",
    keep_following: Annotated[
        bool, opt("--follow", "Go on exporting new records, until Ctrl-C or SIGTERM.")
    ] = False,
    publish_interval: Annotated[
        float | None,
        opt(
            "S",
            "With --follow: publish new records this long after the first of them arrived."
            " Default: 30.",
            min=0.1,
        ),
    ] = None,
    publish_records: Annotated[
        int | None,
        opt(
            "N",
            "With --follow: publish after this many records, whatever the time. Default: 1000000.",
            min=1,
        ),
    ] = None,
    compact: Annotated[
        bool,
        opt(
            "--compact",
            "Merge small files into large ones, and cut large ones into buckets by topic:"
            " after the export, or while it follows.",
        ),
    ] = False,
    checkpoints: Checkpoints = None,
    verify: Annotated[bool, opt("--verify", "Read everything back and check it.")] = False,
    sign: Sign = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Export the committed log: Parquet, its exact bytes, a manifest.

    Resumes where it ended.

    \b
    Examples:
      raftlog export exported --bootstrap-controller 127.0.0.1:9093
      raftlog export exported --cursor nightly
      raftlog export exported --directory data/controller-1 --verify
      raftlog export exported --sign key.pem
      raftlog export s3://audit/cluster-1 --follow --publish-interval 60 --compact
    """
    from raftlog.ops.export_cursor import keep_cursor
    from raftlog.segments.checkpoints import CHECKPOINT_RECORDS
    from raftlog.segments.export import PUBLISH_INTERVAL_S, PublishPolicy
    from raftlog.segments.files import open_place
    from raftlog.segments.verify import verify_export
    from raftlog.segments.writer import MAX_SEGMENT_RECORDS

    if keep_following and directory is not None:
        raise ConfigError(
            "--follow goes with a running cluster: a stopped node's directory does not grow"
        )
    if not keep_following and (publish_interval is not None or publish_records is not None):
        raise ConfigError(
            "--publish-interval and --publish-records go with --follow: without it, all is"
            " published once"
        )
    place = open_place(target)
    every = CHECKPOINT_RECORDS if checkpoints is None else checkpoints
    signer = None
    if sign is not None:
        from raftlog.segments.signing import load_signer

        signer = load_signer(sign)
    stop = StopOnSignal()
    with open_log(directory, None, partial(controllers, bootstrap_controller), timeout) as source:
        if assume_committed and isinstance(source, DirectoryLog):
            source.assume_committed()
        if directory is not None and not source.end_offset:
            raise _no_log_in(directory)
        late = begins_late(source)
        left_out = source.end_offset - source.high_watermark
        keeper = keep_cursor(cursor, source, place) if cursor else None
        published = keeper.published if keeper is not None else None
        if keep_following and isinstance(source, RunningLog):
            compact_at = COMPACT_AT if compact else 0
            policy = PublishPolicy(
                publish_interval or PUBLISH_INTERVAL_S,
                publish_records or MAX_SEGMENT_RECORDS,
                compact_at=compact_at,
                checkpoint_records=every,
            )
            telling = _telling(published, place, as_json)
            summary = _follow(source, place, policy, telling, stop, signer)
        else:
            summary = _once(source, place, published, signer, every)
        if keeper is not None:
            keeper.finish()
    if compact and not keep_following:
        _compact(place, summary, signer)
    if verify:
        verify_export(place)
    if as_json:
        # After the lines of publishes one more line.
        show = print_json_line if keep_following else print_json
        show(_document(summary, place, verified=verify))
    else:
        _show(summary, place, verified=verify)
    _warn(place, summary, late, left_out)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED)


def _once(
    source: LogSource,
    place: Place,
    published: Published | None,
    signer: ManifestSigner | None,
    checkpoint_records: int,
) -> ExportSummary:
    from raftlog.segments.export import export

    with _progress(source) as progress:
        return export(
            source,
            place,
            progress,
            state_hashes=source.said,
            published=published,
            signer=signer,
            checkpoint_records=checkpoint_records,
        )


def _follow(
    source: RunningLog,
    place: Place,
    policy: Any,
    published: Published,
    stop: StopOnSignal,
    signer: ManifestSigner | None,
) -> ExportSummary:
    from raftlog.segments.export import follow

    def waiting(why: str) -> None:
        print_error(f"raftlog: waiting: {why}" if why else "raftlog: going on")

    with stop:
        return follow(
            source,
            place,
            policy,
            stop=lambda: stop.asked,
            state_hashes=source.said,
            published=published,
            waiting=waiting,
            signer=signer,
        )


def _compact(place: Place, summary: ExportSummary, signer: ManifestSigner | None) -> None:
    from raftlog.segments.buckets import add_buckets
    from raftlog.segments.compact import compact
    from raftlog.segments.writer import ExportWriter

    with ExportWriter(place, summary.cluster_id, summary.generation, signer=signer) as writer:
        compact(writer)
        add_buckets(writer)


def _telling(also: Published | None, place: Place, as_json: bool) -> Published:
    """One line a publish of something new, and what else is to be done then."""
    told = -1

    def published(manifest: Manifest) -> None:
        nonlocal told
        if also is not None:
            also(manifest)
        end = manifest.end_offset
        if end == told:
            # What nodes have said meanwhile of the same records, or small files merged.
            return
        told = end
        if as_json:
            print_json_line(
                {"directory": str(place), "end_offset": end, "exported_at": manifest.exported_at}
            )
        else:
            print_line(f"{place}: published up to offset {end - 1}")

    return published


def _no_log_in(directory: Path) -> ConfigError:
    return ConfigError(
        f"there is no log in {directory}: a broker keeps none, and a controller none before its"
        " first start. Give a controller's data directory, or ask the running cluster"
    )


def _warn(place: Place, summary: ExportSummary, late: str, left_out: int) -> None:
    """What is not as somebody may think. ``left_out``: records at the end of the log."""
    if late and summary.history_begin:
        print_error(f"{late}; so does this export")
    if left_out:
        print_error(
            f"left out: {counted(left_out, 'record')} at the end of which this log alone does not"
            " prove that they are committed (see --assume-committed)"
        )
    if summary.not_folded:
        print_error(
            f"WARNING: {place} gets no more checkpoints, as its log does not fold:"
            f" {summary.not_folded}"
        )


def _document(summary: ExportSummary, place: Place, *, verified: bool) -> dict[str, Any]:
    """What --json prints."""
    return {
        "directory": str(place),
        **asdict(summary),
        "records": summary.records,
        "verified": verified,
    }


def _show(summary: ExportSummary, place: Place, *, verified: bool) -> None:
    with_checkpoints = (
        f", {counted(summary.checkpoints, 'checkpoint')}" if summary.checkpoints else ""
    )
    print_line(
        f"{place}: {counted(summary.records, 'new record')} (offsets {summary.first_offset} to"
        f" {summary.end_offset - 1}){with_checkpoints}"
        if summary.records
        else f"{place}: nothing new, it ends before offset {summary.end_offset}"
    )
    if verified:
        print_line("verified: every checksum, hash and offset")


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
