"""Figures and moments in words, for people; moments in UTC."""

from __future__ import annotations

from rich.console import Console

from raftlog.safe_console import SafeConsole
from raftlog.text import moment as utc_moment

_DAY_MS = 86_400_000
_UNITS = ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"))


def duration(ms: int | None) -> str:
    """Return a duration with two units at most: 12 ms, 9.25 s, 3 min 20 s, 2 h 5 min, 40 d;
    ``unknown`` for None.
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
    """Return a duration that is known by bounds; ``most_ms`` None: by none above."""
    if most_ms is None:
        return f"{duration(least_ms)} or more" if least_ms else "unknown"
    if least_ms == most_ms:
        return duration(most_ms)
    return f"{duration(least_ms)} to {duration(most_ms)}" if least_ms else f"≤ {duration(most_ms)}"


def percent(share: float) -> str:
    """Return a share near to 100 with the digits that tell it apart from 100: 99.5 %, 99.9987 %."""
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    digits = next((count for count in range(2, 8) if 100 - share >= 10.0**-count), 7) + 1
    return f"{share:.{digits}f}".rstrip("0").rstrip(".") + " %"


def size(count: float) -> str:
    """Bytes: 512 B, 1.5 KiB, 20 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def more(shown: int, total: int) -> str:
    """Behind a list that was cut short: how to see the rest."""
    return f" ({shown} shown: raise --limit for more)" if shown < total else ""


def console(width: int | None = None) -> Console:
    """Return a console that prints names and values from the log as they are: a topic "[red]" is no
    markup, and "topic:a:key" no emoji.
    """
    return SafeConsole(width=width, markup=False, emoji=False)


def micros(microseconds: int) -> str:
    """Return a short duration: below a second in milliseconds, three digits."""
    if microseconds >= 1_000_000:
        return duration(round(microseconds / 1000))
    return f"{microseconds / 1000:.3g} ms"


def moment(at_ms: int) -> str:
    """2026-11-21 09:24:48."""
    return f"{utc_moment(at_ms):%Y-%m-%d %H:%M:%S}"


def clock(at_ms: int) -> str:
    """09:24:48."""
    return f"{utc_moment(at_ms):%H:%M:%S}"


def precise_clock(at_ms: int) -> str:
    """09:24:48.120."""
    return f"{clock(at_ms)}.{at_ms % 1000:03}"


def period(begins_ms: int, ends_ms: int) -> str:
    """Return a period in words; the date once if both ends have the same."""
    if begins_ms // _DAY_MS == ends_ms // _DAY_MS:
        return f"{moment(begins_ms)} – {clock(ends_ms)}"
    return f"{moment(begins_ms)} – {moment(ends_ms)}"


def number(value: float | None) -> str:
    """12,345; None: a dash."""
    return "–" if value is None else f"{value:,.0f}"


def plural(value: int, one: str, many: str = "") -> str:
    """1 broker, 2 brokers."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"
