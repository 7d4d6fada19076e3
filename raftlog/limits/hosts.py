"""The characters of hostnames and addresses.

A name that is printed, looked up and mapped has no others.
"""

from __future__ import annotations

import ipaddress
import re

HOST_MAX_CHARS = 255
LISTENERS_MAX, LISTENER_NAME_MAX_CHARS = 8, 64
ENDPOINTS_MAX_CHARS = LISTENERS_MAX * (HOST_MAX_CHARS + LISTENER_NAME_MAX_CHARS + 10)
LISTENER_NAME = re.compile(rf"[A-Z][A-Z0-9_]{{0,{LISTENER_NAME_MAX_CHARS - 1}}}")
_HOSTNAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[^:]+):([0-9]{1,5})")


def host_error(host: str) -> str:
    """Return the error of a host that other nodes are to connect to; empty if it is valid."""
    if 0 < len(host) <= HOST_MAX_CHARS and (_HOSTNAME.fullmatch(host) or _is_ipv6(host)):
        return ""
    return (
        f"{host[:80]!r} is no host: a name of 1 to {HOST_MAX_CHARS} ASCII letters, digits,"
        " dashes, underscores and single dots, or an IP address"
    )


def endpoint_error(endpoint: str) -> str:
    """Return the error of a host:port that other nodes are to connect to; empty if it is valid."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or host_error(match[1]) or not 1 <= int(match[2]) <= 65_535:
        return f"{endpoint[:80]!r} is not host:port"
    return ""


def endpoints_error(endpoints: str) -> str:
    """Return the error of a node's endpoints: host:port, or NAME://host:port of each of several
    listeners, separated by commas. Empty if they are valid.
    """
    if "://" not in endpoints:
        return endpoint_error(endpoints)
    if len(endpoints) > ENDPOINTS_MAX_CHARS:
        return f"{len(endpoints)} characters are more than the {ENDPOINTS_MAX_CHARS} allowed"
    parts = endpoints.split(",")
    if len(parts) > LISTENERS_MAX:
        return f"{len(parts)} listeners are more than the {LISTENERS_MAX} allowed"
    names = set[str]()
    for part in parts:
        name, _, endpoint = part.partition("://")
        if not LISTENER_NAME.fullmatch(name) or endpoint_error(endpoint):
            return f"{part[:80]!r} is not NAME://host:port"
        names.add(name)
    return "" if len(names) == len(parts) else "the same listener twice"


def _is_ipv6(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    address, percent, zone = host.partition("%")
    if percent and not _HOSTNAME.fullmatch(zone):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True
