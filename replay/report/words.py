"""Moments and counts as people read them, beside :mod:`replay.text`. Everything in UTC."""

from __future__ import annotations

from raftlog.text import moment as utc_moment

_DAY_MS = 86_400_000


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
