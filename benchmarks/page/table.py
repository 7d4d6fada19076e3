"""The results of all runs as a table: medians, spreads, ratios, and failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.page.figures import ENTRIES, Entry, Figure, dig

NONE = ""


@dataclass(slots=True)
class Side:
    """The results of one side for a workload, one per run, and the reasons for failed runs."""

    results: list[Any] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    """The floor measured with each result in ms, for a workload that is compared with it."""

    @property
    def runs(self) -> int:
        """Number of runs, including failed ones."""
        return len(self.results) + len(self.failures)


@dataclass(slots=True)
class Measured:
    """Both sides, with the machine's limits at each run of raftlog's."""

    ours: Side = field(default_factory=Side)
    theirs: Side = field(default_factory=Side)
    limits: list[Mapping[str, float]] = field(default_factory=list)


Row = tuple[str, str, str, str, str]
"""Name, description, raftlog's figure, the peer's, ratio."""


def number(value: float) -> str:
    """Return a number with about three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(values: Sequence[float]) -> str:
    """Return the median, followed by the smallest and the largest in brackets if there are
    several.
    """
    if not values:
        return NONE
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def ratio(ours: Sequence[float], theirs: Sequence[float], better: str) -> str:
    """Return the ratio of two medians; above 1, raftlog is better than the peer."""
    if not ours or not theirs or not better:
        return NONE
    above, below = median(ours), median(theirs)
    if better == "less":
        above, below = below, above
    found = above / below if below else math.inf
    return f"{found:.2f}" if math.isfinite(found) else NONE


def rows(name: str, entry: Entry, measured: Measured) -> list[Row]:
    """Return the rows of one workload; the first row has its name and title."""
    found: list[Row] = [
        ("", figure.label, *_cells(figure, measured))
        for figure in entry.figures
        if _is_anywhere(figure, measured)
    ]
    if entry.floor_of is not None and measured.ours.floors:
        found.append(_times_the_floor(entry.floor_of, measured))
    failed = [_failures(side) for side in (measured.ours, measured.theirs)]
    if any(failed):
        found.append(("", "runs that failed", failed[0], failed[1], ""))
    if not found:
        found.append(("", "nothing was measured", "", "", ""))
    return [(name, f"**{entry.title}**", "", "", ""), *found]


def _times_the_floor(figure: Figure, measured: Measured) -> Row:
    ours, theirs = (
        [value / median(side.floors) for value in _values(side, path)] if side.floors else []
        for side, path in ((measured.ours, figure.ours), (measured.theirs, figure.theirs))
    )
    floor = number(median([*measured.ours.floors, *measured.theirs.floors]))
    label = f"{figure.label.removesuffix(' ms')} as a multiple of the floor of {floor} ms"
    return "", label, cell(ours), cell(theirs), ratio(ours, theirs, figure.better)


def _values(side: Side, path: tuple[str | int, ...]) -> list[float]:
    found = (dig(result, path) for result in side.results)
    return [value for value in found if value is not None]


def _is_anywhere(figure: Figure, measured: Measured) -> bool:
    """Return whether either side has a number for the figure; otherwise it gets no row."""
    return bool(_values(measured.ours, figure.ours) or _values(measured.theirs, figure.theirs))


def _cells(figure: Figure, measured: Measured) -> tuple[str, str, str]:
    ours, theirs = _values(measured.ours, figure.ours), _values(measured.theirs, figure.theirs)
    return (
        cell(ours) or ("failed" if measured.ours.failures else NONE),
        cell(theirs) or ("failed" if figure.theirs and measured.theirs.failures else NONE),
        ratio(ours, theirs, figure.better),
    )


def _failures(side: Side) -> str:
    if not side.failures:
        return NONE
    return f"{len(side.failures)} of {side.runs}: {side.failures[-1]}"


def all_rows(measured: Mapping[str, Measured]) -> list[Row]:
    """Return the rows of all measured workloads, in the order of the page."""
    return [
        row
        for name, entry in ENTRIES.items()
        if name in measured
        for row in rows(name, entry, measured[name])
    ]


def markdown(measured: Mapping[str, Measured], seconds: float, peer: str | None) -> str:
    """Return the table, preceded by a description of how it was measured."""
    head = ("", "workload", "raftlog", peer or "", "ratio")
    body = [head, ("---",) * 5, *all_rows(measured)]
    columns = 3 if peer is None else 5
    lines = ["| " + " | ".join(map(_escaped, row[:columns])) + " |" for row in body]
    return "\n".join([*_notes(measured, seconds, peer), "", *lines])


def _notes(measured: Mapping[str, Measured], seconds: float, peer: str | None) -> Iterable[str]:
    counts = ", ".join(f"{name} {_runs(one, peer)}" for name, one in measured.items())
    beside = f", raftlog and {peer} in turn" if peer else ""
    yield (
        f"Medians (smallest–largest) of runs of {seconds:g} s on fresh nodes{beside}; one number:"
        f" one run. Ratios are of medians; above 1 raftlog is better. Runs: {counts}."
    )
    limits: dict[str, list[float]] = {}
    for one in measured.values():
        for each in one.limits:
            for name, value in each.items():
                limits.setdefault(name, []).append(value)
    said = "; ".join(f"{name.replace('_', ' ')} {cell(values)}" for name, values in limits.items())
    if said:
        yield f"Limits of the machine in these runs: {said}."


def _runs(measured: Measured, peer: str | None) -> str:
    ours, theirs = len(measured.ours.results), len(measured.theirs.results)
    return f"{ours} and {theirs}" if peer and theirs else str(ours)


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
