"""Formatting of results: figures and times (UTC) as text, and tables described once for both the
terminal and the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from raftlog.safe_console import SafeConsole
from raftlog.text import moment as utc_moment

_DAY_MS = 86_400_000
_UNITS = ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"))


def duration(ms: int | None) -> str:
    """Return a duration in at most two units, such as 12 ms, 9.25 s, 3 min 20 s, 2 h 5 min or 40 d,
    or ``unknown`` for None.
    """
    if ms is None:
        return "unknown"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    for at, (unit_ms, unit) in enumerate(_UNITS):
        if ms >= unit_ms:
            whole, rest = divmod(ms, unit_ms)
            smaller_ms, smaller = _UNITS[at + 1] if at + 1 < len(_UNITS) else (1000, "s")
            left = rest // smaller_ms
            return f"{whole} {unit} {left} {smaller}" if left else f"{whole} {unit}"
    raise AssertionError(ms)


def between(least_ms: int, most_ms: int | None) -> str:
    """Return a duration given by its lower and upper bound; ``most_ms`` is None if there is no
    upper bound.
    """
    if most_ms is None:
        return f"{duration(least_ms)} or more" if least_ms else "unknown"
    if least_ms == most_ms:
        return duration(most_ms)
    return f"{duration(least_ms)} to {duration(most_ms)}" if least_ms else f"≤ {duration(most_ms)}"


def percent(share: float) -> str:
    """Return a percentage with enough digits to distinguish it from 100, such as 99.5 % or 99.9987
    %.
    """
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    digits = next((count for count in range(2, 8) if 100 - share >= 10.0**-count), 7) + 1
    return f"{share:.{digits}f}".rstrip("0").rstrip(".") + " %"


def size(count: float) -> str:
    """Format a number of bytes, such as 512 B, 1.5 KiB or 20 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def more(shown: int, total: int) -> str:
    """Return a suffix that says how to see the rest of a shortened list, or "" for a complete
    list.
    """
    return f" ({shown} shown: raise --limit for more)" if shown < total else ""


def console(width: int | None = None) -> Console:
    """Return a console that prints text from the log literally: a topic named "[red]" is not
    markup, and "topic:a:key" contains no emoji.
    """
    return SafeConsole(width=width, markup=False, emoji=False)


def micros(microseconds: int) -> str:
    """Return a duration in microseconds as text, with three digits; below a second in
    milliseconds.
    """
    if microseconds >= 1_000_000:
        return duration(round(microseconds / 1000))
    return f"{microseconds / 1000:.3g} ms"


def moment(at_ms: int) -> str:
    """Format a time in UTC, such as 2026-11-21 09:24:48."""
    return f"{utc_moment(at_ms):%Y-%m-%d %H:%M:%S}"


def format_time(at_ms: int) -> str:
    """Format a time in UTC with its zone, such as 2026-11-21 09:24:48Z."""
    return f"{moment(at_ms)}Z"


def format_moment(at_ms: int) -> str:
    """Format a time in UTC with milliseconds and zone, such as 2026-11-21 09:24:48.120Z."""
    return f"{moment(at_ms)}.{at_ms % 1000:03}Z"


def clock(at_ms: int) -> str:
    """Format the time of day in UTC, such as 09:24:48."""
    return f"{utc_moment(at_ms):%H:%M:%S}"


def precise_clock(at_ms: int) -> str:
    """Format the time of day in UTC with milliseconds, such as 09:24:48.120."""
    return f"{clock(at_ms)}.{at_ms % 1000:03}"


def period(begins_ms: int, ends_ms: int) -> str:
    """Format a period; its date appears once if it begins and ends on the same day."""
    if begins_ms // _DAY_MS == ends_ms // _DAY_MS:
        return f"{moment(begins_ms)} – {clock(ends_ms)}"
    return f"{moment(begins_ms)} – {moment(ends_ms)}"


def number(value: float | None) -> str:
    """Format a number, such as 12,345, or a dash for None."""
    return "–" if value is None else f"{value:,.0f}"


def plural(value: int, one: str, many: str = "") -> str:
    """Format a count with its noun, such as 1 broker or 2 brokers."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


TEXT, FIXED, NUMBER = "text", "fixed", "number"
"""Column kinds: text that may wrap, text that may not, and numbers."""


class Field(NamedTuple):
    """A column of a table: its name, its value (an attribute name or a function of the row), how to
    format the value, and its kind.
    """

    name: str
    of: str | Callable[[Any], Any]
    words: Callable[[Any], str] = str
    kind: str = NUMBER


class Listing(NamedTuple):
    """A table. ``columns``: name -> kind. ``rows``: the first of ``total`` rows. ``note``: an
    explanation of some columns.
    """

    title: str
    columns: dict[str, str]
    rows: Sequence[tuple[str, ...]]
    total: int = 0
    note: str = ""

    @property
    def rest(self) -> str:
        """A hint on how to see the omitted rows, or "" if none were omitted."""
        return more(len(self.rows), self.total).strip(" ()")

    def table(self) -> Table:
        """Return the table for a terminal."""
        columns = (
            Column(name, no_wrap=kind == FIXED, overflow="fold")
            for name, kind in self.columns.items()
        )
        caption = "\n".join(line for line in (self.note, self.rest) if line)
        found = Table(*columns, title=self.title or None, caption=caption or None)
        for row in self.rows:
            found.add_row(*row)
        return found


def listing(
    title: str, rows: Iterable[Any], *fields: Field, total: int = 0, note: str = ""
) -> Listing:
    """Return a table of the given fields of rows."""
    getters = [
        (attrgetter(field.of) if isinstance(field.of, str) else field.of, field.words)
        for field in fields
    ]
    return Listing(
        title,
        {field.name: field.kind for field in fields},
        [tuple(words(of(row)) for of, words in getters) for row in rows],
        total,
        note,
    )


def print_listings(listings: Iterable[Listing], console: Console) -> None:
    """Print the tables that have rows."""
    for each in listings:
        if each.rows:
            console.print(each.table())
