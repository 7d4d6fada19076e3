"""Mutual TLS for the links: both sides show a certificate of the same authority."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raftlog.errors import ConfigError
from raftlog.transport import grpc_env  # noqa: F401  (before grpc)

import grpc  # isort: skip


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files: this node's certificate chain and key, and the authority that signs the peers' certificates."""

    certificate_path: Path
    private_key_path: Path
    ca_path: Path

    def server_credentials(self) -> Any:
        """For a server that refuses clients without a certificate. Raises ConfigError naming unreadable files."""
        certificate, key, ca = self._read()
        return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)

    def channel_credentials(self) -> Any:
        """For a client that shows its certificate. Raises ConfigError naming unreadable files."""
        certificate, key, ca = self._read()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        contents: list[bytes] = []
        mistakes: list[str] = []
        for name in ("certificate_path", "private_key_path", "ca_path"):
            try:
                contents.append(Path(getattr(self, name)).read_bytes())
            except OSError as error:
                mistakes.append(f"tls.{name}: {error.strerror}: {getattr(self, name)}")
        if mistakes:
            raise ConfigError("\n".join(mistakes))
        certificate, key, ca = contents
        return certificate, key, ca
