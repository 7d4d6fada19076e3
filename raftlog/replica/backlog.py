"""What waits in a replica, for whoever watches that it stays bounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaBacklog:
    """At one moment."""

    events: int
    """Not stepped yet; none outside a step."""
    held_effects: int
    """That wait for a vote to be durable, the votes themselves included."""
    tail_cache_bytes: int
    """Of the newest chunks, kept in memory for followers and observers."""
