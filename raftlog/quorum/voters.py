"""The voter set: who counts. Static in this version; matched by (node id, directory id) where the directory is known."""

from __future__ import annotations

from raftlog.errors import ConfigError
from raftlog.quorum.config import Voter


class VoterSet:
    """The voters, by ascending node id. Raises ConfigError if there is none or an id comes twice."""

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self._by_id = {voter.node_id: voter for voter in sorted(voters, key=lambda voter: voter.node_id)}
        if not voters or len(self._by_id) != len(voters):
            raise ConfigError("the voter set must name at least one node, and each node once")
        if min(self._by_id) < 0:
            raise ConfigError("node ids of voters must not be negative")
        self.ids = tuple(self._by_id)
        self.majority = len(self.ids) // 2 + 1

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._by_id

    def __len__(self) -> int:
        return len(self.ids)

    def includes(self, node_id: int, directory_id: str) -> bool:
        """Whether this replica is a voter. An unknown directory id in the set matches any (kraft.version 0)."""
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
