"""The reports of a replica: events for its listener, refused messages, and its backlog."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from raftlog.endpoint import Voter
from raftlog.errors import FatalError
from raftlog.logger import get_logger
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum import events as ev


class ReplicaListener(Protocol):
    """The receiver of a replica's events, in order: the controller.

    All calls are made on the event loop, from inside the replica's step: a listener may propose,
    but must not block.
    """

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Process a new known (leader, epoch); -1 if the epoch's leader is unknown."""

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """Process the start of this node's leadership; its LeaderChange record is at
        ``epoch_start_offset``. Earlier records may be uncommitted.
        """

    def writes_wait(self) -> bool:
        """Return whether writes wait for this node to lead: then it proposes them at once."""

    def lost_leadership(self, epoch: int, reason: str) -> None:
        """Process the end of this node's leadership: the outcome of its uncommitted proposals is
        unknown.
        """

    def committed(self, high_watermark: int) -> None:
        """Process a new high watermark: every record below it is now committed."""

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """Process a snapshot at the beginning of the committed log, at startup or after it has
        replaced the log.

        ``committed`` follows at once, with the snapshot's end or a higher offset. The log below the
        end may be gone.
        """

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """Process a new current voter set, committed or not. ``offset``: as in VotersAt; -1 for the
        configured set.
        """

    def read_index_confirmed(self, number: int) -> None:
        """Process the proof that this node still led after the read-index round ``number``
        began.
        """

    def failed(self, error: FatalError) -> None:
        """Process the final stop of the replica: no write may be acknowledged after this."""


log = get_logger(__name__)

LOG_INTERVAL_S = 10.0
"""Shortest time between two log lines about one kind of refused message, in seconds, as a stranger
that reaches the port must not fill the disk.
"""


class Refusals:
    """Counts of the messages that this node refuses; each kind is logged at a bounded rate."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of refused messages by (message type, field)."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, effect: ev.Refused) -> None:
        """Count a refused message, and log it if its kind was not logged recently."""
        kind, now = (effect.message, effect.field), self._loop.time()
        self.counts[kind] += 1
        logged_at, count = self._logged.get(kind, (-math.inf, 0))
        if now - logged_at >= LOG_INTERVAL_S:
            self._logged[kind] = (now, self.counts[kind])
            log.warning(
                "a message is refused",
                message=effect.message,
                field=effect.field,
                reason=effect.reason,
                since_last_logged=self.counts[kind] - count,
            )


@dataclass(frozen=True, slots=True)
class ReplicaBacklog:
    """The pending work of a replica at one moment."""

    events: int
    """Number of events not stepped yet; 0 outside a step."""
    held_effects: int
    """Number of effects that wait for a vote to be durable, including the votes."""
    tail_cache_bytes: int
    """Size of the newest chunks that are kept in memory for followers and observers, in bytes."""
