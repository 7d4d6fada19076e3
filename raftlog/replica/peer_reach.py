"""Whether another node answers, as this node finds it. It is told to operators; no rule uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerReach:
    """One peer at one moment. ``reason``: the address that was dialed, and why there is no answer;
    empty: there is one.
    """

    node_id: int
    reason: str = ""
    for_ms: int = 0
    """How long there has been none."""

    @property
    def is_reached(self) -> bool:
        """Whether it answers."""
        return not self.reason
