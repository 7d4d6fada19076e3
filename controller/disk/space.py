"""The free-space reserve: writes stop before a disk is full, so that elections and repair still
have room.

A node whose free space is below its reserve reports that to the leader in every Fetch. A leader in
that state transfers the leadership to a voter with enough space. While fewer than a majority of the
voters have enough, writes are refused: soon too few voters could store them.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.decisions.quorum.transfer import best_successor
from raftlog.quorum.core import QuorumDescription

CHECK_EVERY_S = 1.0
ENOUGH_FACTOR = 1.25
"""Multiple of the reserve that must be free before ``low`` becomes False, so that it does not flap.
"""
TRANSFER_EVERY_S = 10.0
"""Minimum interval between two transfers, in seconds: a failed one costs its timeout."""
MAX_SHARE_OF_DISK = 0.05


def effective_reserve_bytes(configured_bytes: int, disk_bytes: int) -> int:
    """Return the reserve for a disk of this size, at most MAX_SHARE_OF_DISK of it."""
    return min(configured_bytes, int(disk_bytes * MAX_SHARE_OF_DISK))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A leader's measures against a lack of space.

    ``refusal``: why writes are refused, or "" if they are accepted. ``transfer_to``: the successor,
    or -1 for no transfer.
    """

    refusal: str = ""
    transfer_to: int = -1


FINE = Verdict()


class SpaceWatch:
    """Measures the free space of one node's disk once a second, and decides a leader's measures
    when it is low.

    With a reserve of 0 it never measures.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._next_check = 0.0
        self._next_transfer_at = 0.0
        self.free_bytes = -1
        """Free bytes as last measured; -1 before the first measurement."""
        self.low = False
        """True while less than the reserve is free on this node's disk."""
        self.verdict = FINE
        """Result of the last ``judge``."""

    def due(self, now: float) -> bool:
        """Return whether to measure now."""
        if not self._reserve_bytes or now < self._next_check:
            return False
        self._next_check = now + CHECK_EVERY_S
        return True

    def measured(self, free_bytes: int) -> bool:
        """Record the free bytes. Return whether ``low`` has changed."""
        self.free_bytes = free_bytes
        limit = self._reserve_bytes * (ENOUGH_FACTOR if self.low else 1)
        was, self.low = self.low, free_bytes < limit
        return was != self.low

    def judge(self, seen: QuorumDescription, node_id: int, now: float) -> Verdict:
        """Decide the measures of this node, which leads."""
        low = sorted(
            replica.node_id
            for replica in seen.voters
            if (self.low if replica.node_id == node_id else replica.low_on_space)
        )
        with_space, majority = len(seen.voters) - len(low), len(seen.voters) // 2 + 1
        if with_space < majority:
            self.verdict = Verdict(
                f"the disks of nodes {low} are below their free-space reserve, which leaves no"
                " majority of voters"
            )
        elif not self.low:
            self.verdict = FINE
        else:
            self.verdict = self._leave(seen, node_id, low, now)
        return self.verdict

    def _leave(self, seen: QuorumDescription, node_id: int, low: list[int], now: float) -> Verdict:
        successor = best_successor(seen, node_id)
        if successor < 0 or successor in low:
            return Verdict(
                f"the disk of the leader, node {node_id}, is below its free-space reserve,"
                f" and no live voter with space can take over (without space: {low})"
            )
        if now < self._next_transfer_at:
            return FINE
        self._next_transfer_at = now + TRANSFER_EVERY_S
        return Verdict(transfer_to=successor)
