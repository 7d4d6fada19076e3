"""What a controller has folded and what waits in it, for whoever watches a running node."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.metadata.log_hash import LogHash


@dataclass(frozen=True, slots=True)
class ControllerDescription:
    """One controller at one moment, leader or not.

    The state is that of the committed image, which need not have been made: behind the high
    watermark by what is not folded yet.
    """

    applied_offset: int
    """Of the last record folded; -1: none."""
    applied_epoch: int
    state_hash: int
    log_hash: LogHash
    waiting_requests: int
    """That no turn has taken yet; those that are put off do not count."""
    waiting_bytes: int
    """Of these requests."""
    next_tick_at: float
    """By the clock of ``ControllerNode.now``; long past: the event loop is held up."""
