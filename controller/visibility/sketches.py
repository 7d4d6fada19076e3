"""How long records take from their commit until all brokers have them, as a small sketch that goes
into the next progress record: so that the log has the true times at no record more.

Progress records come once a second, so their own times are those of a saw. A sketch has exact
count, sum and maximum, and buckets that each are 19 % wider than the one below.
"""

from __future__ import annotations

from collections import deque

from raftlog.metadata.sketch import bucket_of
from raftlog.wire.records.v1 import records_pb2 as pb

COMMITS_MAX = 4096
"""Commits that are waited for, each with its own time; above, neighbours share the earlier one's:
what waits for so many has waited for long.
"""


class Sketch:
    """Durations since the last one that was recorded."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.count = self._sum_us = self._max_us = 0
        self._buckets: dict[int, int] = {}

    def observe(self, seconds: float, count: int) -> None:
        """So many records took so long."""
        took_us = max(0, round(seconds * 1e6))
        bucket = bucket_of(took_us)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self._sum_us += took_us * count
        self._max_us = max(self._max_us, took_us)

    def take(self) -> pb.DurationSketch:
        """What it has come to; it begins anew."""
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
    """The commits that one level has not reached yet."""

    def __init__(self) -> None:
        self.sketch = Sketch()
        self._commits: deque[tuple[int, int, float]] = deque()
        """(end offset, records, when)."""

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
    """From commit until every member has applied it (LAO), and until each has been told so. Of one
    controller epoch, for what is committed in it.
    """

    def __init__(self) -> None:
        self._acknowledged, self._told = _Wait(), _Wait()
        self._end = -1

    def committed(self, high_watermark: int, now: float) -> None:
        """The high watermark (exclusive) has moved."""
        if self._end >= 0 and high_watermark > self._end:
            records = high_watermark - self._end
            self._acknowledged.committed(high_watermark, records, now)
            self._told.committed(high_watermark, records, now)
        self._end = max(self._end, high_watermark)

    def moved(self, lao: int, min_known_lao: int, now: float) -> None:
        """LAO and the lowest known LAO (inclusive, -1 unknown) are these now."""
        self._acknowledged.reached(lao, now)
        self._told.reached(min_known_lao, now)

    def into(self, message: pb.ProgressRecord) -> None:
        """Put into a progress record, which will be proposed, what came together since the last."""
        if self._acknowledged.sketch.count:
            message.acknowledged.CopyFrom(self._acknowledged.sketch.take())
        if self._told.sketch.count:
            message.told.CopyFrom(self._told.sketch.take())
