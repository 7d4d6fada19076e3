"""The state of one controller node: its committed image, its leadership, and its knowledge of the
quorum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.decider import Decider
from controller.disk.snapshot_generator import SnapshotLoad
from controller.disk.space import SpaceWatch
from controller.service.replies import failure
from raftlog.endpoint import Voter, endpoint_on
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata import flat_map
from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, LogHash, extended
from raftlog.metadata.versions import Features
from raftlog.node.replica.replica import Replica
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum.config import QuorumConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.service.transfer import ConnectionDrain
    from controller.service.turns import Leadership


class Directory:
    """The active controller and the voters, as far as this node knows.

    ``voters``: the current voter set, committed or not.
    """

    def __init__(self, node_id: int, voters: tuple[Voter, ...]) -> None:
        self.node_id = node_id
        self.voters = voters
        self.leader_id = -1
        """Node id of the active controller; -1 if unknown."""
        self.leader_epoch = 0
        """The newest epoch that this node knows."""
        self.successor_id = -1
        """Successor after a completed transfer, while no leader is known; -1 if none."""
        self.outage = ""
        """Why this node knew no leader at the last tick; "" if it knew one."""

    def endpoint_of(self, leader_id: int, listener: str) -> str:
        """Return host:port of a voter on a listener, or "" if the voter is unknown or has no such
        listener.
        """
        known = (voter.endpoint for voter in self.voters if voter.node_id == leader_id)
        return endpoint_on(next(known, ""), listener)

    def not_controller(self) -> ApiError:
        """Return the error of a node that does not lead.

        It names the active controller if this node knows it; otherwise it states why the quorum has
        none.
        """
        leader_id = self.successor_id if self.leader_id == -1 else self.leader_id
        elsewhere = leader_id not in (-1, self.node_id)
        why = self.outage or ("" if elsewhere else "no leader is known")
        return ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"node {self.node_id} is not the active controller" + (f"; {why}" if why else ""),
            leader_id=leader_id if elsewhere else -1,
        )

    def failure(self, correlation_id: int, error: ApiError, listener: str) -> pb.ControllerResponse:
        """Return a response with an error, and with the endpoint, on this listener, of the leader
        that the error names.
        """
        endpoint = self.endpoint_of(error.leader_id, listener)
        return failure(
            correlation_id, error, controller_epoch=self.leader_epoch, leader_endpoint=endpoint
        )

    def successor(
        self, node_id: int, listener: str, *, takes_requests: bool
    ) -> pb.ControllerResponse:
        """Return a notice that ``node_id`` is about to lead, with its endpoint on this listener, so
        that clients can connect in advance.

        ``takes_requests``: clients should send their requests there from now on.
        """
        return pb.ControllerResponse(
            leader_id=node_id,
            leader_endpoint=self.endpoint_of(node_id, listener),
            controller_epoch=self.leader_epoch,
            successor_takes_requests=takes_requests,
        )


RECENT_HASHES = 256
SLICE_BYTES = 64 << 10
"""Log bytes folded in one step: this takes about a millisecond, during which fetches and votes
wait.
"""


class CommittedImage:
    """The committed image of this node, folded in slices that never block long; reads, exports and
    claims start from it.
    """

    def __init__(self) -> None:
        self.applied_bytes = 0
        """Bytes of the log folded since the start."""
        self._image = Image(configs=flat_map.empty())
        self._builder: ImageBuilder | None = None
        """Builder that has folded beyond the image; None if the image is up to date."""
        self.log_hash = EMPTY
        """Hash of the log up to ``offset``."""
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_HASHES)

    @property
    def offset(self) -> int:
        """Offset of the image. O(1)."""
        return self._newest.offset

    @property
    def image(self) -> Image:
        """The image, made on demand. Between two uses the fold writes in place and copies no map
        nodes.
        """
        builder = self._builder
        if builder is not None and builder.offset != self._image.offset:
            self._image = builder.snapshot()
        return self._image

    @property
    def features(self) -> Features:
        """Feature levels of the image, without making it."""
        return self._newest.features

    @property
    def epoch(self) -> int:
        """Epoch of the record at ``offset``."""
        return self._newest.epoch

    @property
    def state_hash(self) -> int:
        """State hash of the image, without making it."""
        return self._newest.state_hash & HASH_MASK

    def recent_state_hash(self, offset: int) -> int | None:
        """Return the state hash at a recently committed offset, or None if it is unknown."""
        return next((found for at, found in reversed(self._recent) if at == offset), None)

    @property
    def state_bytes(self) -> int:
        """Size of the state in bytes, without making the image."""
        return self._newest.state_bytes

    @property
    def _newest(self) -> Image | ImageBuilder:
        return self._image if self._builder is None else self._builder

    def replace(self, image: Image, log_hash: LogHash, applied_bytes: int = 0) -> None:
        """Replace the image with a snapshot's, or with one that a leader folded when it proposed
        the records, which are now committed.

        ``log_hash``: hash of the log up to the image's offset. ``applied_bytes``: bytes of the log
        between the two images.
        """
        # A leader calls this at each commit, and folds nothing here.
        self._image, self._builder, self.log_hash = image, None, log_hash
        self.applied_bytes += applied_bytes
        self._recent.append((image.offset, self.state_hash))

    def advance(self, replica: Replica, high_watermark: int) -> bool:
        """Fold one slice towards the high watermark. Return True once the image has reached it."""
        builder = self._builder
        if builder is None:
            builder = self._builder = ImageBuilder(self._image)
        offset = builder.offset + 1
        if offset < high_watermark:
            chunk = replica.read(offset, high_watermark, SLICE_BYTES)
            self.applied_bytes += len(chunk)
            builder.apply_chunk(chunk)
            self.log_hash = extended(self.log_hash, chunk)
            self._recent.append((builder.offset, self.state_hash))
        return builder.offset + 1 >= high_watermark


@dataclass(frozen=True, slots=True)
class ControllerDescription:
    """One controller, leader or not, at one moment.

    The state is as of the committed image, even if that was not made, and so lacks committed
    records that are not folded yet.
    """

    applied_offset: int
    """Offset of the last folded record; -1 if none is folded."""
    applied_epoch: int
    state_hash: int
    log_hash: LogHash
    waiting_requests: int
    """Number of requests that no turn has taken; deferred ones do not count."""
    waiting_bytes: int
    """Total size of these requests, in bytes."""
    next_tick_at: float
    """Time of the next tick by ``ControllerNode.now``; if it is long past, the event loop is
    blocked.
    """


STATE_HASH_MASK = (1 << 64) - 1
"""Bits of a state hash that observers report."""


class ControllerNode:
    """One controller node, leader or not."""

    def __init__(
        self,
        quorum: QuorumConfig,
        replica: Replica,
        drain: ConnectionDrain,
        space: SpaceWatch,
        now: Callable[[], float],
    ) -> None:
        """``now``: seconds of the loop's clock."""
        self.quorum = quorum
        self.cluster_id = quorum.cluster_id
        self.replica = replica
        self.space = space
        self.now = now
        self.directory = Directory(quorum.node_id, quorum.voters)
        self.committed = CommittedImage()
        self.load: SnapshotLoad | None = None
        """The snapshot below the log start while it is being loaded, else None."""
        self.committed_end = -1
        """High watermark, exclusive; -1 if unknown."""
        self.leadership: Leadership | None = None
        self.closed = False
        """True once the node has stopped permanently: it starts and sends nothing more."""
        self._drain = drain

    # --- this node -------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The committed image; it lags the high watermark only while a long log is being folded."""
        return self.committed.image

    @property
    def loading(self) -> bool:
        """True while the snapshot below the log start is being loaded."""
        return self.load is not None

    @property
    def log_start_offset(self) -> int:
        """First offset in this node's log."""
        return self.replica.log_start_offset

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot of this node, or None."""
        return self.replica.snapshots.newest

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Read whole batches of the log."""
        return self.replica.read(offset, until, max_bytes)

    def divergence(self, end_offset: int, applied: pb.AppliedBatch) -> tuple[int, int] | None:
        """Return (epoch, offset) at which this log and that of an observer diverge below
        ``end_offset``.

        ``applied``: the last batch that the observer has applied. Returns None if this log has that
        batch, or begins above it. An offset of ``end_offset`` means that the states diverge.
        """
        if end_offset < self.log_start_offset:
            return None
        parted = self.replica.divergence(end_offset, applied.epoch)
        if parted is not None:
            return parted
        state_hash = self.committed.recent_state_hash(end_offset - 1)
        if state_hash is not None and state_hash & STATE_HASH_MASK != applied.state_hash:
            return applied.epoch, end_offset
        same = self.replica.may_have_batch(applied.base_offset, end_offset, applied.crc)
        return None if same else (applied.epoch, applied.base_offset)

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether the committed image has this registration."""
        broker = self.committed.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    @property
    def quorum_time_ms(self) -> int:
        """Quorum time, in ms since 1970; 0 if unknown."""
        return self.replica.quorum_time_ms or 0

    # --- the quorum ------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Generation at the log's end; a leader's proposals have this generation."""
        return self.replica.lineage.current

    @property
    def committed_generation(self) -> int:
        """Generation of the committed log; 0 if no committed record is known."""
        return self.replica.generation

    @property
    def previous_generations(self) -> tuple[int, ...]:
        """The generations that the committed log descends from, oldest first."""
        return self.replica.lineage.below(self.replica.high_watermark)[:-1]

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The current voter set on this node, committed or not."""
        return self.directory.voters

    @property
    def leader_id(self) -> int:
        """Node id of the active controller, as far as this node knows; -1 if unknown."""
        return self.directory.leader_id

    @property
    def controller_epoch(self) -> int:
        """The newest epoch that this node knows."""
        return self.directory.leader_epoch

    def leader_endpoint(self, leader_id: int, listener: str) -> str:
        """Return host:port of a voter on a listener, or "" if it is unknown."""
        return self.directory.endpoint_of(leader_id, listener)

    # --- its leadership --------------------------------------------------------------------------

    @property
    def decider(self) -> Decider | None:
        """Decider of this node, or None unless it leads and has finished claiming."""
        return self.leadership.decider if self.leadership is not None else None

    @property
    def lowest_acknowledged_offset(self) -> int:
        """LAO, inclusive; -1 if unknown, as on every node that is not the active controller."""
        return self.leadership.log.lao.lao if self.leadership is not None else -1

    @property
    def lowest_known_lao(self) -> int:
        """The lowest LAO that an LAO member knows, for which ``visible`` waits; -1 if unknown, as
        on every node that is not the active controller.
        """
        return self.leadership.log.lao.min_known_lao if self.leadership is not None else -1

    def not_controller(self) -> ApiError | None:
        """Return why requests are refused here, or None if they are not."""
        if self.leadership is not None and not self._drain.begun:
            return None
        return self.directory.not_controller()
