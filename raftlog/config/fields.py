"""What the values of a configuration are made of: endpoints, voters and lists, each with a message that helps."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from raftlog.endpoint import WILDCARD_HOSTS, Endpoint, parse_endpoint
from raftlog.quorum.config import Voter


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
