"""What a node asks about whoever connects to it: who it is, and what it may do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raftlog.identity import PeerIdentity
from raftlog.node.security.authorization import Asker, Authorization
from raftlog.node.security.guard import Authentication


class Peer(Protocol):
    """A link, or a unary call."""

    @property
    def peer(self) -> str:
        """Its address."""

    @property
    def identity(self) -> PeerIdentity:
        """What it has proved."""


class ClientRules(NamedTuple):
    """Both come of one configuration; without an authorizer there is none."""

    authentication: Authentication
    authorization: Authorization

    def asker_of(self, peer: Peer) -> Asker:
        """Who asks this node for what it does not forward."""
        return self.authentication.asker_of(peer.identity, peer.peer)
