"""Subscriptions of the clients that watch the metadata."""

from typing import NamedTuple

from simulation.swarm.identities import CALLERS

PREFIX = "watcher"
"""Prefix of their hosts' names without an authorizer; with one they are ``CALLERS``."""


class Wanted(NamedTuple):
    """Subscription of a watcher."""

    selectors: tuple[str, ...]
    tip: bool


WANTED = (
    Wanted((), False),
    Wanted(("configs",), True),
    Wanted(("brokers", "topics", "leader"), False),
    Wanted(("partitions", "configs/topic/", "clients", "client_results"), True),
)
"""Subscriptions by the number of the watcher, repeated."""


WANTED_BY_CALLERS = (
    Wanted((), False),
    Wanted(("configs",), True),
    Wanted(("topics", "partitions"), False),
    Wanted((), True),
)
"""Subscriptions that are refused to no caller: entities that a caller may not see are left out."""


def is_watcher(host: str) -> bool:
    return host.startswith(PREFIX) or host in CALLERS


def watchers_on(host: str) -> list[str]:
    """Return the watchers on a host; two on one host share streams."""
    return [host, f"{host}.again"] if _number(host) % 3 == 0 else [host]


def wanted_by(watcher: str) -> Wanted:
    """Return the subscription of the watchers on a host, by its name or theirs."""
    wanted = WANTED_BY_CALLERS if watcher.partition(".")[0] in CALLERS else WANTED
    return wanted[_number(watcher) % len(wanted)]


def _number(watcher: str) -> int:
    host = watcher.partition(".")[0]
    return list(CALLERS).index(host) if host in CALLERS else int(host.removeprefix(PREFIX))
