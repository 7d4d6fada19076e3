"""Leader epochs of partitions never mean two histories: each generation of the metadata log has a
range of its own.

A restore or an unsafe recovery takes the metadata back, and brokers keep what they have: records of
leader epochs that the metadata does not know any more. Were these epochs led again, records of two
histories would have one (offset, epoch), and no comparison of logs could tell them apart. What
brokers report does not help: one that comes back after an hour was not asked. So a generation leads
no epoch below its range, whoever is there.

Why: docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

EPOCHS_PER_GENERATION = 1 << 22
"""More elections than one partition ever has between two recoveries: one a second for seven
weeks.
"""
MAX_GENERATION = (1 << 31) // EPOCHS_PER_GENERATION - 1
"""The last generation that has a range: leader epochs are int32."""


def first_leader_epoch(generation: int) -> int:
    """The lowest leader epoch that may be led in a generation of the log."""
    return max(0, min(generation, MAX_GENERATION)) * EPOCHS_PER_GENERATION
