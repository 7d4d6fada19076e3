"""Ranges of partitions' leader epochs: each recovery of the metadata log begins a new one, so that
no leader epoch has two histories.

A restore or an unsafe recovery takes the metadata back, and brokers keep their logs: with records
of leader epochs that the metadata has lost. If these epochs were led again, records of two
histories would have one (offset, epoch), and no comparison of logs could tell them apart. Brokers'
reports do not help: a broker may return an hour later. So no epoch below the range of the newest
recovery is led, whichever brokers are there.

Why: docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

EPOCHS_PER_RECOVERY = 1 << 22
"""Size of a range: more elections than one partition ever has between two recoveries: one a second
for seven weeks.
"""
MAX_RECOVERIES = (1 << 31) // EPOCHS_PER_RECOVERY - 1
"""Most recoveries that have a range: leader epochs are int32."""


def first_leader_epoch(recoveries: int) -> int:
    """Return the lowest leader epoch that may be led in a log after this number of recoveries."""
    return max(0, min(recoveries, MAX_RECOVERIES)) * EPOCHS_PER_RECOVERY
