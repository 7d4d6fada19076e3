"""Looks at this node's disk, and does what the free-space reserve asks for: writes are refused, or
the leadership is handed over.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from controller.disk.space import FINE
from controller.service.hand_over import HandOver
from controller.service.node import ControllerNode
from raftlog.storage.api import LogStore

log = structlog.get_logger(__name__)


class FreeSpace:
    """The disk of one node; ``SpaceWatch`` judges."""

    def __init__(
        self, node: ControllerNode, store: LogStore, hand_over: HandOver, wake: Callable[[], None]
    ) -> None:
        self._node, self._store, self._hand_over, self._wake = node, store, hand_over, wake

    def tick(self, now: float) -> None:
        """Look, if it is time. Raises FatalError."""
        node, space = self._node, self._node.space
        if not space.due(now):
            return
        free_bytes = self._store.free_bytes()
        if space.measured(free_bytes):
            log.warning(
                "disk below the free-space reserve" if space.low else "disk has space again",
                free_bytes=free_bytes,
            )
            node.replica.space_changed(low=space.low)
        if node.leadership is None:
            space.verdict = FINE
            return
        before = space.verdict.refusal
        verdict = space.judge(node.replica.describe(now), node.quorum.node_id, now)
        if verdict.refusal != before:
            log.error(
                "writes are refused" if verdict.refusal else "writes go on", reason=verdict.refusal
            )
            self._wake()
        if verdict.hand_over_to >= 0 and node.leadership.decider is not None:
            self._hand_over.begin(verdict.hand_over_to, "the disk is below its free-space reserve")
