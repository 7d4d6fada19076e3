"""The tick of a node, ten times a second: snapshots, the voter set, free space, and what has waited
too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from controller.disk.snapshot_generator import SnapshotGenerator
from controller.service.intake import Intake
from controller.service.node import ControllerNode
from controller.service.observers import Observers
from controller.service.reception import Reception
from controller.service.refusals import Refusals
from controller.service.stall_log import log_stall
from controller.service.timer import Timer
from raftlog.errors import FatalError
from raftlog.observability.journal import Journal

log = structlog.get_logger(__name__)

TICK_S = 0.1
GAP_S = 0.1
"""If the event loop is paused for longer (a stopped process, garbage collection, swap), it misses
heartbeats: it extends all sessions.
"""


class Chore(Protocol):
    """What looks at each tick whether it has something to do."""

    def tick(self, now: float) -> None:
        """Do what is due. Raises FatalError."""


class Housekeeping:
    """The tick of one node.

    ``chores``: done on every node, in this order; ``failed``: this node cannot go on; ``wake``: run
    a turn soon.
    """

    def __init__(
        self,
        node: ControllerNode,
        snapshots: SnapshotGenerator,
        chores: tuple[Chore, ...],
        *,
        reception: Reception,
        intake: Intake,
        refusals: Refusals,
        observers: Observers,
        journal: Journal,
        failed: Callable[[FatalError], None],
        wake: Callable[[], None],
        call_at: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._node, self._snapshots, self._chores = node, snapshots, chores
        self._reception, self._intake = reception, intake
        self._refusals, self._observers, self._journal = refusals, observers, journal
        self._failed, self._wake, self._call_at = failed, wake, call_at
        self._timer: Timer | None = None
        self.next_tick_at = 0.0
        """By the loop's clock; long past: the event loop is held up."""

    def start(self) -> None:
        """Tick until ``close``."""
        self._arm(self._node.now())

    def _arm(self, now: float) -> None:
        self.next_tick_at = now + TICK_S
        self._timer = self._call_at(self.next_tick_at, self._tick)

    def _tick(self) -> None:
        now = self._node.now()
        gap_s = now - self.next_tick_at
        self._arm(now)
        if gap_s > GAP_S:
            # Whoever leads now: if this node led before a long pause, the line says why it leads no
            # more.
            log.warning("the loop was away", gap_ms=round(gap_s * 1000))
        try:
            self._do_chores(now)
        except FatalError as error:
            self._failed(error)
        if not self._node.closed:
            self._reception.forget_gone()
            if self._node.leadership is not None:
                self._lead(now, gap_s)

    def _do_chores(self, now: float) -> None:
        node = self._node
        if not node.loading:
            committed = node.committed
            self._snapshots.tick(
                now,
                committed.state_bytes,
                lambda: committed.image,
                committed.log_hash,
                low_on_space=node.space.low,
            )
        for chore in self._chores:
            if not node.closed:
                chore.tick(now)

    def _lead(self, now: float, gap_s: float) -> None:
        """What only a leader has to do."""
        self._refusals.go_on()
        self._observers.release(expired_only=True)
        decider = self._node.decider
        if decider is None:
            return
        log_stall(decider, now, self._journal)
        if gap_s > GAP_S:
            decider.was_away(gap_s, now)
        elif self._intake.wake(now) or decider.due.next_deadline() <= now:
            self._wake()

    def close(self) -> None:
        """Stop for good."""
        if self._timer is not None:
            self._timer.cancel()
