"""Leader epochs of partitions never mean two histories: behind each recovery of the metadata log
they have a range of their own.

A restore or an unsafe recovery takes the metadata back, and brokers keep what they have: records of
leader epochs that the metadata does not know any more. Were these epochs led again, records of two
histories would have one (offset, epoch), and no comparison of logs could tell them apart. What
brokers report does not help: one that comes back after an hour was not asked. So a log leads no
epoch below the range of its newest recovery, whoever is there.

Why: docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

EPOCHS_PER_RECOVERY = 1 << 22
"""More elections than one partition ever has between two recoveries: one a second for seven
weeks.
"""
MAX_RECOVERIES = (1 << 31) // EPOCHS_PER_RECOVERY - 1
"""Recoveries that have a range: leader epochs are int32."""


def first_leader_epoch(recoveries: int) -> int:
    """Return the lowest leader epoch that may be led in a log that was recovered or restored so
    often.
    """
    return max(0, min(recoveries, MAX_RECOVERIES)) * EPOCHS_PER_RECOVERY
