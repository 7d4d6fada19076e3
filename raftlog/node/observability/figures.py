"""Figures for a node's metrics, independent of the metrics library: durations, responses by API,
snapshots, and the lag of the event loop.

They are updated for every response, so each update costs a fraction of a microsecond: one reading
of the clock, one bisection. Nothing is allocated for an API before its first response.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor

from raftlog.descriptors import is_repeated

LATENCY_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""Upper bounds of the latency buckets, in seconds: fine around a commit, coarse above."""


class Latency:
    """A histogram of durations in seconds. An observation costs one bisection and no lock: only one
    thread observes.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add a duration, or ``count`` equal ones, to its bucket, to the sum and to the count."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += count
        self.total_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, in Prometheus's form."""
        result, cumulated = [], 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self.counts, strict=True):
            cumulated += count
            result.append((bound, float(cumulated)))
        return result


LAG_MEASURED_EVERY_S = 0.25


class LoopLag:
    """The lag of the event loop: for how long a due timer waits for other callbacks, measured four
    times a second.

    A node runs entirely on one loop, so the lag is part of every latency of the node.
    """

    def __init__(self) -> None:
        self.latency = Latency()

    def start(self) -> None:
        """Start measuring."""
        loop = asyncio.get_running_loop()
        loop.call_later(LAG_MEASURED_EVERY_S, self._look, perf_counter() + LAG_MEASURED_EVERY_S)

    def _look(self, due: float) -> None:
        # A loop may round a timer down, by at most a millisecond.
        self.latency.observe(max(0.0, perf_counter() - due))
        self.start()


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The snapshots of a node. ``generated_age_ms``: time since this node last wrote one, or since
    its start.
    """

    count: int
    newest_bytes: int
    generated_bytes: int
    generated_age_ms: float
    loaded: int
    cursors_holding: int = 0
    """Number of export cursors for which the node keeps more of its log than it otherwise would."""
    cursors_passed: int = 0
    """Number of export cursors whose unread records the node has dropped."""


MAX_DEPTH = 3
"""Nesting depth up to which items in a response have errors of their own: topics, partitions."""


class ApiFigures:
    """Counts of one API."""

    __slots__ = ("errors", "latency", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors: dict[int, int] = {}
        """Number of errors by Kafka's error code. A response counts one for each failed item."""
        self.latency = Latency()


class RequestFigures:
    """Counts for one node. ``stopwatch`` returns seconds of a clock that advances within an
    iteration of the loop.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self.apis: dict[str, ApiFigures] = {}
        """Counts by the name of the request's body."""

    def answered(self, api: str, begun: float, code: int = 0, count: int = 1) -> None:
        """Count ``count`` responses to requests that arrived at ``begun``, and their error code if
        it is not 0.
        """
        figures = self._of(api)
        figures.requests += count
        figures.latency.observe(self.stopwatch() - begun, count)
        if code:
            figures.errors[code] = figures.errors.get(code, 0) + count

    def failed_parts(self, api: str, body: Any) -> None:
        """Count the errors in a response's body: its own, and one for each failed item."""
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
    """Where the error codes are in a message type."""

    own: Callable[[Any], int] | None
    """Getter of the message's own code, or None."""
    repeated: tuple[tuple[str, Any], ...]
    """Fields whose messages contain codes, each with its own ``_Paths``."""


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
