"""What the values of a configuration are made of: endpoints, voters and lists, each with a message that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from raftlog.limits.hosts import host_error
from raftlog.quorum.config import Voter

_ENDPOINT = re.compile(
    r"^(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]*):(?P<port>\d{1,5})$"
)
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "[::]"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node listens or is reached. ``name`` is the listener's name, empty if none was given."""

    host: str
    port: int
    name: str = ""

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}" if self.name else self.address


def parse_endpoint(value: object) -> Endpoint:
    """Parse ``host:port`` or ``NAME://host:port``. Raises ValueError."""
    if isinstance(value, Endpoint):
        return value
    match = _ENDPOINT.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not host:port (for instance 127.0.0.1:9093)")
    if match["host"] and (wrong := host_error(match["host"])):
        raise ValueError(wrong)
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"{value!r}: the port must be 0 to 65535")
    return Endpoint(match["host"], port, match["name"] or "")


def parse_voter(value: object) -> Voter:
    """Parse ``id@host:port``. Raises ValueError."""
    if isinstance(value, Voter):
        return value
    node_id, at, address = value.partition("@") if isinstance(value, str) else ("", "", "")
    if not at or not node_id.isascii() or not node_id.isdigit():
        raise ValueError(f"{value!r} is not id@host:port (for instance 1@127.0.0.1:9093)")
    endpoint = parse_endpoint(address)
    if endpoint.host in WILDCARD_HOSTS or not endpoint.port:
        raise ValueError(f"{value!r}: others connect to it, so it needs a real host and port")
    return Voter(int(node_id), endpoint.address)


def _split(value: object) -> object:
    """A comma-separated string, as environment and flags have it, is a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _no_bool(value: object) -> object:
    """TOML's true is no number, whatever Python says."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")  # noqa: TRY004  (pydantic reports ValueErrors)
    return value


Int = Annotated[int, BeforeValidator(_no_bool)]
Positive = Annotated[Int, Field(ge=1, le=2**53)]
NonNegative = Annotated[Int, Field(ge=0, le=2**53)]
NodeId = Annotated[Int, Field(ge=0, le=2**31 - 1)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_split)]
Endpoints = Annotated[tuple[Annotated[Endpoint, BeforeValidator(parse_endpoint)], ...], BeforeValidator(_split)]
Voters = Annotated[tuple[Annotated[Voter, BeforeValidator(parse_voter)], ...], BeforeValidator(_split)]
