"""The server to ask next: keeps to the server that answers, follows its hints, and goes round the
known ones when lost. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from raftlog.errors import ConfigError
from raftlog.transport.api import TransportLimits
from raftlog.transport.dialing import Backoff

UNREACHABLE_FOR_S = 0.5
"""A server that could not be reached is passed over for this long, hints to it too: others notice a
dead leader later than we.
"""

_PAUSES = TransportLimits(reconnect_backoff_min_ms=20, reconnect_backoff_max_ms=500)


class EndpointSelector:
    """The current target among known endpoints, and the pause before a new one is tried.

    A hint is followed at once, but each endpoint once only between two pauses: hints that are
    wrong, or that point at each other while an election is on, cost a bounded backoff and lead back
    to the round robin.
    """

    def __init__(self, endpoints: Sequence[str], rng: random.Random) -> None:
        """Raises ConfigError if there is no endpoint."""
        if not endpoints:
            raise ConfigError("no endpoint to connect to was given")
        self._known = tuple(dict.fromkeys(endpoints))
        self._position = 0
        self._backoff = Backoff(_PAUSES, rng)
        self._asked = {self._known[0]}
        self._unreachable_until: dict[str, float] = {}
        self.target = self._known[0]

    @property
    def known(self) -> tuple[str, ...]:
        """The endpoints it was given."""
        return self._known

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
        """The target cannot help and knows nobody.

        Return the seconds to wait before asking the new target.
        """
        self._turn(now)
        return self._backoff.next_s()

    def _turn(self, now: float) -> None:
        count = len(self._known)
        turn = [self._known[(self._position + step) % count] for step in range(1, count + 1)]
        self.target = next(
            (endpoint for endpoint in turn if not self._is_out(endpoint, now)), turn[0]
        )
        self._position = self._known.index(self.target)
        self._asked = {self.target}

    def _is_out(self, endpoint: str, now: float) -> bool:
        return self._unreachable_until.get(endpoint, 0.0) > now
