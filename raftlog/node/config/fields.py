"""The value types of a configuration: endpoints, voters and lists, each with a helpful message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from raftlog.endpoint import LISTENER_NAME, WILDCARD_HOSTS, Endpoint, Voter, parse_endpoint

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

PLAINTEXT, SSL = "PLAINTEXT", "SSL"
PROTOCOLS = (PLAINTEXT, SSL)


@dataclass(frozen=True, slots=True)
class Read:
    """A conversion of a value before its type is checked.

    It replaces pydantic's BeforeValidator, so that declarations need not import pydantic.
    """

    parse: Callable[[object], object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the pydantic schema with the conversion."""
        from pydantic import BeforeValidator

        return BeforeValidator(self.parse).__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of an integer, both inclusive."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the pydantic schema with the bounds."""
        from pydantic import Field

        return handler.generate_schema(Annotated[source, Field(ge=self.least, le=self.most)])


def parse_voter(value: object) -> Voter:
    """Parse ``id@host:port``. Raises ValueError."""
    if isinstance(value, Voter):
        return value
    node_id, at, address = value.partition("@") if isinstance(value, str) else ("", "", "")
    if not at or not node_id.isascii() or not node_id.isdigit():
        raise ValueError(f"{value!r} is not id@host:port (for instance 1@127.0.0.1:9093)")
    endpoint = parse_endpoint(address)
    if endpoint.host in WILDCARD_HOSTS or not endpoint.port:
        raise ValueError(
            f"{value!r} needs a real host and a port other than 0: other nodes connect to it"
        )
    return Voter(int(node_id), endpoint.address)


@dataclass(frozen=True, slots=True)
class MappedListener:
    """The protocol of the listeners with one name, in listener.security.protocol.map."""

    name: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name}:{self.protocol}"


@dataclass(frozen=True, slots=True)
class ListenerKey:
    """A key of one listener: ``listener.name.<name in lower case>.<key>``.

    ``listener``: the listener's name in capitals. ``field``: the key's field name in Settings.
    """

    listener: str
    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.listener.lower()}.{self.field.replace('_', '.')}={self.value}"


def parse_mapped(value: object) -> MappedListener:
    """Parse ``NAME:PROTOCOL``. Raises ValueError."""
    if isinstance(value, MappedListener):
        return value
    name, _, protocol = value.upper().partition(":") if isinstance(value, str) else ("", "", "")
    if not LISTENER_NAME.fullmatch(name) or protocol not in PROTOCOLS:
        raise ValueError(f"{value!r} is not NAME:PLAINTEXT or NAME:SSL")
    return MappedListener(name, protocol)


def parse_listener_name(value: object) -> str:
    """Return a listener's name in capitals, or empty if none. Raises ValueError."""
    name = value.upper() if isinstance(value, str) else ""
    if value and not LISTENER_NAME.fullmatch(name):
        raise ValueError(
            f"{value!r} is not a valid listener name: use ASCII letters, digits and underscores"
        )
    return name


def _no_listener_key(value: object) -> object:
    if value:
        raise ValueError(
            "add a listener's name and a key, for instance listener.name.ssl.tls.ca.file"
        )
    return ()


def _split(value: object) -> object:
    """Split a comma-separated string, the form of lists in environment and flags."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _no_bool(value: object) -> object:
    """Reject TOML's booleans, which Python accepts as numbers."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004  (pydantic reports ValueErrors)
    return value


Positive = Annotated[int, Within(1, 2**53), Read(_no_bool)]
NonNegative = Annotated[int, Within(0, 2**53), Read(_no_bool)]
NodeId = Annotated[int, Within(0, 2**31 - 1), Read(_no_bool)]
ListenerName = Annotated[str, Read(parse_listener_name)]
ListenerNames = Annotated[tuple[ListenerName, ...], Read(_split)]
ListenerKeys = Annotated[tuple[ListenerKey, ...], Read(_no_listener_key)]
ProtocolMap = Annotated[tuple[Annotated[MappedListener, Read(parse_mapped)], ...], Read(_split)]
Strings = Annotated[tuple[str, ...], Read(_split)]
Endpoints = Annotated[tuple[Annotated[Endpoint, Read(parse_endpoint)], ...], Read(_split)]
Voters = Annotated[tuple[Annotated[Voter, Read(parse_voter)], ...], Read(_split)]


def heartbeats_fit(heartbeat_interval_ms: int, session_timeout_ms: int) -> bool:
    """Return whether a broker that loses one heartbeat keeps its session."""
    return session_timeout_ms > 2 * heartbeat_interval_ms


def fencing_fits(fencing_timeout_ms: int, session_timeout_ms: int) -> bool:
    """Return whether the controller fences a silent broker before the broker fences itself
    (KIP-343).
    """
    return fencing_timeout_ms > session_timeout_ms
