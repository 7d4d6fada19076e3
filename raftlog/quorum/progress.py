"""How far the replicas are, as their Fetches say: what the leader counts with."""

from __future__ import annotations

from raftlog.quorum.voters import VoterSet

OBSERVER_FORGOTTEN_AFTER_S = 300.0
MAX_OBSERVERS = 1000
"""Tracked at once; the one that fetched longest ago makes room."""


class ReplicaProgress:
    """One replica.

    ``end_offset``: durable there, exclusive; -1 unknown. Times are monotonic seconds; None: never.
    """

    __slots__ = (
        "caught_up_at",
        "directory_id",
        "echoed_round",
        "end_offset",
        "fetched_at",
        "is_voter",
        "leader_end_at",
        "leader_end_then",
        "low_on_space",
        "max_metadata_version",
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
        self.leader_end_at: float | None = None
        self.max_metadata_version = 0
        self.low_on_space = False

    def acknowledge(self, end_offset: int, leader_end: int, now: float) -> None:
        """A valid Fetch says: everything below ``end_offset`` is durable here.

        Caught up means: has all that the leader had now, or had at the Fetch before.
        """
        if end_offset >= leader_end:
            self.caught_up_at = now
        elif self.leader_end_then != -1 and end_offset >= self.leader_end_then:
            self.caught_up_at = self.leader_end_at
        self.end_offset = end_offset
        self.leader_end_then = leader_end
        self.leader_end_at = self.fetched_at = now


class Progress:
    """All replicas of one leader in one epoch.

    A voter is matched by id and directory id. Where the set does not know the directory, the first
    one that fetches in this epoch is it, and the same id on another disk is just an observer: it
    promised nothing. The leader counts if it is a voter.
    """

    def __init__(
        self, voters: VoterSet, leader_id: int, now: float, *, counts_leader: bool = True
    ) -> None:
        self._leader_id = leader_id
        self.voters: dict[int, ReplicaProgress] = {}
        self.observers: dict[tuple[int, str], ReplicaProgress] = {}
        self.take(voters, now, counts_leader=counts_leader)

    def take(self, voters: VoterSet, now: float, *, counts_leader: bool) -> None:
        """``voters`` count from now on.

        What is known of a replica stays, whether it was a voter or an observer before.
        """
        old, self.voters = self.voters, {}
        self._majority, self._since, self.counts_leader = voters.majority, now, counts_leader
        for node_id in voters.ids:
            if node_id != self._leader_id:
                self.voters[node_id] = self._known(
                    old.get(node_id), node_id, voters.directory_of(node_id) or None
                )
        for node_id, replica in old.items():
            if self.voters.get(node_id) is not replica and replica.directory_id is not None:
                replica.is_voter = False
                self.observers[(node_id, replica.directory_id)] = replica
        self._voter_list = list(self.voters.values())

    def _known(
        self, voter: ReplicaProgress | None, node_id: int, directory_id: str | None
    ) -> ReplicaProgress:
        if voter is not None and (
            None in (directory_id, voter.directory_id) or voter.directory_id == directory_id
        ):
            voter.directory_id = voter.directory_id or directory_id
            return voter
        replica = (
            self.observers.pop((node_id, directory_id), None) if directory_id is not None else None
        )
        if replica is None:
            replica = ReplicaProgress(node_id, directory_id, is_voter=True)
        replica.is_voter = True
        return replica

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
                del self.observers[
                    min(
                        self.observers, key=lambda key: (self.observers[key].fetched_at or 0.0, key)
                    )
                ]
            observer = ReplicaProgress(node_id, directory_id, is_voter=False)
            self.observers[(node_id, directory_id)] = observer
        return observer

    def forget_silent_observers(self, now: float) -> None:
        """Drop observers that have not fetched for long."""
        for key, replica in list(self.observers.items()):
            if replica.fetched_at is None or now - replica.fetched_at >= OBSERVER_FORGOTTEN_AFTER_S:
                del self.observers[key]

    def majority_offset(self, own_flushed_end: int) -> int:
        """The highest offset that a majority has durable, the leader counted at its flushed end. -1
        if unknown.
        """
        offsets = [own_flushed_end] if self.counts_leader else []
        # No comprehension, which would be a call: each fetch and each flush asks.
        for replica in self._voter_list:
            offsets.append(replica.end_offset)  # noqa: PERF401
        offsets.sort()
        return offsets[-self._majority]

    def majority_round(self, own_round: int) -> int:
        """The highest read-index round that a majority has echoed, the leader included."""
        rounds = [replica.echoed_round for replica in self._voter_list]
        if self.counts_leader:
            rounds.append(own_round)
        rounds.sort()
        return rounds[-self._majority]

    def majority_heard_at(self, now: float) -> float:
        """Since when a majority, the leader included, has fetched: the latest time t such that a
        majority did so at t or later.
        """
        times = [
            self._since if replica.fetched_at is None else replica.fetched_at
            for replica in self._voter_list
        ]
        if self.counts_leader:
            times.append(now)
        times.sort()
        return times[-self._majority]

    def silent_voters(self, since: float) -> list[int]:
        """Voters that have not fetched since then, by id."""
        return [r.node_id for r in self._voter_list if r.fetched_at is None or r.fetched_at < since]

    def preferred_candidates(self) -> tuple[int, ...]:
        """The other voters, the most complete first."""
        return tuple(
            sorted(self.voters, key=lambda node_id: (-self.voters[node_id].end_offset, node_id))
        )
