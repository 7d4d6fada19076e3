"""What the clients that watch the metadata ask for."""

from __future__ import annotations

from typing import NamedTuple

from simulation.swarm.identities import CALLERS

PREFIX = "watcher"
"""Of the names of their hosts, where there are no rights; else they are ``CALLERS``."""


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


WANTED_BY_CALLERS = (
    Wanted((), False),
    Wanted(("configs",), True),
    Wanted(("topics", "partitions"), False),
    Wanted((), True),
)
"""Nothing that is refused to who may not see it: what they may not see is left out."""


def is_watcher(host: str) -> bool:
    """Whether watches come from this host."""
    return host.startswith(PREFIX) or host in CALLERS


def watchers_on(host: str) -> list[str]:
    """The names of the watchers on a host. On some there are two, which share streams, and may be
    told alike.
    """
    return [host, f"{host}.again"] if _number(host) % 3 == 0 else [host]


def wanted_by(watcher: str) -> Wanted:
    """What the watchers on a host ask for, by its name or theirs."""
    wanted = WANTED_BY_CALLERS if watcher.partition(".")[0] in CALLERS else WANTED
    return wanted[_number(watcher) % len(wanted)]


def _number(watcher: str) -> int:
    host = watcher.partition(".")[0]
    return list(CALLERS).index(host) if host in CALLERS else int(host.removeprefix(PREFIX))
