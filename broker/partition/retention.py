"""The part of a partition's log that its topic does not retain (Kafka's retention by time and by
size).

The leader decides, and moves its log start; followers learn it with their fetches, and follow. Only
committed records are dropped, and the newest batch never is: a log that is not empty tells the
epoch of its end.

Why: docs/decisions/029-retention-by-the-leader.md
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from broker.partition import configs
from raftlog.metadata.image import Image
from raftlog.node.storage.partition_api import LogRuns

_DELETE = "delete"


class Retention(NamedTuple):
    """A topic's retention. Negative: unbounded."""

    ms: int
    size: int
    """Size in bytes, of each partition."""


KEEP_ALL = Retention(-1, -1)


def retention_of(image: Image, topic_id: bytes) -> Retention:
    """Return the retention in force for a topic."""
    policy = configs.topic_value(image, topic_id, configs.CLEANUP_POLICY)
    deletes = _DELETE in (item.strip() for item in policy.split(","))
    if not deletes:
        return KEEP_ALL
    return Retention(
        configs.topic_number(image, topic_id, configs.RETENTION_MS),
        configs.topic_number(image, topic_id, configs.RETENTION_BYTES),
    )


def start_to_keep(
    runs: LogRuns, start: int, high_watermark: int, now_ms: int, kept: Retention
) -> int:
    """Return the log start of a log that begins at ``start``: the same or a later one.

    A record is kept if it is younger than the retention time, or if the log without it would be
    smaller than the retention size. No batch is younger than one behind it, whatever its own
    timestamp says [time was years ahead and came back: what was written meanwhile, and all behind
    it, would stay for years].
    """
    size = runs.size
    stamps = [run.last_timestamp_ms for run in runs.runs]
    youngest = [*accumulate(reversed(stamps), min)][::-1]
    for run, last_ms in zip(runs.runs, youngest, strict=True):
        too_old = 0 <= kept.ms < now_ms - last_ms
        too_much = 0 <= kept.size <= size - run.size
        whole = run.end_offset < high_watermark
        if not (too_old or too_much):
            return start
        if not whole:
            # The whole log is too old or too large, but its end: the newest batch stays.
            if too_old and start < runs.last_base < high_watermark:
                return runs.last_base
            return start
        start, size = run.end_offset, size - run.size
    return start
