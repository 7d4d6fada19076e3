"""Snapshots of a node (KIP-630): when it takes one of its committed image, which old ones it keeps,
and how it starts from one.

Each node, leader or not, takes its own snapshots from a reference to its committed image, in slices
off the hot path. The policies are pure; ``SnapshotGenerator`` carries them out.

Why: docs/decisions/007-snapshots.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from controller.decisions.clients.export_cursors import cursors_of
from controller.disk.retention import Held, Retention
from controller.settings import ControllerSettings
from raftlog.errors import CorruptLogError
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash
from raftlog.metadata.snapshot import BATCH_BYTES, SnapshotLoader, header_of, pieces
from raftlog.node.observability.figures import SnapshotFigures
from raftlog.node.replica.replica import Replica
from raftlog.node.replica.snapshots import ReplicaSnapshots
from raftlog.node.storage.api import SnapshotId

log = structlog.get_logger(__name__)

ASK_AGAIN_S = 1.0
"""Delay, in seconds, after a snapshot that was due could not be taken."""
SMALL_BYTES = 4 << 20
SNAPSHOT_GROWTH = 4
"""Log bytes between two snapshots of a state above SMALL_BYTES, as a multiple of the state's size.

With less, a busy cluster with a large state would spend much of its time on snapshots. Also, a
snapshot about as large as the log below it saves little: loading it takes half as long as replaying
the log.
"""
RETENTION_EVERY_S = 10.0
"""Interval in seconds at which retention is checked. A check deletes at most one snapshot, as its
space is freed only later.
"""


@dataclass(slots=True)
class Trigger:
    """The last snapshot.

    ``since``: when it was taken, in seconds of the loop's clock. ``applied_before``: bytes of the
    log that this node had applied by then.
    """

    since: float
    applied_before: int = 0

    def due(
        self, now: float, applied_bytes: int, state_bytes: int, settings: ControllerSettings
    ) -> bool:
        """Return whether another snapshot is due, for a state of this size."""
        applied_bytes -= self.applied_before
        least_bytes = settings.metadata_log_max_record_bytes_between_snapshots
        if state_bytes > SMALL_BYTES:
            least_bytes = max(least_bytes, SNAPSHOT_GROWTH * state_bytes)
        if applied_bytes >= least_bytes:
            return True
        interval_ms = settings.metadata_log_max_snapshot_interval_ms
        return interval_ms > 0 and applied_bytes > 0 and (now - self.since) * 1000 >= interval_ms


class SnapshotLoad:
    """Loads one complete snapshot of this node into an image, one slice per call."""

    def __init__(self, snapshots: ReplicaSnapshots, snapshot_id: SnapshotId) -> None:
        self.snapshot_id = snapshot_id
        self._snapshots = snapshots
        self._loader = SnapshotLoader(flat=True)
        self._position = 0

    def log_hash(self) -> LogHash:
        """Return the hash of the log below the snapshot's end, once all of it is loaded."""
        return self._loader.log_hash()

    def step(self) -> Image | None:
        """Load a slice. Return the image after the last slice, else None.

        Raises CorruptLogError, UnknownRecordError, StorageError.
        """
        try:
            data = self._snapshots.read(self.snapshot_id, self._position, BATCH_BYTES)
        except LookupError:
            raise CorruptLogError(
                f"snapshot {self.snapshot_id}, at which the log begins, does not exist"
            ) from None
        if data:
            self._position += len(data)
            self._loader.feed(data)
            return None
        image = self._loader.finish()
        header = self._loader.header
        assert header is not None
        if (header.end_offset, header.epoch) != (
            self.snapshot_id.end_offset,
            self.snapshot_id.epoch,
        ):
            raise CorruptLogError(
                f"snapshot {self.snapshot_id} has a header with end offset {header.end_offset} and"
                f" epoch {header.epoch}"
            )
        return image


class SnapshotGenerator:
    """Takes one node's snapshots when they are due, and deletes the oldest as retention decides."""

    def __init__(
        self,
        settings: ControllerSettings,
        replica: Replica,
        *,
        cluster_id: str,
        now: float,
    ) -> None:
        self._settings, self._replica = settings, replica
        self._cluster_id = cluster_id
        self._trigger = Trigger(now)
        self._ask_at = self._retention_at = now
        self._retention = Retention(settings)
        self._timestamps: dict[SnapshotId, int] = {}
        self._writing: Image | None = None
        self.generated = 0
        """Number of snapshots taken by this process."""
        self.generated_bytes = 0
        """Size in bytes of the last snapshot taken by this process; 0 if none was taken."""
        self.generated_at = now
        """Time of the last snapshot, in seconds of the loop's clock; the start of the process if
        none was taken.
        """
        self.loaded = 0
        """Number of times that this node started from a snapshot, or had one installed."""

    def figures(self, now: float) -> SnapshotFigures:
        """Return the figures for metrics."""
        return SnapshotFigures(
            count=len(self._replica.snapshots.ids),
            newest_bytes=self._newest_bytes(),
            generated_bytes=self.generated_bytes,
            generated_age_ms=(now - self.generated_at) * 1000,
            loaded=self.loaded,
            cursors_holding=len(self._retention.held_by),
            cursors_passed=self._retention.passed,
        )

    def _newest_bytes(self) -> int:
        newest = self._replica.snapshots.newest
        return self._replica.snapshots.size(newest) if newest else 0

    def installed(self, now: float, applied_bytes: int) -> None:
        """Record that the image now begins with a snapshot.

        If a snapshot of an older image is being taken, the replica abandons it.
        """
        self.loaded += 1
        self._writing = None
        self._trigger = Trigger(now, applied_bytes)

    def tick(
        self,
        now: float,
        applied_bytes: int,
        state_bytes: int,
        image: Callable[[], Image],
        log_hash: LogHash,
        *,
        low_on_space: bool = False,
    ) -> None:
        """Take a snapshot if one is due, and delete an old one.

        ``applied_bytes``: bytes of the log that this node has applied since its start. ``image``:
        makes the committed image, which may be expensive. ``state_bytes``: its size. ``log_hash``:
        hash of the log up to it. ``low_on_space``: the disk is below its reserve.
        """
        due = (
            self._writing is None
            and now >= self._ask_at
            and self._trigger.due(now, applied_bytes, state_bytes, self._settings)
        )
        if due and not self._take(now, applied_bytes, image(), log_hash):
            self._ask_at = now + ASK_AGAIN_S
        if now >= self._retention_at:
            self._retention_at = now + RETENTION_EVERY_S
            self._keep_retention(image, low_on_space=low_on_space)

    def _take(self, now: float, applied_bytes: int, image: Image, log_hash: LogHash) -> bool:
        """Begin a snapshot of this committed image. Return whether one was needed and possible."""
        newest = self._replica.snapshots.newest
        newest_end = newest.end_offset if newest else 0
        if self._writing is not None or image.offset + 1 <= newest_end:
            return False
        self._writing = image
        self._trigger = Trigger(now, applied_bytes)
        header = header_of(
            image,
            cluster_id=self._cluster_id,
            generations=self._replica.lineage.below(image.offset + 1),
        )
        self._replica.snapshots.write(header, pieces(image, header, log_hash), self._taken)
        return True

    def _taken(self, snapshot_id: SnapshotId, size: int) -> None:
        self._writing = None
        self.generated += 1
        self.generated_bytes, self.generated_at = size, self._trigger.since
        # Deferred, as this call may be inside a step of the replica.
        self._retention_at = 0.0
        log.info(
            "snapshot taken", end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch, bytes=size
        )

    def _keep_retention(self, image: Callable[[], Image], *, low_on_space: bool) -> None:
        held, replica = self._held(), self._replica
        verdict = self._retention.decide(
            held,
            replica.log_start_offset,
            replica.used_bytes,
            replica.time_ms(),
            lambda: cursors_of(image()),
            lambda: [] if low_on_space else replica.snapshots.fetched(),
        )
        start = verdict.start
        if start is not None and replica.advance_log_start(start):
            self._retention.advanced(verdict)
            log.info(
                "log start advanced",
                offset=start.end_offset,
                dropped_snapshot=held[0].snapshot_id.end_offset,
            )

    def _held(self) -> list[Held]:
        ids = self._replica.snapshots.ids
        self._timestamps = {
            one: (
                self._timestamps[one]
                if one in self._timestamps
                else self._replica.snapshots.header(one).last_timestamp_ms
            )
            for one in ids
        }
        return [Held(one, self._timestamps[one]) for one in ids]
