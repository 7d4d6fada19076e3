"""The tables printed by ``benchmarks/run profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.profile.attribution import IDLE, KERNEL, Profile, binaries
from benchmarks.profile.perf import KINDS

ROLES = ("leader", "follower", "client")


def show(
    workload: str,
    plain: Mapping[str, Any],
    profiled_per_s: int,
    profiles: Mapping[str, Profile],
    lacking: Sequence[str],
    console: Console,
) -> None:
    """Print both tables, and their uncertainties."""
    title = f"{workload}: microseconds of CPU a write, by stage"
    console.print(title)
    console.print(_table(stage_rows(profiles)))
    sampled = {
        role: binaries(samples, plain["cpu_us"][role], KINDS)
        for role, samples in plain["samples"].items()
        if sum(samples.values())
    }
    if len(sampled) == len(ROLES):
        counts = ", ".join(f"{role} {sum(plain['samples'][role].values())}" for role in ROLES)
        rows = [(kind, [sampled[role][kind] for role in ROLES]) for kind in (*KINDS, "other")]
        title = f"{workload}: the same CPU by binary, plain run (perf; samples: {counts})"
        console.print(title)
        console.print(_table([(name, _numbers(found)) for name, found in rows]))
    else:
        console.print("No table by binary: perf took no samples on this machine.")
    console.print(
        f"Writes/s: plain run {plain['writes_per_s']:,}, run by stage {profiled_per_s:,}. Stages "
        "are"
        " self times in CPU of the loop's thread, without the wrappers' own cost; the follower's"
        " column is the mean of both."
    )
    if lacking:
        console.print(f"Not in this build, so part of their callers: {', '.join(lacking)}")


def stage_rows(
    profiles: Mapping[str, Profile],
) -> list[tuple[str, list[str]]]:
    """Return rows with one cell per role, empty for a stage that the role lacks."""
    names = list(dict.fromkeys(name for role in ROLES for name in profiles[role].rows))
    shared = [name for name in names if all(name in profiles[role].rows for role in ROLES)]
    rows = [
        (name, [_cell(profiles[role].rows.get(name)) for role in ROLES])
        for name in [*(name for name in names if name not in shared), *shared]
    ]
    of = [profiles[role] for role in ROLES]
    return [
        *rows,
        ("sum", _numbers([one.total for one in of])),
        ("the process in slices without measuring", _numbers([one.unmeasured for one in of])),
        (
            "sum against these",
            [f"{100 * (one.total / max(1e-9, one.unmeasured) - 1):+.0f} %" for one in of],
        ),
        (KERNEL, [f"{one.kernel:.1f} ± {one.kernel_error:.1f}" for one in of]),
        (IDLE, _numbers([one.idle for one in of])),
        (
            "taken off: the wrappers (times warm cost)",
            [f"{one.overhead:.1f} ({one.factor:.1f})" for one in of],
        ),
    ]


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"


def _numbers(numbers: Sequence[float]) -> list[str]:
    return [f"{number:.1f}" for number in numbers]


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = Table()
    table.add_column("")
    for role in ROLES:
        table.add_column(role, justify="right")
    for name, cells in rows:
        table.add_row(name, *cells)
    return table
