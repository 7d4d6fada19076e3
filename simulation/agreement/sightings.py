"""Sightings: states of the nodes in a simulated cluster, noted while the nodes had them. After a
recovery of the quorum the log is of another generation: only the first one is exported, so only its
states count.
"""

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.errors import FatalError
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.snapshot_file import SnapshotVerifier
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from simulation.checks.api import BrokerView, Checker, ControllerView, present

SNAPSHOTS_KEPT = 8
PIECE_BYTES = 1 << 20


class Sighting(NamedTuple):
    """State of a node: the offset of its image (inclusive), that record's epoch, and the hash."""

    offset: int
    epoch: int
    state_hash: int


class Who(NamedTuple):
    """Node that had a state. ``source``: as in an export's manifest, "image" or "snapshot"."""

    name: str
    node_id: int
    source: str
    is_controller: bool

    def __str__(self) -> str:
        return self.name if self.source == "image" else f"a snapshot of {self.name}"


class Snapshot(NamedTuple):
    """A snapshot that a node had on its disk. ``end_offset`` is exclusive."""

    end_offset: int
    content: bytes


class Witness(Checker):
    """Checker that records the states and snapshots of the nodes in a run."""

    def __init__(self) -> None:
        self.sightings: dict[Sighting, Who] = {}
        self.snapshots: list[Snapshot] = []
        """Some of the nodes' snapshots, oldest first."""
        self._keep_each = 1
        self._snapshots_seen = 0
        self._generation = NO_GENERATION
        """Generation of the log that is exported, once a broker has reported it."""

    def sample(self) -> None:
        for host in self.world.controllers:
            if host.service is None or host.core is None or host.service.replica.lineage.recoveries:
                continue
            # What it has applied, not what it shows: an image that nobody has asked for is not made
            # for this.
            found = host.service.describe()
            self._saw(
                found.applied_offset,
                found.applied_epoch,
                found.state_hash,
                Who(host.name, host.id, "image", True),
            )

    def broker_moved(self, host: BrokerView) -> None:
        service = present(host.service)
        generation = service.view.generation
        self._generation = self._generation or generation
        if generation != self._generation:
            return
        tip = service.image
        self._saw(tip.offset, tip.epoch, tip.state_hash, Who(host.name, host.id, "image", False))

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, ev.SnapshotFrozen) or (
            isinstance(event, ev.SnapshotStored) and not event.error
        ):
            self._saw_snapshot(host, event.snapshot_id)

    def _saw(self, offset: int, epoch: int, state_hash: int, who: Who) -> None:
        if offset >= 0:
            self.sightings.setdefault(Sighting(offset, epoch, state_hash), who)

    def _saw_snapshot(self, host: ControllerView, snapshot_id: SnapshotId) -> None:
        snapshots, pieces = present(host.service).replica.snapshots, list[bytes]()
        verifier, position = SnapshotVerifier(), 0
        try:
            while piece := snapshots.read(snapshot_id, position, PIECE_BYTES):
                verifier.feed(piece)
                pieces.append(piece)
                position += len(piece)
            header = verifier.finish()
        except (FatalError, LookupError):
            # Not sound: the affair of those who check, and nothing that the cluster has said of its
            # state.
            return
        if len(header.generations) > 1:
            return
        who = Who(host.name, host.id, "snapshot", True)
        self._saw(header.end_offset - 1, header.epoch, present(verifier.state_hash), who)
        self._keep(Snapshot(header.end_offset, b"".join(pieces)))

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep a bounded number of snapshots, evenly spread over the run."""
        if self._snapshots_seen % self._keep_each == 0:
            self.snapshots.append(snapshot)
        self._snapshots_seen += 1
        if len(self.snapshots) > SNAPSHOTS_KEPT:
            del self.snapshots[1::2]
            self._keep_each *= 2
