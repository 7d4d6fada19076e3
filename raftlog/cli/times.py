"""Times and spans as people type them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d|w)")
_UNIT_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?Z?")

Since = Annotated[
    str,
    typer.Option("--since", metavar="SPAN", help="From so long ago on: 90s, 15m, 1h, 7d."),
]
From = Annotated[
    str,
    typer.Option("--from", metavar="TIME", help="From then on (UTC): 2026-01-31T12:00:00Z, 12:00."),
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Until then. Default: now.")]


def now_ms() -> int:
    """The wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def parse_span_ms(text: str) -> int:
    """``90s``, ``1h30m``, ``7d``. Raises BadParameter."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(f"{text!r} is no span of time like 90s, 15m, 1h or 7d")
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def parse_when_ms(text: str, now: int) -> int:
    """A time as ISO 8601, as a clock's (the last time that it showed that), or as milliseconds, in
    UTC where nothing else is said. Raises BadParameter.
    """
    if text.isdigit() and len(text) > 8:
        return int(text)
    try:
        if _CLOCK.fullmatch(text):
            today = datetime.fromtimestamp(now / 1000, UTC)
            clock = datetime.strptime(text.rstrip("Z").split(".")[0], _clock_format(text))
            found = today.replace(
                hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0
            )
            if found > today:
                found -= timedelta(days=1)
        else:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time like 2026-01-31T12:00:00Z or 12:00:30"
        ) from None
    return round(found.timestamp() * 1000)


def period_ms(
    since: str, begin: str, end: str, default_ms: int, *, now: int | None = None
) -> tuple[int, int]:
    """What --since, --from and --to say, as (from, to); ``now``: what they count from.

    Raises BadParameter.
    """
    now = now_ms() if now is None else now
    if since and begin:
        raise typer.BadParameter("give either --since or --from, not both")
    until = parse_when_ms(end, now) if end else now
    if begin:
        first = parse_when_ms(begin, now)
    else:
        first = until - (parse_span_ms(since) if since else default_ms)
    if first >= until:
        raise typer.BadParameter("the period ends before it begins")
    return first, until


def _clock_format(text: str) -> str:
    return "%H:%M:%S" if text.count(":") == 2 else "%H:%M"
