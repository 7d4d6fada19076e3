"""Identify and authorize the clients that connect to a node."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raftlog.identity import PeerIdentity
from raftlog.node.security.authorization import Asker, Authorization
from raftlog.node.security.guard import Authentication


class Peer(Protocol):
    """A link, or a unary call."""

    @property
    def peer(self) -> str:
        """Address of the peer."""

    @property
    def identity(self) -> PeerIdentity:
        """Identity that the peer has proved."""


class ClientRules(NamedTuple):
    """The authentication and authorization of a node with an authorizer."""

    authentication: Authentication
    authorization: Authorization

    def asker_of(self, peer: Peer) -> Asker:
        """Return the sender of a request that this node does not forward."""
        return self.authentication.asker_of(peer.identity, peer.peer)
