"""Who the other side of a connection is: what its certificate and its token say, and which node the
certificate makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = "{id}"
_NODE_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_RULE = re.compile(r"(CN=|DNS:|URI:)[!-~]+")


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a peer has proved: in the TLS handshake, and by a token.

    ``subject``: the certificate's distinguished name (RFC 2253), empty without a certificate.
    ``names``: the names that a :class:`NodeRule` looks at: ``CN=…`` of the subject, and ``DNS:…``
    and ``URI:…`` of the alternative names. ``fingerprint``: SHA-256 of the certificate, in hex.
    ``principal``: ``User:…`` of a token, empty without one. Nothing in a token becomes one of the
    names: it makes nobody a node.
    """

    subject: str = ""
    names: frozenset[str] = frozenset()
    fingerprint: str = ""
    principal: str = ""

    def __str__(self) -> str:
        certificate = self.subject or ", ".join(sorted(self.names)) or "no certificate"
        return f"{self.principal} with {certificate}" if self.principal else certificate


ANONYMOUS = PeerIdentity()
"""A peer without a certificate and without a token."""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """How a node's certificate says which node it is (``node.principal.rule``).

    ``pattern`` is one name of a certificate in which ``{id}`` stands for the node id.
    """

    pattern: str

    @classmethod
    def parse(cls, text: str) -> NodeRule:
        """Raises ValueError."""
        if text.count(_PLACE) != 1 or not _RULE.fullmatch(text):
            raise ValueError(
                f"{text!r} is no rule: it is CN=…, DNS:… or URI:… with {_PLACE} once, for instance"
                f" CN=node-{_PLACE}"
            )
        return cls(text)

    def name_of(self, node_id: int) -> str:
        """What the certificate of this node has among its names."""
        return self.pattern.replace(_PLACE, str(node_id))

    def is_node(self, identity: PeerIdentity) -> bool:
        """Whether the peer is some node."""
        return bool(self.nodes_of(identity))

    def nodes_of(self, identity: PeerIdentity) -> frozenset[int]:
        """The nodes that the peer is: several, if it has several names."""
        before, _, after = self.pattern.partition(_PLACE)
        inside = (
            name[len(before) : len(name) - len(after)]
            for name in identity.names
            if name.startswith(before) and name.endswith(after)
        )
        return frozenset(int(text) for text in inside if _NODE_ID.fullmatch(text))

    def admits(self, identity: PeerIdentity, node_id: int) -> bool:
        """Whether the peer is this node."""
        return node_id >= 0 and self.name_of(node_id) in identity.names
