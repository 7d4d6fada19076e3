"""``benchmarks/run all``: every workload on the page, for raftlog and the peer in turn, as one
table.

Each run is a separate process with fresh nodes, for both sides. The table names failures; the other
runs continue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.limits import floor
from benchmarks.page.figures import ENTRIES, REPEATED_RUNS, Entry
from benchmarks.page.table import Measured, Side, all_rows, markdown
from raftlog.errors import ConfigError

LIMIT_S = 1200.0
CLEAN_UP_S = 60.0
NOISY_PERCENT, TRIES = 8.0, 3
"""Machine usage by other processes, in percent, above which a short run is repeated, and the
maximum number of tries; the peer's script does the same.
"""
PLAIN_ERRORS = {"TYPER_STANDARD_TRACEBACK": "1", "_TYPER_STANDARD_TRACEBACK": "1"}
SAID_MAX = 200
"""Maximum length of an error in the table."""


def ours(entry: Entry, seconds: float, directory: Path) -> dict[str, Any]:
    """Make one run in a separate process. Raises RuntimeError with the end of its output."""
    command = [sys.executable, "-m", "benchmarks", entry.workload, "--json"]
    if entry.acls is not None:
        command += ["--acls", str(entry.acls)]
    child = subprocess.Popen(
        [*command, "--seconds", str(seconds), "--runs", str(entry.inner), "--dir", str(directory)],
        env={**os.environ, **entry.environment, **PLAIN_ERRORS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, error = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f"took longer than {LIMIT_S:.0f} s") from expired
    finally:
        _end(child)
    if child.returncode:
        raise RuntimeError(last_line(error) or f"ended with {child.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


def _end(child: subprocess.Popen[str]) -> None:
    """Stop a child as Ctrl-C does, so that it stops its nodes; do nothing if it has exited."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        child.communicate(timeout=CLEAN_UP_S)
    finally:
        child.kill()


def last_line(text: str) -> str:
    """Return the last line of a failed program's output, even if the error is in a box."""
    lines = [line.strip(" │╰╯─") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")[:SAID_MAX]


def attempt(side: Side, measure: Callable[[], Any]) -> None:
    """Make one more run, and record its result or the reason for its failure."""
    try:
        found = measure()
    except Exception as error:
        # A child of raftlog's side reports its own kind of error.
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        side.failures.append(f"{kind}{error}"[:SAID_MAX])
    else:
        if found is not None:
            side.results.append(found)


def is_noisy(rows: list[dict[str, Any]]) -> bool:
    """Return whether other processes used too much of the machine; False if unknown."""
    return any(row.get("cpu_of_others_percent", 0.0) >= NOISY_PERCENT for row in rows)


def measure_entry(
    name: str, seconds: float, runs: int, directory: Path, peer: str | None
) -> Measured:
    """Measure raftlog and the peer alternately."""
    entry, found = ENTRIES[name], Measured()

    def once() -> Any:
        result = ours(entry, seconds, directory)
        for _ in range(TRIES - 1 if entry.repeated else 0):
            if not is_noisy(result["ours"]):
                break
            print(f"{name}: the machine was not quiet", file=sys.stderr, flush=True)
            result = ours(entry, seconds, directory)
        found.limits.append(result["limits"])
        if entry.floor_of is not None:
            found.ours.floors.append(result["limits"]["floor_ms"])
        return result["ours"]

    def theirs() -> Any:
        if entry.floor_of is not None:
            found.theirs.floors.append(floor(directory)["floor_ms"])
        return peers.etcd(
            entry.workload,
            seconds=seconds * entry.seconds_factor,
            runs=1,
            tls=entry.acls is not None,
        )

    count = runs if entry.repeated else 1
    for number in range(count):
        print(f"{name}: run {number + 1} of {count}", file=sys.stderr, flush=True)
        attempt(found.ours, once)
        if peer is not None:
            attempt(found.theirs, theirs)
    return found


def show(measured: Mapping[str, Measured], peer: str | None) -> None:
    """Print the table to the terminal."""
    table = Table(show_lines=False)
    for column in ("", "workload", "raftlog", peer or "", "ratio"):
        table.add_column(column)
    for row in all_rows(measured):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _chosen(only: str | None) -> list[str]:
    names = [name.strip() for name in only.split(",")] if only else list(ENTRIES)
    for name in names:
        if name not in ENTRIES:
            raise typer.BadParameter(f"must be one of {', '.join(ENTRIES)}, not {name}")
    return names


def main(
    only: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(ENTRIES)}, separated by commas.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement, in seconds.")
    ] = 10.0,
    runs: Annotated[
        int, typer.Option(help="Number of runs of w1 to w4, plain and secured, per side.")
    ] = (REPEATED_RUNS),
    peer: Annotated[
        str | None, typer.Option(help="etcd: measure it alternately with raftlog, see peers.py.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="A directory on the disk to measure.")
    ] = Path(".raftlog/bench"),
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, as on the page.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Also write all results to this file, after each workload.")
    ] = None,
) -> None:
    """Measure all workloads on the page, and print its table, which also names failures."""
    if peer not in (None, "etcd"):
        raise typer.BadParameter("the only peer is etcd")
    if peer is not None:
        try:
            peers.scripts()
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
    measured: dict[str, Measured] = {}
    for name in _chosen(only):
        measured[name] = measure_entry(name, seconds, runs, directory, peer)
        if keep is not None:
            keep.write_text(_json(measured, seconds))
    if as_json:
        print(_json(measured, seconds))
    elif as_markdown:
        print(markdown(measured, seconds, peer))
    else:
        show(measured, peer)
    sides = [side for one in measured.values() for side in (one.ours, one.theirs)]
    if any(side.failures for side in sides):
        raise typer.Exit(1)


def _json(measured: Mapping[str, Measured], seconds: float) -> str:
    return json.dumps(
        {"seconds": seconds, "workloads": {name: asdict(one) for name, one in measured.items()}},
        indent=1,
    )


if __name__ == "__main__":
    typer.run(main)
