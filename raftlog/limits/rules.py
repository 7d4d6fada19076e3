"""The kinds of limits, and rules between timeouts.

A rule returns the error of a value, empty if it is valid; it checks a length, and scans a short
text at most once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits.hosts import (
    ENDPOINTS_MAX_CHARS,
    HOST_MAX_CHARS,
    endpoints_error,
    host_error,
)

_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most ``max_chars`` printable characters: terminals and logs show it later."""

    max_chars: int

    def error(self, value: str) -> str:
        """Return the error of the value; empty if it is valid."""
        if len(value) > self.max_chars:
            return f"{len(value)} characters are more than the {self.max_chars} allowed"
        return (
            ""
            if value.isprintable()
            else f"{value[:_SHOWN_CHARS]!r} has characters that cannot be printed"
        )


@dataclass(frozen=True, slots=True)
class Allowed:
    """A text of at most ``max_chars`` characters that matches a pattern."""

    max_chars: int
    pattern: re.Pattern[str]
    what: str

    def error(self, value: str) -> str:
        """Return the error of the value; empty if it is valid."""
        if len(value) > self.max_chars:
            return f"{len(value)} characters are more than the {self.max_chars} allowed"
        return (
            "" if self.pattern.fullmatch(value) else f"{value[:_SHOWN_CHARS]!r} is no {self.what}"
        )


@dataclass(frozen=True, slots=True)
class Address:
    """A host, or the endpoints of a node. Empty is allowed only with ``optional``."""

    wrong: Callable[[str], str]
    max_chars: int
    optional: bool = False

    def error(self, value: str) -> str:
        """Return the error of the value; empty if it is valid."""
        return "" if self.optional and not value else self.wrong(value)


@dataclass(frozen=True, slots=True)
class Octets:
    """A byte string of at most ``max_bytes``."""

    max_bytes: int

    def error(self, value: bytes) -> str:
        """Return the error of the value; empty if it is valid."""
        return (
            ""
            if len(value) <= self.max_bytes
            else f"{len(value)} bytes are more than the {self.max_bytes} allowed"
        )


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most ``max_items``; ``each``: the rule of an item that is no message."""

    max_items: int
    each: Text | Allowed | None = None

    def error(self, value: Any) -> str:
        """Return the error of the list, without its items; empty if it is valid."""
        return (
            ""
            if len(value) <= self.max_items
            else f"{len(value)} items are more than the {self.max_items} allowed"
        )


@dataclass(frozen=True, slots=True)
class ByHandler:
    """A field that is not checked here: the request's handler has a check that is as strict.

    ``why`` names that check, ``limit`` is its bound.
    """

    limit: int
    why: str


Rule = Text | Allowed | Address | Octets | Items | ByHandler

NAME = re.compile(r"[A-Za-z0-9._-]*")


def name(max_chars: int = 249) -> Allowed:
    """Return the rule of a name: letters, digits, dots, dashes and underscores."""
    return Allowed(max_chars, NAME, "name of ASCII letters, digits, dots, dashes and underscores")


RACK = Allowed(
    255,
    re.compile(r"[A-Za-z0-9 ._:/@=+,-]*"),
    "rack: ASCII letters, digits, blanks and . _ : / @ = + , -",
)
CLUSTER_ID = Text(255)
HOST = Address(host_error, HOST_MAX_CHARS)
ENDPOINT = Address(endpoints_error, ENDPOINTS_MAX_CHARS)
OPTIONAL_ENDPOINT = Address(endpoints_error, ENDPOINTS_MAX_CHARS, optional=True)


def bounded_timeout_ms(timeout_ms: int, field: str, *, default_ms: int, max_ms: int) -> int:
    """Return the timeout that a request names in ``field``; ``default_ms`` for 0, and ``max_ms``
    (request.timeout.max.ms) for a longer one. Raises INVALID_REQUEST if it is negative.
    """
    if timeout_ms < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a timeout can't be negative", field=field)
    return min(timeout_ms or default_ms, max_ms)


def heartbeats_fit(heartbeat_interval_ms: int, session_timeout_ms: int) -> bool:
    """Return whether a broker that loses one heartbeat keeps its session."""
    return session_timeout_ms > 2 * heartbeat_interval_ms


def fencing_fits(fencing_timeout_ms: int, session_timeout_ms: int) -> bool:
    """Return whether the controller fences a silent broker before the broker fences itself
    (KIP-343).
    """
    return fencing_timeout_ms > session_timeout_ms
