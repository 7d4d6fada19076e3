"""Where a node listens or is reached."""

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
    """Where a node listens or is reached.

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
        """For sockets, which want an IPv6 address without its brackets."""
        return self.host.strip("[]"), self.port

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it.

        A name other than localhost is not taken for one, whatever it resolves to today.
        """
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
    """How others are told where a node is reached: host:port of its only listener, or
    ``NAME://host:port`` of each, with commas between them.
    """
    if len(endpoints) == 1:
        return endpoints[0].address
    return ",".join(str(endpoint) for endpoint in endpoints)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """What :func:`endpoints_text` has written. Raises ValueError."""
    return tuple(parse_endpoint(part) for part in text.split(","))


def endpoint_on(text: str, listener: str) -> str:
    """host:port of one listener, among the endpoints of a node; empty: it has no such listener.

    An endpoint without a name is that of the only listener, whatever this node calls its own.
    ``listener`` empty: the first.
    """
    if "://" not in text:
        return text
    endpoints = parse_endpoints(text)
    found = (one.address for one in endpoints if not listener or one.name == listener)
    return next(found, "")
