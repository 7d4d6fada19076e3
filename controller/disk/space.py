"""The free-space reserve: a disk that fills up stops writes while there is still room for elections
and for repair.

A node without its reserve says so to the leader in every Fetch. Who leads without it hands over to
somebody who has it. While those that have it are no majority, writes are refused: what they would
add could not be stored by enough voters for long.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.decisions.quorum.transfer import best_successor
from raftlog.quorum.core import QuorumDescription

CHECK_EVERY_S = 1.0
ENOUGH_FACTOR = 1.25
"""Of the reserve: how much must be free again, so that it does not flutter."""
TRANSFER_EVERY_S = 10.0
"""A hand-over that fails costs its timeout: it is not tried again sooner."""
MAX_SHARE_OF_DISK = 0.05


def effective_reserve_bytes(configured_bytes: int, disk_bytes: int) -> int:
    """The reserve on a disk of this size: never more than a twentieth of it."""
    return min(configured_bytes, int(disk_bytes * MAX_SHARE_OF_DISK))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a leader has to do about space.

    ``refusal`` not empty: why writes are refused. ``transfer_to`` -1: nobody.
    """

    refusal: str = ""
    transfer_to: int = -1


FINE = Verdict()


class SpaceWatch:
    """One node's disk, looked at once a second, and what its being full means for a leader.

    0 as reserve: never looked at.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._next_check = 0.0
        self._next_transfer_at = 0.0
        self.free_bytes = -1
        """As last measured; -1: not yet."""
        self.low = False
        """Whether less than the reserve is free here."""
        self.verdict = FINE
        """As last judged."""

    def due(self, now: float) -> bool:
        """Whether to look at the disk now."""
        if not self._reserve_bytes or now < self._next_check:
            return False
        self._next_check = now + CHECK_EVERY_S
        return True

    def measured(self, free_bytes: int) -> bool:
        """So much is free; True if ``low`` has changed."""
        self.free_bytes = free_bytes
        limit = self._reserve_bytes * (ENOUGH_FACTOR if self.low else 1)
        was, self.low = self.low, free_bytes < limit
        return was != self.low

    def judge(self, seen: QuorumDescription, node_id: int, now: float) -> Verdict:
        """What this node has to do, leading."""
        low = sorted(
            replica.node_id
            for replica in seen.voters
            if (self.low if replica.node_id == node_id else replica.low_on_space)
        )
        with_space, majority = len(seen.voters) - len(low), len(seen.voters) // 2 + 1
        if with_space < majority:
            self.verdict = Verdict(
                f"the disks of nodes {low} are below their free-space reserve; no majority of"
                " voters is left"
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
                f"the disk of node {node_id}, which leads, is below its free-space reserve,"
                f" and no live voter with space can take over (without space: {low})"
            )
        if now < self._next_transfer_at:
            return FINE
        self._next_transfer_at = now + TRANSFER_EVERY_S
        return Verdict(transfer_to=successor)
