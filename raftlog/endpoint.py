"""The endpoints of nodes, the characters allowed in host names, and the voters of the quorum.

Host names are printed, looked up and mapped, so other characters are not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

HOST_MAX_CHARS, PORT_MAX = 255, 65_535
LANE_PORT_OFFSET = 1_000
"""Default of lane.port.offset."""
LISTENERS_MAX, LISTENER_NAME_MAX_CHARS = 8, 64
ENDPOINTS_MAX_CHARS = LISTENERS_MAX * (HOST_MAX_CHARS + LISTENER_NAME_MAX_CHARS + 10)
LISTENER_NAME = re.compile(rf"[A-Z][A-Z0-9_]{{0,{LISTENER_NAME_MAX_CHARS - 1}}}")
_HOSTNAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[^:]+):([0-9]{1,5})")
_ENDPOINT = re.compile(
    r"^(?:(?P<name>[A-Za-z][A-Za-z0-9_]{0,63})://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]*):(?P<port>\d{1,5})$"
)
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "[::]"})


def host_error(host: str) -> str:
    """Return what is wrong with a host that other nodes connect to, or "" if it is valid."""
    if 0 < len(host) <= HOST_MAX_CHARS and (_HOSTNAME.fullmatch(host) or _is_ipv6(host)):
        return ""
    return (
        f"{host[:80]!r} is not a valid host: a name of 1 to {HOST_MAX_CHARS} ASCII letters, digits,"
        " dashes, underscores and single dots, or an IP address"
    )


def endpoint_error(endpoint: str) -> str:
    """Return what is wrong with a host:port that other nodes connect to, or "" if it is valid."""
    match = _HOST_AND_PORT.fullmatch(endpoint)
    if match is None or host_error(match[1]) or not 1 <= int(match[2]) <= PORT_MAX:
        return f"{endpoint[:80]!r} is not host:port"
    return ""


def endpoints_error(endpoints: str) -> str:
    """Return what is wrong with a node's endpoints, or "" if they are valid.

    Endpoints are host:port, or NAME://host:port for each of several listeners, separated by commas.
    """
    if "://" not in endpoints:
        return endpoint_error(endpoints)
    if len(endpoints) > ENDPOINTS_MAX_CHARS:
        return f"{len(endpoints)} characters, but at most {ENDPOINTS_MAX_CHARS} are allowed"
    parts = endpoints.split(",")
    if len(parts) > LISTENERS_MAX:
        return f"{len(parts)} listeners, but at most {LISTENERS_MAX} are allowed"
    names = set[str]()
    for part in parts:
        name, _, endpoint = part.partition("://")
        if not LISTENER_NAME.fullmatch(name) or endpoint_error(endpoint):
            return f"{part[:80]!r} is not NAME://host:port"
        names.add(name)
    return "" if len(names) == len(parts) else "two listeners have the same name"


def _is_ipv6(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    address, percent, zone = host.partition("%")
    if percent and not _HOSTNAME.fullmatch(zone):
        return False
    try:
        IPv6Address(address)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a node listens or is reached.

    ``name``: the listener's name in capitals, or "" if none was given.
    """

    host: str
    port: int
    name: str = ""

    @property
    def address(self) -> str:
        """Host and port, as host:port."""
        return f"{self.host}:{self.port}"

    @property
    def socket_address(self) -> tuple[str, int]:
        """Host and port for a socket; an IPv6 address without its brackets."""
        return self.host.strip("[]"), self.port

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Of the host names, only localhost counts."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.socket_address[0]).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.name}://{self.address}" if self.name else self.address


def address_of(host: str, port: int) -> str:
    """Return host:port for a host; an IPv6 address, given without brackets, gets them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(value: object, example: str = "127.0.0.1:9093") -> Endpoint:
    """Parse ``host:port`` or ``NAME://host:port``. Raises ValueError, which shows ``example``."""
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


def parse_server(value: str, example: str = "127.0.0.1:9093") -> str:
    """Return host:port of a server to connect to. Raises ValueError, also without a host."""
    endpoint = parse_endpoint(value, example)
    if not endpoint.host:
        raise ValueError(f"{value!r} has no host (for instance {example})")
    return endpoint.address


def endpoints_text(endpoints: Sequence[Endpoint]) -> str:
    """Format a node's endpoints: host:port for a single listener, or ``NAME://host:port`` for each,
    separated by commas.
    """
    if len(endpoints) == 1:
        return endpoints[0].address
    return ",".join(str(endpoint) for endpoint in endpoints)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse the output of :func:`endpoints_text`. Raises ValueError."""
    return tuple(parse_endpoint(part) for part in text.split(","))


def reachable_error(endpoints: str) -> str:
    """Return why other nodes cannot connect to a node's endpoints, or "" if they are valid."""
    if error := endpoints_error(endpoints):
        return error
    for one in parse_endpoints(endpoints):
        if one.host in WILDCARD_HOSTS:
            return f"{one.address!r}: other nodes connect to it, so it must be a real host and port"
    return ""


def endpoint_on(text: str, listener: str) -> str:
    """Return host:port of one of a node's listeners, or "" if the node has no such listener.

    An endpoint without a name belongs to the only listener, whatever its name. An empty
    ``listener`` selects the first.
    """
    if "://" not in text:
        return text
    endpoints = parse_endpoints(text)
    found = (one.address for one in endpoints if not listener or one.name == listener)
    return next(found, "")


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum, as configurations, records and snapshots name it (KIP-853).

    ``directory_id`` is empty if it is not known yet; any directory of that node then counts
    (kraft.version 0). ``endpoint`` is host:port, or ``NAME://host:port`` for each of several
    listeners, separated by commas (:func:`endpoints_text`).
    """

    node_id: int
    endpoint: str
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class VotersAt:
    """The voter set that applies from ``offset`` onwards: the offset of its VotersRecord, or the
    end of the snapshot that contains it.
    """

    offset: int
    voters: tuple[Voter, ...]
