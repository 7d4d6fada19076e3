"""Access rules for HTTP.

A stranger's web page could read responses under its own host name by making that name resolve to
this host (DNS rebinding). So a request over plain HTTP must name the node by an IP address or by
one of the node's own names. With TLS the certificate limits the names.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from raftlog.errors import ApiError
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.http_bounds import Complain, HttpPeer
from raftlog.transport.certificates import identity_of_der
from raftlog.transport.unary import Caller

Contexts = Callable[[], ssl.SSLContext]
"""Function that returns the TLS context for the next connection, with the current certificates."""


def names_of(config: NodeConfig) -> frozenset[str]:
    """Return the names of the node: its host's, and those in its configuration."""
    hosts = [socket.gethostname()]
    if config.http_listener is not None:
        hosts.append(config.http_listener.host)
    for one in config.listeners:
        hosts += [one.bind.host, one.advertised.host]
    # Within its own domain a host may be called by its first label.
    hosts += [host.partition(".")[0] for host in hosts]
    return frozenset(host.lower() for host in hosts if host)


def _counts_nothing(peer: str, what: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class HttpRules:
    """The access rules of one node's HTTP listener.

    ``contexts``: TLS contexts, or None for plain HTTP. ``names``: host names accepted over plain
    HTTP, in addition to IP addresses. ``may_see``: raises ApiError if the caller may not see the
    node's description, or None if any valid certificate may. ``complain``: counts callers'
    violations.
    """

    contexts: Contexts | None = None
    names: frozenset[str] = frozenset()
    may_see: Callable[[Caller], None] | None = None
    complain: Complain = _counts_nothing

    def wrong_host(self, host: str | None) -> bool:
        """Return whether a request is not meant for this node. ``host``: its Host header,
        or None.
        """
        return self.contexts is None and host is not None and not self._is_own(host)

    def refusal(self, peer: HttpPeer) -> str:
        """Return why a caller may read only the health pages, or empty if it may read
        everything.
        """
        if self.contexts is None:
            return ""
        if not peer.certificate:
            return "a client certificate is required"
        if self.may_see is not None:
            identity = identity_of_der(peer.certificate)
            try:
                self.may_see(Caller(peer.address, identity))
            except ApiError as error:
                return error.message
        return ""

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower().rstrip(".")
        if name == "localhost" or name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
