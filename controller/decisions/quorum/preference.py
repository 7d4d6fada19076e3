"""The preferred leader: the live voter with the highest controller.quorum.leader.priority.

It gets the leadership once it has been caught up without a gap for a minimum time. That time
doubles with each leadership that it has lost within the last hour, up to half an hour, so an
intermittent link causes a bounded number of transfers, whatever its timing. (With a fixed time, a
link that breaks soon after each transfer would cause an election and a transfer every few seconds,
for ever.)

Each node remembers the leaderships that it has seen end; the leader decides.
"""

from __future__ import annotations

from collections import deque

from controller.decisions.quorum.autopilot import Sightings
from raftlog.quorum.core import QuorumDescription, ReplicaDescription

STEADY_S = 10.0
"""Time in seconds for which a preferred voter must be caught up before it leads."""
STEADY_MAX_S = 1800.0
"""Upper bound of that time, in seconds, after lost leaderships."""
WINDOW_S = 3600.0
"""Time in seconds for which a loss counts."""
MAX_LOSSES = 64
"""Maximum number of losses remembered."""


class LeaderPreference:
    """One node's record of lost leaderships, and its choice of a successor, over all epochs."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._leader_id, self._epoch = -1, -1
        self._losses: deque[tuple[float, int]] = deque(maxlen=MAX_LOSSES)
        self._sightings = Sightings()

    def observe(self, leader_id: int, epoch: int, now: float) -> None:
        """Record the leader, or -1 if none is known.

        A leadership ends with its epoch.
        """
        if epoch != self._epoch:
            if self._leader_id >= 0:
                self._losses.append((now, self._leader_id))
            self._leader_id, self._epoch = -1, epoch
            self._sightings = Sightings()
        if leader_id >= 0:
            self._leader_id = leader_id

    def steady_s(self, node_id: int, now: float) -> float:
        """Return for how many seconds a voter must be caught up before it gets the leadership."""
        lost = sum(one == node_id and now - at < WINDOW_S for at, one in self._losses)
        return min(STEADY_MAX_S, STEADY_S * 2.0**lost)

    def successor(self, seen: QuorumDescription, now: float) -> int:
        """Return the voter to which this leader should transfer the leadership now, or -1
        if none.
        """
        own = next((one for one in seen.voters if one.node_id == self._node_id), None)
        if own is None:
            return -1
        preferred = [
            one
            for one in seen.voters
            if one.leader_priority > own.leader_priority and not one.low_on_space
        ]
        self._sightings.update(preferred, now)
        ready = [one for one in preferred if self._is_ready(one, now)]
        best = max(ready, key=lambda one: (one.leader_priority, -one.node_id), default=None)
        return -1 if best is None else best.node_id

    def _is_ready(self, one: ReplicaDescription, now: float) -> bool:
        steady_s = self._sightings.steady_s((one.node_id, one.directory_id), now)
        return steady_s is not None and steady_s >= self.steady_s(one.node_id, now)

    def transferred(self, node_id: int, *, succeeded: bool, now: float) -> None:
        """Record the end of a transfer.

        A failed one counts as a loss, because writes had to stop for it. After a success the next
        epoch is recorded as the successor's: this node may never hear of it if the successor loses
        it soon, and would not record the loss.
        """
        self._sightings = Sightings()
        if succeeded:
            self._leader_id, self._epoch = node_id, self._epoch + 1
        else:
            self._losses.append((now, node_id))
