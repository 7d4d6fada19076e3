"""The records that wait for one partition's leader: what goes into the next batch, and what a
batch's end means for it. Pure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from raftlog.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is; with acks 0, where it is if it stays."""

    topic: str
    partition: int
    offset: int


class Waiting:
    """One record on its way. ``deadline``: after it, it is not sent any more."""

    __slots__ = ("caller", "data", "deadline", "future", "unknown")

    def __init__(
        self, data: bytes, deadline: float, future: asyncio.Future[RecordMetadata]
    ) -> None:
        self.data = data
        self.deadline = deadline
        self.future = future
        self.caller: Any = None
        """The span inside of which it was written, if calls are traced."""
        self.unknown = False
        """An attempt was made whose outcome is unknown: no error is definite any more."""

    def fail(self, error: ApiError) -> None:
        """End it; whoever waits is told if an earlier attempt may have been executed."""
        if self.future.done():
            return
        if self.unknown and not error.outcome_unknown:
            error = ApiError(
                error.code,
                f"{error.message}; an earlier attempt may have been executed",
                field=error.field,
                outcome_unknown=True,
            )
        self.future.set_exception(error)


class PartitionQueue:
    """One batch in flight at a time, so that records stay in order over retries; what comes
    meanwhile shares the next one.
    """

    def __init__(self, topic: str, index: int) -> None:
        self.topic, self.index = topic, index
        self.in_flight: list[Waiting] = []
        self.not_before = 0.0
        """A definite refusal is not repeated sooner."""
        self.last_error: ApiError | None = None
        self.max_bytes = 1 << 62
        """Of a batch, as the leader has shown that it takes them."""
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self.in_flight)

    @property
    def next_deadline(self) -> float:
        """Of the oldest record that waits."""
        return self._waiting[0].deadline if self._waiting else float("inf")

    def add(self, record: Waiting) -> None:
        """One more, behind the others."""
        self._waiting.append(record)

    def ready(self, now: float) -> bool:
        """Whether a batch could leave."""
        return bool(self._waiting) and not self.in_flight and now >= self.not_before

    def waiting(self) -> list[Waiting]:
        """What is not in flight, in order."""
        return list(self._waiting)

    def take(self, max_bytes: int) -> list[Waiting]:
        """The next batch becomes ``in_flight``: at least one record, unless all were cancelled.

        Returns the cancelled ones, left out.
        """
        size, limit = 0, min(max_bytes, self.max_bytes)
        waiting, batch = self._waiting, self.in_flight
        cancelled: list[Waiting] = []
        while waiting and (not batch or size + len(waiting[0].data) <= limit):
            record = waiting.popleft()
            if record.future.done():
                cancelled.append(record)
            else:
                batch.append(record)
                size += len(record.data)
        return cancelled

    def halve(self) -> bool:
        """The batch in flight was too large for the leader: make smaller ones from now on; False if
        it is of one record.
        """
        if len(self.in_flight) < 2:
            return False
        self.max_bytes = sum(len(record.data) for record in self.in_flight) // 2
        return True

    def stored(self, base_offset: int) -> list[Waiting]:
        """The batch stands from this offset on; what it was."""
        done, self.in_flight = self.in_flight, []
        self.last_error = None
        for number, record in enumerate(done):
            if not record.future.done():
                offset = base_offset + number if base_offset >= 0 else -1
                record.future.set_result(RecordMetadata(self.topic, self.index, offset))
        return done

    def failed(self, error: ApiError) -> list[Waiting]:
        """The batch failed for good; what it was."""
        done, self.in_flight = self.in_flight, []
        for record in done:
            record.fail(error)
        return done

    def again(self, error: ApiError, not_before: float) -> None:
        """The batch goes back to the front: it was definitely not executed, or may be executed
        twice.
        """
        for record in self.in_flight:
            record.unknown = record.unknown or error.outcome_unknown
        self._waiting.extendleft(reversed(self.in_flight))
        self.in_flight = []
        self.last_error, self.not_before = error, not_before

    def expire(self, now: float, why: str) -> list[Waiting]:
        """Give up the records whose deadline has come; they were not sent, or definitely not
        executed.
        """
        gone: list[Waiting] = []
        while self._waiting and (
            self._waiting[0].deadline <= now or self._waiting[0].future.done()
        ):
            gone.append(self._waiting.popleft())
        last = self.last_error
        for record in gone:
            if last is not None:
                message = f"given up at the deadline: {last.message}"
                record.fail(ApiError(last.code, message, field=last.field))
            else:
                record.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"not sent in time: {why}"))
        return gone

    def give_up(self, error: ApiError) -> list[Waiting]:
        """All that waits ends with this error; what is in flight is not touched. What it was."""
        gone, self._waiting = list(self._waiting), deque()
        for record in gone:
            record.fail(error)
        return gone
