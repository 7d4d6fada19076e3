"""Certificates for a local cluster with mutual TLS and an authorizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raftlog.local.cluster import HOST, Node
from raftlog.transport.tls import TlsConfig

ADMINISTRATOR, SOMEBODY = "admin", "alice"
_DAYS = 30


class Authority:
    """A certificate authority in a directory, and the certificates that it has issued."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self) -> None:
        """Create the authority, and certificates for the administrator and for another user."""
        from raftlog.node.security.authority import new_authority
        from raftlog.node.security.certificate_files import (
            PairPaths,
            make_private_directory,
            write_pair,
        )

        issued = new_authority("raftlog local", _DAYS, datetime.now(UTC))
        make_private_directory(self._directory)
        paths = PairPaths.of(self._directory, "ca")
        write_pair(paths, issued.certificate, issued.key, replace=False)
        for name in (ADMINISTRATOR, SOMEBODY):
            self._issue(name)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables with which commands present a user's certificate."""
        files = self._files(name).items()
        return {f"RAFTLOG_{key.upper().replace('.', '_')}": path for key, path in files}

    def settings(self, node: Node) -> Mapping[str, Any]:
        """Issue a node's certificate, and return the node's configuration keys for TLS and the
        authorizer.
        """
        name = f"node-{node.node_id}"
        self._issue(name, node.node_id)
        return {
            json.dumps(key): value
            for key, value in {
                **self._files(name),
                "node.principal.rule": "CN=node-{id}",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
                "authorizer.class.name": "StandardAuthorizer",
                "super.users": f"User:{ADMINISTRATOR}",
                "audit.log.file": str(self.audit_log(node)),
            }.items()
        }

    def audit_log(self, node: Node) -> Path:
        """Return the path of a node's audit log."""
        return self._directory.parent / f"{node.name}.audit.log"

    def tls(self, name: str) -> TlsConfig:
        """Return the TLS configuration for a client of this user."""
        return TlsConfig(*map(Path, self._files(name).values()))

    def _files(self, name: str) -> dict[str, str]:
        own = name if name.startswith("node-") else f"client-{name}"
        return {
            "tls.certificate.file": str(self._directory / f"{own}.pem"),
            "tls.key.file": str(self._directory / f"{own}.key"),
            "tls.ca.file": str(self._directory / "ca.pem"),
        }

    def _issue(self, name: str, node_id: int | None = None) -> None:
        from raftlog.node.security import authority
        from raftlog.node.security.certificate_files import PairPaths, write_pair

        loaded, now = authority.Authority.load(self._directory), datetime.now(UTC)
        if node_id is None:
            issued = loaded.issue_client(name, _DAYS, now)
        else:
            issued = loaded.issue_node(node_id, [HOST], _DAYS, now)
        paths = PairPaths.of(self._directory, Path(self._files(name)["tls.key.file"]).stem)
        write_pair(paths, issued.certificate, issued.key, replace=False)
