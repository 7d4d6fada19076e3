"""When a standby that has much to fold lets the new leader go first.

After a restart of all nodes each has the whole log to fold: the leader before it decides anything,
the others only to be ready for the next failover. Where they share cores or a disk, the leader
would take as long as all of them together. So a standby that is far behind waits until the leader
decides, at most ``CLAIM_MAX_S``: the next failover takes so much longer at the worst, if it comes
within that time.
"""

from __future__ import annotations

CLAIM_MAX_S = 1.0
"""A leader that claims for longer finds the standbys folding beside it."""
FAR_BEHIND_RECORDS = 10_000
"""What is folded in some ten milliseconds is not worth waiting for."""


class ClaimWatch:
    """Of one standby. ``now``: seconds of the loop's clock."""

    def __init__(self) -> None:
        self._until = 0.0
        self._first_end = -1

    def leader_changed(self, *, elected: bool, now: float) -> None:
        """Another leader is known, or none. ``elected``: of an epoch that the log has no record of
        yet; else it has decided before.
        """
        self._until, self._first_end = now + CLAIM_MAX_S if elected else 0.0, -1

    def committed(self, high_watermark: int) -> None:
        """What is committed first ends with the record that begins the epoch; more is decided."""
        if self._first_end < 0:
            self._first_end = high_watermark
        elif high_watermark > self._first_end:
            self._until = 0.0

    def waits(self, behind_records: int, now: float) -> bool:
        """Whether to wait with folding so many records."""
        return behind_records >= FAR_BEHIND_RECORDS and now < self._until
