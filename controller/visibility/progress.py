"""Progress records: LAO, high watermark and applied offsets in the log itself, so that history
includes them.

The recorded values were known when they were proposed, and LAO never decreases. So each value is a
true lower bound at the record's offset and ever after, and any node, or a job offline, can read it
from the committed log alone.

Each progress record also has a small sketch of the times from a record's commit until all brokers
have it. Progress records are written once a second, so times derived from them alone would be off
by up to a second. A sketch has the exact count, sum and maximum, and buckets that are each 19 %
wider than the one below.

A stall of LAO is logged: for how long it has been stuck below the high watermark, and the brokers
that hold it back. Pure.

Why: docs/decisions/009-lao-membership.md
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.sketch import bucket_of
from raftlog.wire.records.v1 import records_pb2 as pb

COMMITS_MAX = 4096
"""Maximum number of commits tracked with a time of their own. Beyond that, a new commit gets the
time of the previous one.
"""


class Sketch:
    """Durations since the last recorded sketch."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.count = self._sum_us = self._max_us = 0
        self._buckets: dict[int, int] = {}

    def observe(self, seconds: float, count: int) -> None:
        """Add ``count`` records that each took ``seconds``."""
        took_us = max(0, round(seconds * 1e6))
        bucket = bucket_of(took_us)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self._sum_us += took_us * count
        self._max_us = max(self._max_us, took_us)

    def take(self) -> pb.DurationSketch:
        """Return the sketch as a message, and begin a new one."""
        taken = pb.DurationSketch(
            count=self.count,
            sum_us=self._sum_us,
            max_us=self._max_us,
            buckets=sorted(self._buckets),
            bucket_counts=[count for _, count in sorted(self._buckets.items())],
        )
        self._clear()
        return taken


class _Wait:
    """Commits that one level has not reached yet."""

    def __init__(self) -> None:
        self.sketch = Sketch()
        self._commits: deque[tuple[int, int, float]] = deque()
        """(end offset, number of records, time of the commit)."""

    def committed(self, end_offset: int, records: int, now: float) -> None:
        if len(self._commits) >= COMMITS_MAX:
            _, before, since = self._commits.pop()
            records, now = records + before, since
        self._commits.append((end_offset, records, now))

    def reached(self, offset: int, now: float) -> None:
        commits = self._commits
        while commits and commits[0][0] <= offset + 1:
            _, records, since = commits.popleft()
            self.sketch.observe(now - since, records)


class VisibilitySketches:
    """Times from a record's commit until every member has applied it (LAO), and until every member
    knows that, for records committed in one controller epoch.
    """

    def __init__(self) -> None:
        self._acknowledged, self._visible = _Wait(), _Wait()
        self._end = -1

    def committed(self, high_watermark: int, now: float) -> None:
        """Record that the high watermark (exclusive) has moved."""
        if self._end >= 0 and high_watermark > self._end:
            records = high_watermark - self._end
            self._acknowledged.committed(high_watermark, records, now)
            self._visible.committed(high_watermark, records, now)
        self._end = max(self._end, high_watermark)

    def moved(self, lao: int, min_known_lao: int, now: float) -> None:
        """Record a new LAO and lowest known LAO (inclusive; -1 if unknown)."""
        self._acknowledged.reached(lao, now)
        self._visible.reached(min_known_lao, now)

    def into(self, message: pb.ProgressRecord) -> None:
        """Move the sketches into the progress record to be proposed."""
        if self._acknowledged.sketch.count:
            message.acknowledged.CopyFrom(self._acknowledged.sketch.take())
        if self._visible.sketch.count:
            message.told.CopyFrom(self._visible.sketch.take())


_QUIET_TYPES = frozenset((RecordType.PROGRESS, RecordType.NO_OP))


class ProgressPolicy:
    """Decides when to write progress records, in one controller epoch.

    Its state changes only when a decision has been proposed.
    """

    def __init__(self, interval_s: float, observed_end: int = 0) -> None:
        """``interval_s``: minimum time between two progress records, in seconds."""
        self._interval_s = interval_s
        self.observed_end = observed_end
        """Offset after the last record observed."""
        self._due = 0.0
        self._recorded_applied: dict[int, tuple[int, int]] = {}
        self._news: deque[tuple[int, int]] = deque()
        """Ranges [first, end) of adjacent batches above the recorded LAO that have records other
        than progress and no-ops.
        """

    def observe_proposed(self, records: Sequence[Record], base_offset: int) -> None:
        """Observe one batch of the inherited tail, or one of this controller's own."""
        if not all(record.type in _QUIET_TYPES for record in records):
            self.observe_news(len(records), base_offset)

    def observe_news(self, count: int, base_offset: int) -> None:
        """Observe ``count`` records that are not all progress and no-ops."""
        end = base_offset + count
        if self._news and self._news[-1][1] == base_offset:
            self._news[-1] = (self._news[-1][0], end)
        else:
            self._news.append((base_offset, end))

    def next_due(self, lao: int) -> float:
        """Return when ``decide`` has a record to write at the given LAO (now, if that time is
        past), or infinity if it has none before LAO moves.
        """
        return self._due if self._passed_news(lao) else math.inf

    def decide(
        self, lao: int, high_watermark: int, applied: Iterable[tuple[int, int, int]], now: float
    ) -> pb.ProgressRecord | None:
        """Return the record to propose now, or None.

        ``applied``: (broker id, broker epoch, applied offset) of all brokers that have reported. A
        record is due only when LAO has passed a record that is neither progress nor no-op;
        otherwise each progress record would move LAO and so cause the next one, for ever. It names
        only the brokers that changed since the last record of this epoch.
        """
        if now < self._due or not self._passed_news(lao):
            return None
        changed = [
            pb.AppliedOffset(broker_id=broker_id, broker_epoch=epoch, applied_offset=offset)
            for broker_id, epoch, offset in applied
            if self._recorded_applied.get(broker_id) != (epoch, offset)
        ]
        return pb.ProgressRecord(
            lowest_acknowledged_offset=lao, high_watermark=high_watermark, applied=changed
        )

    def proposed(self, message: pb.ProgressRecord, now: float) -> None:
        """Record that a record made by ``decide`` is in the log."""
        self._due = now + self._interval_s
        for entry in message.applied:
            self._recorded_applied[entry.broker_id] = (entry.broker_epoch, entry.applied_offset)
        recorded = message.lowest_acknowledged_offset
        while self._news and self._news[0][0] <= recorded:
            _, end = self._news.popleft()
            if end > recorded + 1:
                self._news.appendleft((recorded + 1, end))

    def _passed_news(self, lao: int) -> bool:
        return bool(self._news) and self._news[0][0] <= lao


SAY_AFTER_S = 1.0
SAY_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """An entry for the program's log.

    ``by``: the brokers that hold LAO back; empty when LAO moves again, and when LAO is unknown for
    another reason.
    """

    by: tuple[int, ...]
    for_s: float
    reason: str
    """See ``LaoView.unknown_reason``."""


class LaoStall:
    """Detects that LAO is stuck: makes an entry after a second, one every half minute after that,
    and one when it moves again.
    """

    def __init__(self) -> None:
        self._lao = -1
        self._since: float | None = None
        self._said_at: float | None = None

    def held_ms(self, now: float) -> int:
        """Return for how many ms LAO has been stuck below the high watermark; 0 if it is not
        stuck.
        """
        return 0 if self._since is None else max(0, round((now - self._since) * 1000))

    def update(
        self, now: float, lao: int, newest: int, by: list[int], reason: str
    ) -> HeldBack | None:
        """Return the entry to log now, or None.

        ``newest``: the last committed offset. ``by``: the brokers that hold LAO back. ``reason``:
        why LAO is unknown; "" if it is known, or if no broker is a member.
        """
        stands = lao < newest and bool(by or reason)
        if not stands or lao != self._lao:
            since, self._since = self._since, now if stands else None
            self._lao = lao
            if self._said_at is None or since is None:
                return None
            self._said_at = None
            return HeldBack((), now - since, "")
        if self._since is None:
            self._since = now
        for_s = now - self._since
        if for_s < SAY_AFTER_S or (self._said_at is not None and now - self._said_at < SAY_EVERY_S):
            return None
        self._said_at = now
        return HeldBack(tuple(by), for_s, reason)
