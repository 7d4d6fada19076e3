"""What a node counts of its snapshots, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """What a node says of its snapshots.

    ``generated_age_ms``: since the last one was taken here, or since the start.
    """

    count: int
    newest_bytes: int
    generated_bytes: int
    generated_age_ms: float
    loaded: int
    cursors_holding: int = 0
    """Export cursors for whose sake the node keeps more of its log than it would."""
    cursors_passed: int = 0
    """Export cursors beyond which it has dropped its log all the same."""
