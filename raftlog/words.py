"""Lists, times and spans in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

_LAST_MS = 253_402_300_799_000


def nodes(ids: Collection[int]) -> str:
    """``node 1``, ``nodes 1 and 2``, ``nodes 1, 2 and 3``."""
    return ("node " if len(ids) == 1 else "nodes ") + listed(ids)


def brokers(ids: Collection[int]) -> str:
    """The same of brokers."""
    return ("broker " if len(ids) == 1 else "brokers ") + listed(ids)


def named(names: Sequence[str], most: int = 8) -> str:
    """``node 1``, ``node 1 and broker 4``; of many the first ones, and how many more."""
    shown = list(names)
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def listed(ids: Collection[int], most: int = 8) -> str:
    """The same of ids: ``1``, ``1 and 2``, ``1, 2 and 3``."""
    return named([str(one) for one in sorted(ids)], most)


def moment(at_ms: int) -> datetime:
    """A time in UTC, which may be a stranger's: within the years 1970 to 9999."""
    return datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC)


def clock(at_ms: int) -> str:
    """A time of day in UTC."""
    return moment(at_ms).strftime("%H:%M:%SZ")


def span(ms: int) -> str:
    """A span for people: the largest unit that it has two of."""
    for unit, size in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
