"""A broker's id (KIP-426), as far as the broker decides it: the configured one, then the
directory's, then the one that the controller assigns.

Pure: :func:`known_id` needs no controller, :class:`IdSeeker` works when neither source has an id.
``now`` is seconds of a monotonic clock.

Why: docs/decisions/019-broker-ids.md
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from broker.registration.lifecycle import HOPELESS, Exit
from raftlog.clock import NEVER
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.node.storage.api import NO_NODE_ID
from raftlog.transport.api import TransportLimits
from raftlog.transport.links import Backoff

RETRY_BACKOFF_MAX_MS = 1000


def known_id(configured: int, stored: int, directory: object) -> int:
    """Return the configured id, or the one in the directory's meta.json, or NO_NODE_ID.

    Raises ConfigError if the two differ.
    """
    if NO_NODE_ID not in (configured, stored) and configured != stored:
        raise ConfigError(
            f"node.id is {configured}, but data directory {directory} belongs to node {stored} (its"
            f" meta.json): set node.id to {stored} or leave it out, or give broker {configured} a"
            " directory of its own"
        )
    return stored if configured == NO_NODE_ID else configured


@dataclass(frozen=True, slots=True)
class Ask:
    """Register without an id. Safe to repeat: the incarnation id makes it the same registration."""

    asking_for_ms: int


@dataclass(frozen=True, slots=True)
class Given:
    """The id that this broker is registered under now, and why.

    It must be in meta.json before anything is done under it.
    """

    broker_id: int
    source: str
    why: str


class IdSeeker:
    """The requests to the active controller for an id, until it assigns one, refuses for good, or
    the time is over: not while it says to wait.
    """

    def __init__(
        self, *, timeout_ms: int, retry_backoff_min_ms: int, rng: random.Random, now: float
    ) -> None:
        self._timeout_ms = timeout_ms
        self._until = now + timeout_ms / 1000
        self._began = now
        self._next_at = now
        self.last_error = "the controller has not answered"
        """Why there is no id yet."""
        self._awaited_s: float | None = None
        limits = TransportLimits(
            reconnect_backoff_min_ms=retry_backoff_min_ms,
            reconnect_backoff_max_ms=max(retry_backoff_min_ms, RETRY_BACKOFF_MAX_MS),
        )
        self._backoff = Backoff(limits, rng)
        self.result: Given | Exit | None = None

    @property
    def next_deadline(self) -> float:
        """Return when to poll again."""
        return NEVER if self.result is not None else min(self._until, self._next_at)

    def poll(self, now: float) -> Ask | None:
        """Return the request to send now, if one is due."""
        if self.result is None and now >= self._until:
            self._leave(
                f"no broker id was given within {self._timeout_ms / 1000:g} s"
                f" (initial.broker.registration.timeout.ms): {self.last_error}"
            )
        if self.result is not None or now < self._next_at:
            return None
        return Ask(round((now - self._began) * 1000))

    def answered(self, broker_id: int, source: str, why: str) -> None:
        """Note that the controller has registered this process under an id."""
        if self.result is None:
            self.result = Given(broker_id, source, why)

    @property
    def waits_for(self) -> str:
        """Return why there is no id yet, and for how long that may stay so if it is known."""
        left = (
            ""
            if self._awaited_s is None
            else f"; at the most {self._awaited_s:.0f} s more, if nothing is heard of it"
        )
        return self.last_error + left

    def failed(self, error: ApiError, now: float, *, awaited_s: float | None = None) -> None:
        """Note a refusal, or an unknown outcome; retry, unless it would be refused again.

        ``awaited_s``: the wait that the controller asked for, in seconds.
        """
        self.last_error, self._awaited_s = str(error), awaited_s
        self._next_at = now + self._backoff.next_s()
        if awaited_s is not None:
            # The active controller gives the reason to wait: no failure to register.
            self._until = now + self._timeout_ms / 1000
        if error.outcome_unknown or error.code not in {*HOPELESS, ErrorCode.POLICY_VIOLATION}:
            return
        of_old = error.code is ErrorCode.INVALID_REQUEST and error.field == "broker_id"
        hint = "; the controller gives no ids yet: upgrade it, or set node.id" if of_old else ""
        self._leave(f"the controller gives this broker no id: {error}{hint}")

    def stop(self) -> None:
        """Stop asking: the process is to end."""
        if self.result is None:
            self.result = Exit("stopped before it had an id", clean=True)

    def _leave(self, reason: str) -> None:
        self.result = Exit(reason, clean=False)
