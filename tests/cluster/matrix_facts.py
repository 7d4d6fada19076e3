"""What the requests of the matrix of permissions name, and how they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from matrix_callers import MINE, THEIRS, Nodes

from raftlog.metadata.acls import Binding
from raftlog.metadata.config_keys import ResourceType
from raftlog.node.security.node_claims import NOBODY

UNKNOWN, FAR = 4_000, 1 << 40
"""An id and a partition that are not there; an offset that no log has."""
MY_TOPIC, THEIR_TOPIC = f"{MINE}topic", f"{THEIRS}topic"
CONFIGS = (
    (ResourceType.TOPIC, MY_TOPIC, "retention.ms"),
    (ResourceType.TOPIC, THEIR_TOPIC, "retention.ms"),
    (ResourceType.GROUP, f"{MINE}group", "consumer.session.timeout.ms"),
    (ResourceType.GROUP, f"{THEIRS}group", "consumer.session.timeout.ms"),
    (ResourceType.CLIENT_METRICS, "metrics", "interval.ms"),
    (ResourceType.BROKER, "", "retention.ms"),
)
"""One of each type of resource, and a key of it that takes numbers."""


class Facts(NamedTuple):
    """What requests name. ``topics``: names by id; ``directories``: of voters, by node id."""

    cluster_id: str
    epoch: int
    nodes: Nodes
    leader_id: int
    topics: Mapping[bytes, str]
    directories: Mapping[int, str]
    broker_epochs: Mapping[int, int]
    entries: Sequence[Binding]

    def id_of(self, name: str) -> bytes:
        return next(id_ for id_, one in self.topics.items() if one == name)


class Ask(NamedTuple):
    """``node_id``: under which the request is sent; ``harms``: the items that are to do damage, {0}
    of a request without items.
    """

    facts: Facts
    node_id: int
    harms: Collection[int] = ()
    variant: str = ""

    @property
    def harm(self) -> bool:
        return bool(self.harms)

    def pick(self, harmful: Any, harmless: Any) -> Any:
        return harmful if self.harms else harmless

    @property
    def cluster_id(self) -> str:
        """What is let in under a node's id fails by this."""
        reads = self.node_id == NOBODY
        return self.facts.cluster_id if self.harm or reads else "another-cluster"

    @property
    def broker_epoch(self) -> int:
        """Of the broker in whose name it is sent."""
        return self.facts.broker_epochs.get(self.node_id, -1)

    @property
    def directory(self) -> str:
        """Of the voter in whose name it is sent."""
        return self.facts.directories.get(self.node_id, "")
