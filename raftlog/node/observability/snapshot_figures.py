"""Counts of a node's snapshots, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The snapshots of a node.

    ``generated_age_ms``: time since the last one was written here, or since the start.
    """

    count: int
    newest_bytes: int
    generated_bytes: int
    generated_age_ms: float
    loaded: int
    cursors_holding: int = 0
    """Number of export cursors for which the node keeps more of its log than otherwise."""
    cursors_passed: int = 0
    """Number of export cursors beyond which it has dropped its log."""
