"""What an attack is: how it is sent, and in words the damage that it did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from siege import Operator, Siege, State
from stranger import Answer, Stranger

from raftlog.errors import ErrorCode
from raftlog.local.cluster import Node


@dataclass(frozen=True)
class Stage:
    """One attack under way. ``before``: how all was when it began."""

    siege: Siege
    operator: Operator
    stranger: Stranger
    before: State

    @property
    def leader(self) -> Node:
        return self.siege.node(self.before.leader.node_id)

    @property
    def followers(self) -> list[Node]:
        return followers_of(self.siege, self.before)

    @property
    def victim(self) -> Node:
        """The voter in whose name is spoken."""
        return self.followers[0]

    @property
    def partition_leader(self) -> Node:
        return self.siege.node(replicas_of(self.before)[0])

    @property
    def partition_follower(self) -> Node:
        return self.siege.node(replicas_of(self.before)[1])


def followers_of(siege: Siege, state: State) -> list[Node]:
    return [one for one in siege.cluster.controllers if one.node_id != state.leader.node_id]


def replicas_of(state: State) -> tuple[int, int]:
    """Of the topic's partition: its leader, and the other one."""
    assert state.partition is not None
    leader = state.partition.leader
    (follower,) = {*state.partition.replicas} - {leader}
    return leader, follower


Scene = Callable[[Siege, Operator], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def calm(siege: Siege, operator: Operator) -> AsyncIterator[None]:
    """Nothing else goes on."""
    yield


@dataclass(frozen=True)
class Attack:
    """``damage``: what the second state says that it has done, None: nothing.

    ``anyway``: why it is refused where everybody is believed, too. ``of_nodes``: why a node may do
    it, whichever it is. ``refusal``: what one gets who may not. ``forged``: how many of its requests
    are refused for the name that they bear or for reading the log, which is counted; None: all.
    ``scene``: what goes on meanwhile.
    """

    name: str
    send: Callable[[Stage], Awaitable[Sequence[Answer]]]
    damage: Callable[[State, State], str | None]
    anyway: str = ""
    of_nodes: str = ""
    refusal: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    forged: int | None = None
    scene: Scene = calm

    def __str__(self) -> str:
        return self.name
