"""The certificates and tokens of the callers in the matrix of permissions, good and bad."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from matrix_callers import (
    Token,
)
from token_issuer import Issuer

from raftlog.local.cluster import HOST, Node
from raftlog.node.security.authority import Authority, Issued, new_authority


class Authorities:
    """That of nodes, and that of clients."""

    def __init__(self, directory: Path) -> None:
        self._made: dict[bool, tuple[Issued, Authority]] = {}
        self._directory = directory
        self._issued: dict[tuple[bool, str, bool], Issued] = {}
        now = datetime.now(UTC)
        for of_nodes in (True, False):
            place = directory / ("nodes" if of_nodes else "clients")
            place.mkdir(parents=True)
            made = new_authority(place.name, 30, now - timedelta(days=20))
            (place / "ca.pem").write_bytes(made.certificate)
            (place / "ca.key").write_bytes(made.key)
            (place / "ca.key").chmod(0o600)
            self._made[of_nodes] = made, Authority.load(place)

    def ca(self, *, of_nodes: bool) -> bytes:
        return self._made[of_nodes][0].certificate

    def issue(self, name: str, *, of_nodes: bool, expired: bool = False) -> Issued:
        """The same for the same name, as long as this object is there."""
        key = (of_nodes, name, expired)
        if key not in self._issued:
            now = datetime.now(UTC) - timedelta(days=10 if expired else 0)
            authority, days = self._made[of_nodes][1], 1 if expired else 2
            before, _, number = name.partition("-")
            self._issued[key] = (
                authority.issue_node(int(number), [HOST], days, now)
                if before == "node"
                else authority.issue_client(name, days, now)
            )
        return self._issued[key]

    def files(self, node: Node, *, of_nodes: bool) -> dict[str, str]:
        """Keys of the configuration of a node, whose files are written here."""
        issued = self.issue(f"node-{node.node_id}", of_nodes=of_nodes)
        place = self._directory / ("nodes" if of_nodes else "clients")
        made = {
            "tls.certificate.file": (place / f"{node.name}.pem", issued.certificate),
            "tls.key.file": (place / f"{node.name}.key", issued.key),
        }
        for path, content in made.values():
            path.write_bytes(content)
            path.chmod(0o600)
        found = {key: str(path) for key, (path, _) in made.items()}
        return {**found, "tls.ca.file": str(place / "ca.pem")}


def tokens_of(issuer: Issuer, names: Iterable[str]) -> dict[tuple[Token, str], str]:
    """One of each kind for each name."""
    other, now = Issuer(), int(time.time())
    past = now - 3_600
    tokens: dict[tuple[Token, str], str] = {}
    for name in names:
        tokens[Token.GOOD, name] = issuer.token(sub=name, exp=now + 3_600)
        tokens[Token.EXPIRED, name] = issuer.token(sub=name, iat=past, exp=past + 60)
        tokens[Token.FORGED, name] = other.token(sub=name)
        tokens[Token.ELSEWHERE, name] = issuer.token(sub=name, aud="somebody-else")
    return tokens
