"""What the clients that watch the metadata ask for."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "watcher"
"""Of the names of their hosts."""


class Wanted(NamedTuple):
    """What a watcher asks for."""

    selectors: tuple[str, ...]
    tip: bool


WANTED = (
    Wanted((), False),
    Wanted(("configs",), True),
    Wanted(("brokers", "topics", "leader"), False),
    Wanted(("partitions", "configs/topic/", "progress", "clients", "client_results"), True),
)
"""By the number of the watcher, over and over."""


def watchers_on(host: str) -> list[str]:
    """The names of the watchers on a host. On some there are two, which share streams, and may be
    told alike.
    """
    return [host, f"{host}.again"] if _number(host) % 3 == 0 else [host]


def wanted_by(watcher: str) -> Wanted:
    """What the watchers on a host ask for, by its name or theirs."""
    return WANTED[_number(watcher) % len(WANTED)]


def _number(watcher: str) -> int:
    return int(watcher.removeprefix(PREFIX).partition(".")[0])
