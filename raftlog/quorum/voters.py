"""A voter set: who counts. Matched by (node id, directory id) where the directory is known."""

from __future__ import annotations

from raftlog.errors import ConfigError
from raftlog.quorum.config import Voter


class VoterSet:
    """The voters, by ascending node id. Raises ConfigError if an id comes twice or is negative.

    An empty set is that of a node that was told of no voters: it observes.
    """

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self._by_id = {
            voter.node_id: voter for voter in sorted(voters, key=lambda voter: voter.node_id)
        }
        if len(self._by_id) != len(voters):
            raise ConfigError("the voter set must name each node once")
        if any(node_id < 0 for node_id in self._by_id):
            raise ConfigError("node ids of voters must not be negative")
        self.ids = tuple(self._by_id)
        self.majority = len(self.ids) // 2 + 1

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._by_id

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def all(self) -> tuple[Voter, ...]:
        """The voters, by ascending node id."""
        return tuple(self._by_id.values())

    @staticmethod
    def flaw(voters: tuple[Voter, ...]) -> str:
        """Why these voters make no set; empty if they do."""
        try:
            VoterSet(voters)
        except ConfigError as error:
            return str(error)
        return ""

    def includes(self, node_id: int, directory_id: str) -> bool:
        """Whether this replica is a voter.

        An unknown directory id in the set matches any (kraft.version 0).
        """
        voter = self._by_id.get(node_id)
        return voter is not None and voter.directory_id in ("", directory_id)

    def directory_of(self, node_id: int) -> str:
        """The voter's directory id, empty if not known."""
        return self._by_id[node_id].directory_id

    def endpoint_of(self, node_id: int) -> str:
        """Where the voter listens."""
        return self._by_id[node_id].endpoint

    def rank(self, node_id: int) -> int:
        """The voter's place in the order of ids, from 0."""
        return self.ids.index(node_id)

    def replicas_changed(self, other: VoterSet) -> int:
        """How many replicas joined or left between this set and ``other``.

        At most one keeps every majority of the one in touch with every majority of the other. A
        directory that becomes known changes nothing; another directory is another replica, so it is
        one that left and one that joined.
        """
        changed = 0
        for node_id in sorted({*self.ids, *other.ids}):
            if node_id not in self or node_id not in other:
                changed += 1
            elif self.directory_of(node_id) not in ("", other.directory_of(node_id)):
                changed += 2
        return changed
