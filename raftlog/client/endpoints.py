"""The choice of the next server: one that answers, a hint, or otherwise each in turn. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from raftlog.endpoint import endpoints_error
from raftlog.errors import ConfigError
from raftlog.text import named
from raftlog.transport.api import TransportLimits
from raftlog.transport.links import Backoff


def with_reasons(failures: Mapping[str, str]) -> str:
    """Return ``a:1 and b:1 (Connection refused), c:1`` from reasons by address.

    Each reason appears once (repeated reasons would fill a screen).
    """
    by: dict[str, list[str]] = defaultdict(list)
    for address, reason in failures.items():
        by[reason].append(address)
    return ", ".join(
        named(addresses) + (f" ({reason})" if reason else "") for reason, addresses in by.items()
    )


UNREACHABLE_FOR_S = 0.5
"""Time in seconds for which an unreachable server is skipped, even as a hint: other servers may
notice a dead leader later than the client does.
"""

NAMED_MAX = 100
"""Maximum number of servers that are remembered because other servers named them."""

_PAUSES = TransportLimits(reconnect_backoff_min_ms=20, reconnect_backoff_max_ms=500)


class KnownEndpoints:
    """The given servers of one kind, and those named by servers. Shared by several links."""

    def __init__(self, given: Iterable[str]) -> None:
        """Create an instance. Raises ConfigError if there is no endpoint."""
        self.given = tuple(dict.fromkeys(given))
        if not self.given:
            raise ConfigError("give at least one endpoint to connect to")
        self._named: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the given servers, then over the others, most recently named first."""
        return iter(dict.fromkeys((*self.given, *self._named)))

    def learn(self, named: Iterable[str]) -> None:
        """Remember the servers that a server has named; invalid endpoints are dropped."""
        found = [one for one in named if one not in self.given and not endpoints_error(one)]
        self._named = tuple(dict.fromkeys((*found, *self._named)))[:NAMED_MAX]


Endpoints = KnownEndpoints | Sequence[str]


def known_endpoints(endpoints: Endpoints) -> KnownEndpoints:
    """Return a KnownEndpoints for the given servers. Raises ConfigError."""
    return endpoints if isinstance(endpoints, KnownEndpoints) else KnownEndpoints(endpoints)


class EndpointSelector:
    """The current target among known endpoints, and the pause before a new one is tried.

    A hint is followed at once, but each endpoint only once between two pauses: wrong hints, or
    hints that point at each other during an election, cost a bounded back-off and then the round
    robin continues.
    """

    def __init__(self, endpoints: Endpoints, rng: random.Random, *, shuffled: bool = False) -> None:
        """``shuffled``: start with a random given endpoint. Raises ConfigError if there is no
        endpoint.
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
        """The given servers, and the named ones."""
        return tuple(dict.fromkeys((*self._order, *self._endpoints)))

    def reached(self) -> None:
        """Record that the target has answered."""
        if len(self._asked) > 1 or self._unreachable_until:
            self._asked = {self.target}
            self._unreachable_until = {}
        self._backoff.reset()

    def redirected(self, endpoint: str, now: float) -> float:
        """Record that the target names another server, or "" if it knows none. Return the pause
        before the new target is used, in seconds.
        """
        if endpoint:
            self._endpoints.learn([endpoint])
        if not endpoint or endpoint in self._asked or self._is_out(endpoint, now):
            return self.lost(now)
        self._asked.add(endpoint)
        self.target = endpoint
        return 0.0

    def unreachable(self, now: float, *, served: bool = False) -> float:
        """Record that the target does not answer. Return the pause in seconds; 0 if it ``served``
        until now.
        """
        self._unreachable_until[self.target] = now + UNREACHABLE_FOR_S
        self._turn(now)
        return 0.0 if served else self._backoff.next_s()

    def lost(self, now: float) -> float:
        """Leave a target that refuses and names no other; return the pause in seconds."""
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
