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


def wanted_by(host: str) -> Wanted:
    """What the watcher on a host asks for."""
    return WANTED[int(host.removeprefix(PREFIX)) % len(WANTED)]
