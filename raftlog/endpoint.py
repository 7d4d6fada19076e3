"""Endpoints of nodes, and the voters of the quorum that are reached there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from raftlog.limits.hosts import host_error

_ENDPOINT = re.compile(
    r"^(?:(?P<name>[A-Za-z][A-Za-z0-9_]{0,63})://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]*):(?P<port>\d{1,5})$"
)
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "[::]"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a node listens or is reached.

    ``name`` is the listener's name in capitals, empty if none was given.
    """

    host: str
    port: int
    name: str = ""

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    @property
    def socket_address(self) -> tuple[str, int]:
        """Host and port for a socket: an IPv6 address without its brackets."""
        return self.host.strip("[]"), self.port

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches it. Of names, localhost alone counts."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.socket_address[0]).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.name}://{self.address}" if self.name else self.address


def address_of(host: str, port: int) -> str:
    """Return host:port of a host; an IPv6 address, which has no brackets, gets them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(value: object, example: str = "127.0.0.1:9093") -> Endpoint:
    """Parse ``host:port`` or ``NAME://host:port``. Raises ValueError, which shows the example."""
    if isinstance(value, Endpoint):
        return value
    match = _ENDPOINT.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not host:port (for instance {example})")
    if match["host"] and (wrong := host_error(match["host"])):
        raise ValueError(wrong)
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"{value!r}: the port must be 0 to 65535")
    return Endpoint(match["host"], port, (match["name"] or "").upper())


def endpoints_text(endpoints: Sequence[Endpoint]) -> str:
    """Format the endpoints of a node: host:port of its only listener, or ``NAME://host:port`` of
    each, separated by commas.
    """
    if len(endpoints) == 1:
        return endpoints[0].address
    return ",".join(str(endpoint) for endpoint in endpoints)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse the output of :func:`endpoints_text`. Raises ValueError."""
    return tuple(parse_endpoint(part) for part in text.split(","))


def endpoint_on(text: str, listener: str) -> str:
    """Return host:port of one listener of a node; empty if the node has no such listener.

    An endpoint without a name belongs to the only listener, whatever its name. ``listener`` empty:
    the first.
    """
    if "://" not in text:
        return text
    endpoints = parse_endpoints(text)
    found = (one.address for one in endpoints if not listener or one.name == listener)
    return next(found, "")


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum, as configurations, records and snapshots name it (KIP-853).

    ``directory_id`` empty: not known yet, any directory of that node counts (kraft.version 0).

    ``endpoint`` is host:port, or ``NAME://host:port`` of each of several listeners, separated by
    commas (:func:`endpoints_text`).
    """

    node_id: int
    endpoint: str
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class VotersAt:
    """The voter set in force from ``offset`` on: the offset of its VotersRecord, or the end of the
    snapshot that contains it.
    """

    offset: int
    voters: tuple[Voter, ...]
