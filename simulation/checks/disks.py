"""The true contents of the simulated disks, behind every acknowledgement."""

from __future__ import annotations

from bisect import bisect_right

from simulation.checks.node_log import LogMatching
from simulation.twins.disk import SimDisk


def holds_durably(disk: SimDisk, matching: LogMatching, end_offset: int, epoch: int) -> bool:
    """Return whether a batch of ``epoch`` that ends at ``end_offset`` would survive a crash right
    now, or a snapshot that covers it.

    By Log Matching, which is checked elsewhere, that batch stands for everything below it.
    """
    if end_offset == 0:
        return True
    chunks = disk.durable
    index = bisect_right(chunks.bases, end_offset - 1) - 1
    if index >= 0:
        if chunks.bases[index] in getattr(disk, "flipped", ()):
            # It was there; that it is damaged now is found when it is read.
            return True
        for header in reversed(matching.headers(chunks.chunks[index])):
            if header.end_offset == end_offset:
                return header.epoch == epoch
    return any(snapshot.end_offset >= end_offset for snapshot in getattr(disk, "snapshots", ()))
