"""The free-space reserve of a broker: produce is refused while there is still room for followers,
recovery and deletion.
"""

from __future__ import annotations

ENOUGH_FACTOR = 1.25
"""Multiple of the reserve that must be free before produce is allowed again: no flutter."""
MAX_SHARE_OF_DISK = 0.05


def effective_reserve_bytes(configured_bytes: int, disk_bytes: int) -> int:
    """Return the reserve on a disk of this size: never more than a twentieth of it."""
    return min(configured_bytes, int(disk_bytes * MAX_SHARE_OF_DISK))


class SpaceReserve:
    """Whether the store's disk is below the reserve, as last measured. A reserve of 0: never."""

    def __init__(self, reserve_bytes: int) -> None:
        self.reserve_bytes = reserve_bytes
        self.free_bytes = -1
        self.low = False

    def measured(self, free_bytes: int) -> bool:
        """Take a measurement; return True if ``low`` has changed."""
        limit = self.reserve_bytes * (ENOUGH_FACTOR if self.low else 1)
        self.free_bytes = free_bytes
        was, self.low = self.low, free_bytes < limit
        return was != self.low

    @property
    def refusal(self) -> str:
        """Return why nothing is written; empty if there is room."""
        if not self.low:
            return ""
        return (
            f"the disk has {self.free_bytes} bytes left, less than its reserve of"
            f" {self.reserve_bytes}"
        )
