"""The server to ask next: keeps to the server that answers, follows its hints, and goes round the
known ones when lost. Pure.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from raftlog.errors import ConfigError
from raftlog.limits.hosts import endpoints_error
from raftlog.text import named
from raftlog.transport.api import TransportLimits
from raftlog.transport.links import Backoff


def with_reasons(failures: Mapping[str, str]) -> str:
    """``a:1 and b:1 (Connection refused), c:1``: of address -> why, each reason once [that of three
    controllers filled a screen, three times for each broker].
    """
    by: dict[str, list[str]] = defaultdict(list)
    for address, reason in failures.items():
        by[reason].append(address)
    return ", ".join(
        named(addresses) + (f" ({reason})" if reason else "") for reason, addresses in by.items()
    )


UNREACHABLE_FOR_S = 0.5
"""A server that could not be reached is passed over for this long, hints to it too: others notice a
dead leader later than we.
"""

NAMED_MAX = 100
"""Servers that are remembered because others have named them."""

_PAUSES = TransportLimits(reconnect_backoff_min_ms=20, reconnect_backoff_max_ms=500)


class KnownEndpoints:
    """The servers of one kind that a client knows, host:port (or, of nodes, several named
    listeners) each: those that it was given, and those that servers have named since. Several
    connections of a client share one.
    """

    def __init__(self, given: Iterable[str]) -> None:
        """Raises ConfigError if there is no endpoint."""
        self.given = tuple(dict.fromkeys(given))
        if not self.given:
            raise ConfigError("no endpoint to connect to was given")
        self._named: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the given ones, and then over the others, the last named first."""
        return iter(dict.fromkeys((*self.given, *self._named)))

    def learn(self, named: Iterable[str]) -> None:
        """Remember the servers that one of them has named; what is no endpoint is dropped."""
        found = [one for one in named if one not in self.given and not endpoints_error(one)]
        self._named = tuple(dict.fromkeys((*found, *self._named)))[:NAMED_MAX]


Endpoints = KnownEndpoints | Sequence[str]


def known_endpoints(endpoints: Endpoints) -> KnownEndpoints:
    """Return the known servers of which these are the given ones. Raises ConfigError."""
    return endpoints if isinstance(endpoints, KnownEndpoints) else KnownEndpoints(endpoints)


class EndpointSelector:
    """The current target among known endpoints, and the pause before a new one is tried.

    A hint is followed at once, but each endpoint once only between two pauses: hints that are
    wrong, or that point at each other while an election is on, cost a bounded backoff and lead back
    to the round robin.
    """

    def __init__(self, endpoints: Endpoints, rng: random.Random, *, shuffled: bool = False) -> None:
        """``shuffled``: begin with any of the given endpoints. Raises ConfigError without
        endpoints.
        """
        self._endpoints = known_endpoints(endpoints)
        given = self._endpoints.given
        self._order = tuple(rng.sample(given, len(given))) if shuffled else given
        self._backoff = Backoff(_PAUSES, rng)
        self._unreachable_until: dict[str, float] = {}
        self.target = self._turned_to = self._order[0]
        self._asked = {self.target}

    @property
    def known(self) -> tuple[str, ...]:
        """The endpoints it was given, and those that were named."""
        return tuple(dict.fromkeys((*self._order, *self._endpoints)))

    def reached(self) -> None:
        """The target answered as hoped."""
        if len(self._asked) > 1 or self._unreachable_until:
            self._asked = {self.target}
            self._unreachable_until = {}
        self._backoff.reset()

    def redirected(self, endpoint: str, now: float) -> float:
        """The target names another (empty: it knows none).

        Return the seconds to wait before asking the new target.
        """
        if endpoint:
            self._endpoints.learn([endpoint])
        if not endpoint or endpoint in self._asked or self._is_out(endpoint, now):
            return self.lost(now)
        self._asked.add(endpoint)
        self.target = endpoint
        return 0.0

    def unreachable(self, now: float, *, served: bool = False) -> float:
        """The target does not answer at all. ``served``: it has, until now.

        Return the seconds to wait before asking the new target: none where the last one was the
        right one until now.
        """
        self._unreachable_until[self.target] = now + UNREACHABLE_FOR_S
        self._turn(now)
        return 0.0 if served else self._backoff.next_s()

    def lost(self, now: float) -> float:
        """Leave a target that cannot help and names no other.

        Return the seconds to wait before asking the new target.
        """
        self._turn(now)
        return self._backoff.next_s()

    def _turn(self, now: float) -> None:
        known = self.known
        begin = known.index(self._turned_to) + 1 if self._turned_to in known else 0
        turn = known[begin:] + known[:begin]
        self.target = self._turned_to = next(
            (endpoint for endpoint in turn if not self._is_out(endpoint, now)), turn[0]
        )
        self._asked = {self.target}

    def _is_out(self, endpoint: str, now: float) -> bool:
        return self._unreachable_until.get(endpoint, 0.0) > now
