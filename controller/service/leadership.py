"""What a node keeps for one epoch that it leads: the epoch's log, the replies that wait, and who
decides.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import random
from collections.abc import Callable

from controller.decider import Decider
from controller.service.image_loader import SLICE_BYTES
from controller.service.parking import Parked, Parking
from controller.settings import ControllerSettings
from controller.state.epoch_log import EpochLog
from controller.state.state import ControllerState
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica


class Leadership:
    """One epoch.

    ``decider`` is None until the whole local log, the inherited tail included, is in ``log``.
    """

    def __init__(
        self,
        epoch: int,
        epoch_start_offset: int,
        committed: Image,
        log_hash: LogHash,
        send: Callable[[Parked], None],
    ) -> None:
        self.log = EpochLog(epoch, epoch_start_offset, committed, log_hash)
        self.parking = Parking(send)
        self.decider: Decider | None = None
        self.visibility_seen: tuple[int, int] = (-1, -1)
        """LAO and the lowest known LAO as last acted upon."""
        self.reads_round = 0
        """The read-index round after which more requests that only read are decided."""
        self.long_round = 0
        """The round of the last turn that was long and had reads: nothing more is decided before it
        is confirmed.
        """

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self.log.epoch

    def claim(
        self,
        replica: Replica,
        quorum: QuorumConfig,
        settings: ControllerSettings,
        rng: random.Random,
        now: float,
    ) -> bool:
        """Fold one slice of the log; at its end, become active. True when active."""
        log, end = self.log, replica.log_end_offset
        if log.end_offset < end:
            log.inherit(replica.read(log.end_offset, end, SLICE_BYTES))
        # Until this epoch's first record is in the log, there is more to come.
        if log.end_offset < end or end <= log.epoch_start_offset:
            return False
        log.claimed()
        lineage = replica.lineage
        state = ControllerState(
            log,
            settings,
            quorum.cluster_id,
            rng,
            now,
            lineage.current,
            lineage.below(end)[:-1],
            lineage.recoveries,
        )
        self.decider = Decider(state, log.report, quorum.node_id, replica.describe)
        return True

    def propose(self, replica: Replica, timestamp_ms: int, *, idle: bool) -> None:
        """Append all that was added to the log of this timestamp, if there is something, as one
        chunk.
        """
        log = self.log
        chunk = log.cut()
        if chunk is not None:
            replica.propose(
                chunk.data,
                chunk.base_offset,
                log.end_offset,
                log.epoch,
                timestamp_ms,
                idle=idle,
                voters=chunk.voters,
            )
