"""``benchmarks/run replay``: histories of each size, and all sides on each, one after the other."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console

from benchmarks.replay import tables
from benchmarks.replay.watch import Side, watch
from raftlog.segments.manifest import read_manifest
from simulation.generate.schedule import SKEWS

SIDES = {
    "Spark": "benchmarks.replay.spark_side",
    "local": "benchmarks.replay.local_side",
    "pyarrow": "benchmarks.replay.arrow_side",
    "DuckDB": "benchmarks.replay.duckdb_side",
}
NEEDS_BYTES_A_RECORD = 150
"""Disk space needed per record, in bytes: raw files, Parquet, and Spark's shuffle files."""

Result = dict[str, Any]


def history(directory: Path, records: int, skew: str, *, seed: int = 1) -> tuple[Path, Result]:
    """Return an export of a generated history, which is kept for the next run; and the cost of
    generating it, if it is new.
    """
    target = directory / f"{records}-{skew}-{seed}"
    said = target.with_suffix(".json")
    if said.exists() and target.exists():
        return target, json.loads(said.read_text())
    shutil.rmtree(target, ignore_errors=True)
    needed = records * NEEDS_BYTES_A_RECORD
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise typer.BadParameter(
            f"{records:,} records need about {needed >> 20:,} MB on {directory}, but only"
            f" {free >> 20:,} MB are free"
        )
    words = [
        "-m",
        "simulation.generate",
        str(target),
        "--records",
        str(records),
        "--skew",
        skew,
        "--seed",
        str(seed),
    ]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    made = json.loads(done.stdout) | {"seconds": time.monotonic() - began}
    said.write_text(json.dumps(made))
    return target, made


def measure(directory: Path, wanted: list[str], limit_s: float) -> dict[str, Side]:
    """Measure all sides on one export. Raises RuntimeError when their answers differ."""
    sides = {
        name: watch(module, [str(directory), *wanted], limit_s=limit_s)
        for name, module in SIDES.items()
    }
    ours = sides["Spark"].steps
    for name, side in sides.items():
        for step, measured in side.steps.items():
            if step in ours and measured.answer != ours[step].answer:
                raise RuntimeError(
                    f"{step}: {name} answers {measured.answer}, but Spark answers {ours[step].answer}"
                )
    return sides


def run(
    sizes: list[int], skews: list[str], directory: Path, wanted: list[str], limit_s: float
) -> list[Result]:
    """Return one result for each history."""
    results = []
    for records in sizes:
        for skew in skews:
            export, made = history(directory, records, skew)
            print(f"measuring {records:,} records, skew {skew}", file=sys.stderr, flush=True)
            sides = measure(export, wanted, limit_s)
            said = sides["Spark"].steps.get("fold")
            if said is not None and said.answer != made["state_hash"]:
                raise RuntimeError(
                    f"the fold has {said.answer}, but the history has {made['state_hash']}"
                )
            results.append(
                {
                    "records": read_manifest(export).end_offset,
                    "skew": skew,
                    "made": {name: made[name] for name in ("seconds", "records", "bytes")},
                    "sides": {name: tables.plain(side) for name, side in sides.items()},
                }
            )
    return results


def main(
    records: Annotated[
        list[int] | None, typer.Option(help="Number of records; may be repeated.")
    ] = None,
    skew: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(SKEWS)}; may be repeated.")
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(help="Only this step; may be repeated. See the tables for their names."),
    ] = None,
    limit_s: Annotated[
        float, typer.Option(help="Time limit for one side on one history, in seconds.")
    ] = 1800.0,
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory for the histories, which are kept.")
    ] = Path(".raftlog/replay"),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure scan, fold, SQL and jobs of the replay with Spark, compared with one process of
    pyarrow and DuckDB, on generated histories.
    """
    machine = {
        "cores": psutil.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / (1 << 30)),
        "load": round(psutil.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    results = run(records or [1_000_000], skew or ["none"], directory, step or [], limit_s)
    if as_json:
        print(json.dumps({"machine": machine, "results": results}, indent=1))
    else:
        tables.show(machine, results, Console(width=None if sys.stdout.isatty() else 150))
    sides = [side for result in results for side in result["sides"].values()]
    if any(side["failed"] or side["complaints"] for side in sides):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
