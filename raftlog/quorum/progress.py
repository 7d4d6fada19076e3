"""How far the replicas are, as their Fetches say: what the leader counts with."""

from __future__ import annotations

from raftlog.quorum.voters import VoterSet

OBSERVER_FORGOTTEN_AFTER_S = 300.0
MAX_OBSERVERS = 1000
"""Tracked at once; the one that fetched longest ago makes room."""


class ReplicaProgress:
    """One replica. ``end_offset``: durable there, exclusive; -1 unknown. Times are monotonic seconds; None: never."""

    __slots__ = (
        "caught_up_at",
        "directory_id",
        "echoed_round",
        "end_offset",
        "fetched_at",
        "is_voter",
        "leader_end_then",
        "node_id",
    )

    def __init__(self, node_id: int, directory_id: str | None, *, is_voter: bool) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.is_voter = is_voter
        self.end_offset = -1
        self.echoed_round = 0
        self.fetched_at: float | None = None
        self.caught_up_at: float | None = None
        self.leader_end_then = -1

    def acknowledge(self, end_offset: int, leader_end: int, now: float) -> None:
        """A valid Fetch says: everything below ``end_offset`` is durable here.

        Caught up means: has all that the leader had now, or had at the Fetch before.
        """
        if end_offset >= leader_end:
            self.caught_up_at = now
        elif self.leader_end_then != -1 and end_offset >= self.leader_end_then:
            self.caught_up_at = self.fetched_at
        self.end_offset = end_offset
        self.leader_end_then = leader_end
        self.fetched_at = now


class Progress:
    """All replicas of one leader in one epoch.

    A voter is matched by id and directory id. Where the set does not know the directory, the first one that fetches in this
    epoch is it, and the same id on another disk is just an observer: it promised nothing.
    """

    def __init__(self, voters: VoterSet, leader_id: int, now: float) -> None:
        self._majority = voters.majority
        self._since = now
        self.voters = {
            node_id: ReplicaProgress(node_id, voters.directory_of(node_id) or None, is_voter=True)
            for node_id in voters.ids
            if node_id != leader_id
        }
        self._voter_list = list(self.voters.values())
        self.observers: dict[tuple[int, str], ReplicaProgress] = {}

    def heard_from(self, node_id: int, directory_id: str) -> ReplicaProgress:
        """The replica that sent this Fetch."""
        voter = self.voters.get(node_id)
        if voter is not None:
            if voter.directory_id is None:
                voter.directory_id = directory_id
            if voter.directory_id == directory_id:
                return voter
        observer = self.observers.get((node_id, directory_id))
        if observer is None:
            if len(self.observers) >= MAX_OBSERVERS:
                del self.observers[min(self.observers, key=lambda key: (self.observers[key].fetched_at or 0.0, key))]
            observer = ReplicaProgress(node_id, directory_id, is_voter=False)
            self.observers[(node_id, directory_id)] = observer
        return observer

    def forget_silent_observers(self, now: float) -> None:
        """Drop observers that have not fetched for long."""
        for key, replica in list(self.observers.items()):
            if replica.fetched_at is None or now - replica.fetched_at >= OBSERVER_FORGOTTEN_AFTER_S:
                del self.observers[key]

    def majority_offset(self, own_flushed_end: int) -> int:
        """The highest offset that a majority has durable, the leader counted at its flushed end. -1 if unknown."""
        offsets = [replica.end_offset for replica in self._voter_list]
        offsets.append(own_flushed_end)
        offsets.sort()
        return offsets[-self._majority]

    def majority_round(self, own_round: int) -> int:
        """The highest confirmation round that a majority has echoed, the leader included."""
        rounds = [replica.echoed_round for replica in self._voter_list]
        rounds.append(own_round)
        rounds.sort()
        return rounds[-self._majority]

    def majority_heard_at(self, now: float) -> float:
        """Since when a majority, the leader included, has fetched: the latest time t such that a majority did so at t or later."""
        times = [self._since if replica.fetched_at is None else replica.fetched_at for replica in self._voter_list]
        times.append(now)
        times.sort()
        return times[-self._majority]

    def silent_voters(self, since: float) -> list[int]:
        """Voters that have not fetched since then, by id."""
        return [r.node_id for r in self._voter_list if r.fetched_at is None or r.fetched_at < since]

    def preferred_candidates(self) -> tuple[int, ...]:
        """The other voters, the most complete first."""
        return tuple(sorted(self.voters, key=lambda node_id: (-self.voters[node_id].end_offset, node_id)))
