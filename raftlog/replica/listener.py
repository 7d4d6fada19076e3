"""What a replica tells the one above it (the controller), in the order in which it happens."""

from __future__ import annotations

from typing import Protocol

from raftlog.errors import FatalError
from raftlog.storage.api import SnapshotId
from raftlog.voter import Voter


class ReplicaListener(Protocol):
    """All calls come on the event loop, from inside the replica's step: a listener may propose, but
    must not block.
    """

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """A new (leader, epoch) is known; -1: no leader is known in this epoch."""

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """This node leads; its LeaderChange record is at ``epoch_start_offset``.

        What lies before may be uncommitted.
        """

    def writes_wait(self) -> bool:
        """Whether writes wait for this node to lead: then it proposes them at once."""

    def lost_leadership(self, epoch: int, reason: str) -> None:
        """This node leads no more: what it proposed and did not see committed has an unknown
        outcome.
        """

    def committed(self, high_watermark: int) -> None:
        """Everything below ``high_watermark`` is committed, for ever."""

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """What is committed begins with this snapshot: at the start, and when one was installed in
        the place of the log.

        ``committed`` with its end, or a higher offset, follows at once. The log below its end may
        be gone.
        """

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """This voter set is in force, committed or not.

        ``offset``: as in VotersAt; -1: the configured set.
        """

    def read_index_confirmed(self, number: int) -> None:
        """This node still led after the read-index round ``number`` began."""

    def failed(self, error: FatalError) -> None:
        """The replica has stopped for good: nothing may be acknowledged any more."""
