"""Requests that wait to be decided: bounded, in order of arrival, each with the time by which its answer is due.

Heartbeats go before all others, and have a bound of their own: behind a backlog that is longer than
``broker.fencing.timeout.ms`` every broker would hear nothing for so long, and fence itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_WAITING = 65_536
MAX_REQUEST_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, whom to answer, and by when (seconds of the loop's clock)."""

    link: Any
    request: pb.ControllerRequest
    deadline: float
    size: int
    """Bytes of the request."""


class Intake:
    """The queue in front of the controller."""

    def __init__(self, default_timeout_s: float) -> None:
        """``default_timeout_s``: of a request that names none."""
        self._default_timeout_s = default_timeout_s
        self._queue: deque[Waiting] = deque()
        self._heartbeats: deque[Waiting] = deque()
        self._deferred: list[tuple[float, Waiting]] = []
        """(when to queue it again, the request)."""
        self.waiting_bytes = 0
        """Of the requests that wait."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._heartbeats)

    def add(self, link: Any, request: pb.ControllerRequest, now: float, *, heartbeat: bool = False) -> None:
        """Queue a request. Raises MESSAGE_TOO_LARGE, and THROTTLING_QUOTA_EXCEEDED if too many wait: nothing was done."""
        size = request.ByteSize()
        if size > MAX_REQUEST_BYTES:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the request has {size} bytes, more than the {MAX_REQUEST_BYTES} allowed",
                field=request.WhichOneof("body") or "",
            )
        queue = self._heartbeats if heartbeat else self._queue
        if len(queue) + len(self._deferred) >= MAX_WAITING:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{MAX_WAITING} requests wait already")
        timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else self._default_timeout_s
        queue.append(Waiting(link, request, now + timeout_s, size))
        self.waiting_bytes += size

    def take(self) -> Waiting | None:
        """The oldest heartbeat, or the oldest of the others; None if there is none."""
        queue = self._heartbeats or self._queue
        if not queue:
            return None
        waiting = queue.popleft()
        self.waiting_bytes -= waiting.size
        return waiting

    def defer(self, waiting: Waiting, until: float) -> None:
        """A request that was taken and cannot be decided before ``until``."""
        self._deferred.append((until, waiting))

    def wake(self, now: float) -> bool:
        """Queue those again whose time to be decided has come; whether there are any."""
        due = [waiting for until, waiting in self._deferred if until <= now]
        if due:
            self._deferred = [entry for entry in self._deferred if entry[0] > now]
            self._queue.extend(due)
            self.waiting_bytes += sum(waiting.size for waiting in due)
        return bool(due)

    def drain(self) -> Iterator[Waiting]:
        """All of them."""
        self.wake(math.inf)
        while (waiting := self.take()) is not None:
            yield waiting

    def expired(self, now: float) -> list[Waiting]:
        """Take out those whose time is up: they were not begun."""
        late_deferred = [waiting for _, waiting in self._deferred if waiting.deadline <= now]
        if late_deferred:
            self._deferred = [entry for entry in self._deferred if entry[1].deadline > now]
        late = [waiting for queue in (self._heartbeats, self._queue) for waiting in queue if waiting.deadline <= now]
        if late:
            self._heartbeats = deque(waiting for waiting in self._heartbeats if waiting.deadline > now)
            self._queue = deque(waiting for waiting in self._queue if waiting.deadline > now)
            self.waiting_bytes -= sum(waiting.size for waiting in late)
        return late_deferred + late
