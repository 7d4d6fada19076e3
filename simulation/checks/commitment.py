"""Commitment: which records a leader may call committed (I5, I8).

I5: at the moment the high watermark advances on a leader, everything below it is durable on a
majority of the voter set in force in its log; the disks themselves are asked, not the nodes. I8: a
leader does not commit by counting before a record of its own epoch is counted (Raft §5.4.2, figure
8).

Would catch: counting the leader before its flush, followers that acknowledge before theirs, a
majority of the wrong set, an observer counted, the commit of an older epoch's records by their
number alone.
"""

from __future__ import annotations

from typing_extensions import override

from raftlog.endpoint import Voter
from raftlog.quorum import events as ev
from simulation.checks.api import Checker, CheckFailedError, ControllerView
from simulation.checks.disks import holds_durably
from simulation.checks.ledger import Ledger, Node
from simulation.twins.disk import SimDisk


class Commitment(Checker):
    """Checker of I5 and I8."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.advances = 0
        """Number of advances of leaders' high watermarks: 0 means that nothing was checked."""
        self._disks: dict[tuple[int, str], SimDisk] = {}
        """Disks by node id and directory id.

        A lost disk stays: its records counted when they were acknowledged.
        """
        ledger.on(ev.HighWatermarkAdvanced, self._advanced)

    @override
    def controller_started(self, host: ControllerView) -> None:
        identity = host.disk.identity
        self._disks[identity.node_id, identity.directory_id] = host.disk

    def _advanced(self, node: Node, effect: ev.HighWatermarkAdvanced) -> None:
        if node.leads < 0:
            return
        self.advances += 1
        offset = effect.offset
        there = node.log.at(offset)
        assert there is not None
        epoch = there[0]
        if epoch != node.leads:
            raise CheckFailedError(
                f"I8: {node.name} leads epoch {node.leads} and commits up to {offset}, a record of"
                f" epoch {epoch}"
            )
        voters = node.voters
        holding = [voter.node_id for voter in voters if self._holds(voter, offset, epoch)]
        if len(holding) <= len(voters) // 2:
            raise CheckFailedError(
                f"I5: {node.name} commits up to {offset} in epoch {epoch}, durable only on"
                f" {holding} of the voters {[voter.node_id for voter in voters]}"
            )

    def _holds(self, voter: Voter, offset: int, epoch: int) -> bool:
        return any(
            node_id == voter.node_id
            and voter.directory_id in ("", directory_id)
            and holds_durably(disk, self._ledger.matching, offset, epoch)
            for (node_id, directory_id), disk in self._disks.items()
        )
