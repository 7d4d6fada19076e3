"""A straight line through what was, drawn on; and how fast this machine loads a snapshot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.records.v1 import records_pb2 as pb

DAY_MS = 86_400_000
_PARTITIONS = 5_000


class Trend(NamedTuple):
    """A line: ``per_day`` more each day, ``now`` at the time of the last point."""

    now: float
    per_day: float

    def after(self, days: float) -> int:
        """The value so many days after the last point.

        A falling line is not drawn on: what shrinks for a while does not vanish.
        """
        return round(self.now + max(0.0, self.per_day) * days)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """The line of least squares through (time in ms, value), moved so that it goes through the last
    one. None for fewer than two.
    """
    if len(points) < 2:
        return None
    days = [(at - points[-1][0]) / DAY_MS for at, _ in points]
    values = [value for _, value in points]
    middle, mean = sum(days) / len(days), sum(values) / len(values)
    spread = sum((day - middle) ** 2 for day in days)
    slope = (
        sum((day - middle) * (value - mean) for day, value in zip(days, values, strict=True))
        / spread
    )
    return Trend(values[-1], slope)


def load_bytes_per_s() -> float:
    """How many bytes of a snapshot this machine turns into an image in a second: of one with 5,000
    partitions, the best of three.
    """
    topic_id = bytes(16)
    draft = ImageBuilder(Image())
    messages: list[Any] = [pb.TopicRecord(name="measured", topic_id=topic_id)]
    messages += [
        pb.PartitionRecord(
            topic_id=topic_id, partition_id=index, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1
        )
        for index in range(_PARTITIONS)
    ]
    draft.apply_batch(
        [record(message) for message in messages], base_offset=0, epoch=1, timestamp_ms=0
    )
    image = draft.snapshot()
    content = b"".join(pieces(image, header_of(image, cluster_id="", generation=0)))
    best = min(_seconds(content) for _ in range(3))
    return len(content) / best


def _seconds(content: bytes) -> float:
    begun = time.perf_counter()
    load([content])
    return time.perf_counter() - begun
