"""Counts of a node's answers by API: requests, errors, and durations.

They are on the path of every answer, so each costs a fraction of a microsecond: one look at the
clock, one bisection. Nothing is allocated for an API before its first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor

from raftlog.descriptors import is_repeated
from raftlog.node.observability.latency import Latency

MAX_DEPTH = 3
"""Depth in a response of items with errors of their own: topics, partitions."""


class ApiFigures:
    """Counts of one API."""

    __slots__ = ("errors", "latency", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors: dict[int, int] = {}
        """Number of errors by Kafka's error code. A response counts one for each failed item."""
        self.latency = Latency()


class RequestFigures:
    """Counts of one node. ``stopwatch``: seconds, of a clock that advances within a turn of the
    loop.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self.apis: dict[str, ApiFigures] = {}
        """Counts by the name of the request's body."""

    def answered(self, api: str, begun: float, code: int = 0, count: int = 1) -> None:
        """Count ``count`` answers to requests that arrived at ``begun``, with an error code if it
        is not 0.
        """
        figures = self._of(api)
        figures.requests += count
        figures.latency.observe(self.stopwatch() - begun, count)
        if code:
            figures.errors[code] = figures.errors.get(code, 0) + count

    def failed_parts(self, api: str, body: Any) -> None:
        """Count the errors in a response's body: its own, and one for each item that failed."""
        paths = _paths(body.DESCRIPTOR)
        if paths is not _NO_PATHS:
            errors = self._of(api).errors
            for code in _codes(body, paths):
                errors[code] = errors.get(code, 0) + 1

    def _of(self, api: str) -> ApiFigures:
        figures = self.apis.get(api)
        if figures is None:
            figures = self.apis[api] = ApiFigures()
        return figures


class _Paths(NamedTuple):
    """Paths of the error codes in a message type."""

    own: Callable[[Any], int] | None
    """Getter of its own code."""
    repeated: tuple[tuple[str, Any], ...]
    """Fields whose messages have codes, with their paths (``_Paths``)."""


_NO_PATHS = _Paths(None, ())


@cache
def _paths(message: Descriptor, depth: int = MAX_DEPTH) -> _Paths:
    own: Callable[[Any], int] | None = None
    if "error_code" in message.fields_by_name:
        own = attrgetter("error_code")
    elif "error" in message.fields_by_name:
        own = attrgetter("error.error_code")
    repeated = []
    for field in message.fields if depth else ():
        kind = field.message_type
        if kind is not None and is_repeated(field):
            inner = _paths(kind, depth - 1)
            if inner is not _NO_PATHS:
                repeated.append((field.name, inner))
    return _Paths(own, tuple(repeated)) if own or repeated else _NO_PATHS


def _codes(message: Any, paths: _Paths) -> Iterator[int]:
    if paths.own is not None and (code := paths.own(message)):
        yield code
    for name, inner in paths.repeated:
        for item in getattr(message, name):
            yield from _codes(item, inner)
