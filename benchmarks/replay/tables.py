"""Tables of the results."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.replay.watch import Side

PEERS = ("local", "pyarrow", "DuckDB")
_APART = ("start of Spark", "first job")
"""Steps that a session performs once, whatever the number of records."""

Result = dict[str, Any]


def plain(side: Side) -> Result:
    """Return a side in its JSON form."""
    steps = {
        name: {k: v for k, v in asdict(step).items() if k != "answer"}
        for name, step in side.steps.items()
    }
    return {"steps": steps, "over": side.over, "failed": side.failed, "complaints": side.complaints}


def show(machine: Result, results: list[Result], console: Console) -> None:
    """Print a table for each history, and how the cost grows between them."""
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for result in results:
        console.print(_one(result))
        for name, side in result["sides"].items():
            if side["over"]:
                console.print(
                    f"{name} was ended in step {side['over']!r}: it took longer than --limit-s"
                )
            if side["failed"]:
                console.print(f"{name} failed in step {side['failed']!r}: see its trace above")
            for complaint in side["complaints"]:
                console.print(f"{name}: {complaint}")
    even = [result for result in results if result["skew"] == "none"]
    if len(even) > 1:
        console.print(_growth(even))
    if len(even) < len(results):
        console.print(_skewed(results))


def _one(result: Result) -> Table:
    records, made = result["records"], result["made"]
    each = {kind: size / records for kind, size in made["bytes"].items()}
    title = (
        f"{records:,} records, skew {result['skew']}: made in {made['seconds']:.0f} s; "
        f"{each['raw']:.1f} bytes a record as in the log, {each['records']:.1f} as Parquet"
    )
    columns = (
        "step",
        "Spark s",
        "records/s",
        "CPU us a record",
        "peak MB",
        "peer",
        "peer s",
        "peer MB",
        "Spark / peer",
    )
    table = Table(
        *(
            Column(name, justify="left" if name in ("step", "peer") else "right")
            for name in columns
        ),
        title=title,
    )
    ours = result["sides"]["Spark"]["steps"]
    for name, step in ours.items():
        apart = name in _APART
        row = [name, f"{step['seconds']:.2f}", "" if apart else f"{records / step['seconds']:,.0f}"]
        row += [
            f"{step['cpu_s']:.1f} s" if apart else f"{step['cpu_s'] / records * 1e6:.2f}",
            f"{step['peak_mb']:.0f}",
        ]
        table.add_row(*row, *_peer(result, name, step["seconds"]))
    return table


def _peer(result: Result, name: str, seconds: float) -> list[str]:
    for peer in PEERS:
        theirs = result["sides"][peer]["steps"].get(name)
        if theirs is not None:
            ratio = theirs["seconds"] / seconds
            return [peer, f"{theirs['seconds']:.2f}", f"{theirs['peak_mb']:.0f}", f"{ratio:.2f}"]
    return [""] * 4


def _growth(results: list[Result]) -> Table:
    """Return a table of the time per record, each size relative to the previous one: 1 is
    linear.
    """
    pairs = list(pairwise(results))
    heads = [
        f"{small['records'] / 1e6:.3g} → {large['records'] / 1e6:.3g} M" for small, large in pairs
    ]
    table = Table(
        "step",
        *(Column(head, justify="right") for head in heads),
        title="Time a record, against the size before",
    )
    for name in results[-1]["sides"]["Spark"]["steps"]:
        if name not in _APART:
            table.add_row(name, *(ratio(small, large, name) for small, large in pairs))
    return table


def ratio(one: Result, other: Result, name: str) -> str:
    times = [each["sides"]["Spark"]["steps"].get(name, {}).get("seconds") for each in (one, other)]
    if None in times:
        return ""
    return f"{(times[1] / other['records']) / (times[0] / one['records']):.2f}"


def even_of(results: list[Result], skewed: Result) -> Result | None:
    """Return the even history of the same size, within a batch or two, or None."""
    near = skewed["records"] * 0.02
    even = (each for each in results if each["skew"] == "none")
    return next((each for each in even if abs(each["records"] - skewed["records"]) < near), None)


def _skewed(results: list[Result]) -> Table:
    """Return a table of the time per record of a skewed history, relative to the even one of its
    size.
    """
    found = ((even_of(results, result), result) for result in results if result["skew"] != "none")
    pairs = [(even, result) for even, result in found if even is not None]
    heads = [f"{result['records'] / 1e6:.3g} M, hot {result['skew']}" for _, result in pairs]
    table = Table(
        "step",
        *(Column(head, justify="right") for head in heads),
        title="Time a record, against the even case",
    )
    for name in results[-1]["sides"]["Spark"]["steps"]:
        if name not in _APART:
            table.add_row(name, *(ratio(base, result, name) for base, result in pairs))
    return table
