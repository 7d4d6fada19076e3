"""``scripts/generate``: an export of a generated history."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from raftlog.errors import RaftlogError
from raftlog.text import counted
from replay.errors import EXIT_INPUT
from simulation.generate.schedule import SKEWS, Profile

if TYPE_CHECKING:
    from simulation.generate.history import GeneratedHistory

app = typer.Typer(add_completion=False)


@app.command("scripts/generate")
def generate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    records: Annotated[
        int, typer.Option(min=1, help="Number of records; the last batch may exceed it.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The same seed and options give the same bytes.")] = 1,
    brokers: Annotated[int, typer.Option(min=1, max=1000, help="Number of brokers.")] = 12,
    racks: Annotated[int, typer.Option(min=1, help="Number of racks.")] = 3,
    topics: Annotated[int, typer.Option(min=1, help="Number of permanent topics.")] = 250,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, help="Mean partitions of a topic.")
    ] = 8,
    skew: Annotated[
        str,
        typer.Option(
            help=(
                f"One of {', '.join(SKEWS)}: half of the incidents on one broker, or half the"
                " partitions in one topic."
            )
        ),
    ] = "none",
    incidents: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the incidents to FILE as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Generate the metadata history of a cluster that never existed, and write it as an export.

    \b
    Examples:
      scripts/generate made-up --records 1000000
      scripts/generate large --records 10000000 --brokers 30 --incidents incidents.json
    """  # noqa: D301
    if skew not in SKEWS:
        raise typer.BadParameter(f"--skew {skew} is none of {', '.join(SKEWS)}")
    from simulation.generate.history import write_export

    profile = Profile(
        seed=seed, brokers=brokers, racks=racks, topics=topics, partitions=partitions, skew=skew
    )
    began = time.monotonic()
    try:
        with _bar(records) as progress:
            history, manifest = write_export(directory, profile, records, progress)
        if incidents is not None:
            incidents.write_bytes(
                msgspec.json.format(msgspec.json.encode(history.incidents), indent=1)
            )
    except (RaftlogError, OSError) as error:
        print(f"scripts/generate: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_INPUT) from error
    seconds = time.monotonic() - began
    sizes = {
        kind: sum(each.bytes for each in manifest.of_kind(kind)) for kind in ("raw", "records")
    }
    if as_json:
        document = msgspec.to_builtins(history)
        counted: dict[str, Any] = {
            "incidents": history.count_incidents(),
            "bytes": sizes,
            "seconds": round(seconds, 2),
        }
        print(msgspec.json.format(msgspec.json.encode(document | counted), indent=2).decode())
    else:
        _show(directory, history, sizes, seconds)


@contextmanager
def _bar(records: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("generating", total=records)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(
    directory: Path, history: GeneratedHistory, sizes: dict[str, int], seconds: float
) -> None:
    table = Table(show_header=False)
    table.add_row("export", str(directory))
    table.add_row("records", f"{history.records:,} of {history.days:.1f} days, in {seconds:.1f} s")
    each = {kind: size / history.records for kind, size in sizes.items()}
    table.add_row(
        "bytes a record", f"{each['raw']:.1f} as in the log, {each['records']:.1f} as Parquet"
    )
    sizes_at_end = (
        ("broker", history.brokers),
        ("topic", history.topics),
        ("partition", history.partitions),
    )
    parts = [counted(count, what) for what, count in sizes_at_end]
    table.add_row("at the end", ", ".join([*parts, f"epoch {history.epochs}"]))
    table.add_row(f"state hash at {history.records - 1}", history.state_hash)
    for kind, count in history.count_incidents().items():
        table.add_row(kind, str(count))
    Console().print(table)


if __name__ == "__main__":
    app(prog_name="scripts/generate")
