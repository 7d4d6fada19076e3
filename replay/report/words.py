"""Numbers as people read them: durations, moments, counts, shares. Everything in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

_DAY_MS = 86_400_000


def duration(length_ms: float | None) -> str:
    """84 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h; None: a dash."""
    if length_ms is None:
        return "–"
    if length_ms < 1000:
        return f"{length_ms:.0f} ms"
    if length_ms < 59_950:
        return f"{length_ms / 1000:.1f}".removesuffix(".0") + " s"
    seconds = round(length_ms / 1000)
    for unit, name, smaller, smaller_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            rest = seconds % unit // smaller
            return f"{seconds // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{seconds} s"


def moment(at_ms: int) -> str:
    """2026-11-21 09:24:48."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def clock(at_ms: int) -> str:
    """09:24:48."""
    return f"{_utc(at_ms):%H:%M:%S}"


def period(begins_ms: int, ends_ms: int) -> str:
    """From when to when; the date once if both have the same."""
    if begins_ms // _DAY_MS == ends_ms // _DAY_MS:
        return f"{moment(begins_ms)} – {clock(ends_ms)}"
    return f"{moment(begins_ms)} – {moment(ends_ms)}"


def number(value: float | None) -> str:
    """12,345; None: a dash."""
    return "–" if value is None else f"{value:,.0f}"


def plural(value: int, one: str, many: str = "") -> str:
    """1 broker, 2 brokers."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def share(part: float) -> str:
    """Of one, in percent, with as many nines as are true: never rounded up to 100 %."""
    if part >= 1:
        return "100 %"
    digits = 2
    while digits < 6 and round(part * 100, digits) >= 100:
        digits += 1
    floored = int(part * 100 * 10**digits) / 10**digits
    return f"{floored:.{digits}f} %"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
