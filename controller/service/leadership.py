"""What exists for one epoch of leading only: the pending image, LAO, sessions, and the replies that
wait.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from controller.decider import Decider
from controller.service.chunk import ChunkBuilder
from controller.service.image_loader import fold_slice
from controller.service.parking import Parked, Parking
from controller.settings import ControllerSettings
from controller.state.sessions import SessionTracker
from controller.visibility.lao import LaoTracker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica
from raftlog.wire.common.v1 import common_pb2


class Leadership:
    """One epoch.

    ``active`` is None until the whole local log, the inherited tail included, is folded into
    ``pending``.
    """

    def __init__(
        self, epoch: int, epoch_start_offset: int, committed: Image, send: Callable[[Parked], None]
    ) -> None:
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.pending = ImageBuilder(committed)
        self.lao = LaoTracker(epoch, epoch_start_offset)
        self.lao.seed(committed)
        self.parking = Parking(send)
        self.decider: Decider | None = None
        self.visibility_seen: tuple[int, int] = (-1, -1)
        """LAO and the minimum of told as last acted upon."""
        self.long_round = 0
        """The round of the last turn that was long and had reads: nothing more is decided before it
        is confirmed.
        """
        self._claim_image = committed
        self._chunk = ChunkBuilder(self.pending, epoch)
        # The end of each proposed chunk, the image there, and the chunk's bytes: it becomes the
        # committed one without being folded again.
        self._images: deque[tuple[int, Image, int]] = deque()
        self._bytes = 0

    @property
    def uncommitted_chunks(self) -> int:
        """How many proposed chunks are not committed yet; the inherited tail counts as one."""
        return len(self._images)

    def claim(
        self,
        replica: Replica,
        quorum: QuorumConfig,
        settings: ControllerSettings,
        rng: random.Random,
        now: float,
        generation: int,
    ) -> bool:
        """Fold one slice of the log; at its end, become active. True when active."""
        end = replica.log_end_offset
        arrived = fold_slice(
            self.pending, replica, end, count=self._count, observe=self.lao.proposed
        )
        # Until this epoch's first record is in the log, there is more to come.
        if not arrived or end <= self.epoch_start_offset:
            return False
        self._keep_image()
        self.decider = Decider(
            node_id=quorum.node_id,
            cluster_id=quorum.cluster_id,
            epoch=self.epoch,
            epoch_start_offset=self.epoch_start_offset,
            settings=settings,
            pending=self.pending,
            committed=self._claim_image,
            lao=self.lao,
            sessions=SessionTracker(settings.broker_session_timeout_ms / 1000),
            rng=rng,
            now=now,
            quorum=replica.describe,
            generation=generation,
        )
        return True

    def add(
        self, records: list[Record], client: common_pb2.ClientIdentity | None, timestamp_ms: int
    ) -> None:
        """Take what was decided: the next decision sees it. Raises FoldError."""
        base_offset = self.pending.offset + 1
        self._chunk.add(records, client, timestamp_ms)
        self.lao.proposed(records, base_offset)

    def propose(self, replica: Replica, *, idle: bool) -> None:
        """Append all that was added, if there is something, as one chunk."""
        cut = self._chunk.cut()
        if cut is not None:
            chunk, base_offset, voters = cut
            self._count(len(chunk))
            replica.propose(
                chunk, base_offset, self._keep_image(), self.epoch, idle=idle, voters=voters
            )

    def _keep_image(self) -> int:
        image = self.pending.snapshot()
        self._images.append((image.offset + 1, image, self._bytes))
        self._bytes = 0
        return image.offset + 1

    def _count(self, folded_bytes: int) -> None:
        self._bytes += folded_bytes

    def committed(self, high_watermark: int) -> tuple[Image, int] | None:
        """The newest image that is committed by now and the bytes of the log since the last one, if
        there is a new one.
        """
        image, total_bytes = None, 0
        while self._images and self._images[0][0] <= high_watermark:
            _, image, size = self._images.popleft()
            total_bytes += size
        return (image, total_bytes) if image is not None else None
