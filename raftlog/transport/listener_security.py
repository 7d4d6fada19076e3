"""How one listener is secured, and which endpoint a node dials with which credentials (KIP-103).

A client has one set of credentials. A node has those of each name that a listener may have, its own
or another node's: the name in an address says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raftlog.endpoint import parse_endpoints
from raftlog.transport.tls import ClientTls, TlsConfig

Credentials = Callable[[], Any]
"""Gives the gRPC credentials of the next connection."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What a listener is served with. ``tls`` None: PLAINTEXT.

    ``client_auth``: ssl.client.auth, whether its clients have to show a certificate.
    """

    tls: TlsConfig | None = None
    client_auth: str = "required"
    reflection: bool = True
    """Whether gRPC reflection tells its services to everybody who asks."""

    def server_credentials(self, *, require_certificates: bool = True) -> Any | None:
        """None: PLAINTEXT. Raises ConfigError naming unreadable files."""
        if self.tls is None:
            return None
        return self.tls.server_credentials(require_certificates=require_certificates)


class Routes:
    """Where an address leads: host:port, and the credentials for it."""

    def __init__(
        self, tls: Mapping[str, ClientTls | None], preferred: tuple[str, ...] = ()
    ) -> None:
        """``tls``: by the name of the listener to dial; "" is for addresses without a name.

        ``preferred``: of a node that has several listeners, the first that it has of these is
        dialled. Raises ConfigError naming unreadable files.
        """
        made: dict[ClientTls, Credentials] = {}
        self._by_name: dict[str, Credentials | None] = {}
        for name, one in tls.items():
            if one is not None and one not in made:
                made[one] = one.rereading_channel_credentials()
            self._by_name[name] = None if one is None else made[one]
        self._preferred = preferred

    def lead(self, address: str) -> tuple[str, Credentials | None]:
        """Of host:port, ``NAME://host:port``, or several of these (``endpoints_text``).

        Where none of the preferred listeners is there, the first one is taken for the kind that
        addresses without a name are of: it cannot be told better.
        """
        if "://" not in address:
            return address, self._by_name[""]
        endpoints = parse_endpoints(address)
        known = {one.name: one for one in endpoints}
        for name in self._preferred:
            if name in known:
                return known[name].address, self._by_name[name]
        only = endpoints[0]
        named = len(endpoints) == 1 and only.name in self._by_name
        return only.address, self._by_name[only.name if named else ""]
