"""Figures in words, for people."""

from __future__ import annotations

from rich.console import Console

from raftlog.safe_console import SafeConsole

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


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
