"""Hostnames and addresses: which characters they have.

A name that is printed, looked up and mapped has nothing else in it.
"""

from __future__ import annotations

import ipaddress
import re

HOST_MAX_CHARS = 255
_HOSTNAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[^:]+):([0-9]{1,5})")


def host_error(host: str) -> str:
    """What is wrong with a host that others are to connect to; empty if nothing is."""
    if 0 < len(host) <= HOST_MAX_CHARS and (_HOSTNAME.fullmatch(host) or _is_ipv6(host)):
        return ""
    return (
        f"{host[:80]!r} is no host: a name of 1 to {HOST_MAX_CHARS} letters, digits, dashes,"
        " underscores and single dots, or an IP address"
    )


def endpoint_error(endpoint: str) -> str:
    """What is wrong with a host:port that others are to connect to; empty if nothing is."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or host_error(match[1]) or not 1 <= int(match[2]) <= 65_535:
        return f"{endpoint[:80]!r} is not host:port"
    return ""


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
