"""Times and spans as people type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from raftlog.cli.options import opt

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

Since = Annotated[str, opt("--since SPAN", "From so long before the end on: 90s, 15m, 1h, 7d.")]
From = Annotated[str, opt("--from TIME", "From then on (UTC): 2026-01-31T12:00:00Z, 12:00.")]
To = Annotated[str, opt("--to TIME", "Until then. Default: to the end.")]
FOR_EVER_MS = 1 << 62


def parse_span_ms(text: str) -> int:
    """``90s``, ``1h30m``, ``7d``. Raises BadParameter."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(f"{text!r} is no span of time like 90s, 15m, 1h or 7d")
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def parse_when_ms(text: str, now_ms: Callable[[], int]) -> int:
    """A time as ISO 8601, as a clock's (the last time that it showed that), or as milliseconds, in
    UTC where nothing else is said. Raises BadParameter.

    ``now_ms`` is asked for a clock's only.
    """
    if text.isdigit() and len(text) > 8:
        return int(text)
    try:
        if _CLOCK.fullmatch(text):
            today = datetime.fromtimestamp(now_ms() / 1000, UTC)
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


@dataclass(frozen=True, slots=True)
class Period:
    """The period that --since, --from and --to name.

    ``default``: the span where there is neither --since nor --from; empty: from the beginning on.
    Raises BadParameter.
    """

    since: str = ""
    begin: str = ""
    end: str = ""
    default: str = ""

    def __post_init__(self) -> None:
        if self.since and self.begin:
            raise typer.BadParameter("give either --since or --from, not both")
        if self.since:
            parse_span_ms(self.since)
        for text in filter(None, (self.begin, self.end)):
            parse_when_ms(text, lambda: 0)

    @property
    def is_given(self) -> bool:
        """Whether any of the options is."""
        return bool(self.since or self.begin or self.end)

    def at(self, now_ms: Callable[[], int]) -> tuple[int, int]:
        """Return its first and last millisecond; FOR_EVER_MS: it goes to the end.

        ``now_ms``: the time by the clock that the log and the journals go by, never that of the
        machine that reads them [one whose clock is behind would see nothing of the last seconds].
        It is asked only if it matters. Raises BadParameter.
        """
        last_ms = parse_when_ms(self.end, now_ms) if self.end else FOR_EVER_MS
        span = self.since or self.default
        if self.begin:
            first_ms = parse_when_ms(self.begin, now_ms)
        elif span:
            first_ms = (last_ms if self.end else now_ms()) - parse_span_ms(span)
        else:
            first_ms = 0
        if first_ms >= last_ms:
            raise typer.BadParameter("the period ends before it begins")
        return first_ms, last_ms


def _clock_format(text: str) -> str:
    return "%H:%M:%S" if text.count(":") == 2 else "%H:%M"
