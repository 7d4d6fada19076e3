"""The listeners of a node, derived from its configuration: names, addresses, security, and
conversations (KIP-103, KIP-595).

The settings may break rules: values that cannot be derived from them are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raftlog.endpoint import Endpoint, parse_endpoint
from raftlog.node.config.fields import PLAINTEXT, SSL
from raftlog.node.config.settings import Settings

PER_LISTENER = ("tls_certificate_file", "tls_key_file", "tls_ca_file", "ssl_client_auth")
"""Fields of the keys that may be set for one listener, after ``listener.name.<name>.``."""
TLS_FILES = PER_LISTENER[:3]
HTTP_NAMES = HTTP, HTTPS = "HTTP", "HTTPS"
"""Protocols of http.listener; for HTTPS its keys begin with ``listener.name.https.``."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for mutual TLS: this node's certificate chain and key, and the CA of the other
    nodes' certificates.
    """

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Security:
    """Security of all listeners with the same name; ``tls`` is None for PLAINTEXT."""

    tls: TlsFiles | None
    client_auth: str


@dataclass(frozen=True, slots=True)
class NodeListener:
    """One listener of this node.

    ``advertised``: the address for other nodes and clients; port 0 stands for the port actually
    bound. ``for_nodes``: whether it serves other nodes, False if it serves clients.
    """

    name: str
    bind: Endpoint
    advertised: Endpoint
    for_nodes: bool
    security: Security


def is_controller(settings: Settings) -> bool:
    """Return whether the role is controller."""
    return "controller" in settings.process_roles


def is_broker(settings: Settings) -> bool:
    """Return whether the role is broker."""
    return "broker" in settings.process_roles


def bound(settings: Settings) -> Mapping[str, Endpoint]:
    """Return the bound endpoints by listener name, in the given order."""
    given = settings.listeners or tuple(_own_address(settings))
    return {one.name or _nameless(settings): one for one in given}


def _own_address(settings: Settings) -> Iterator[Endpoint]:
    if is_controller(settings):
        for voter in settings.controller_quorum_voters:
            if voter.node_id == settings.node_id:
                yield parse_endpoint(voter.endpoint)


def _nameless(settings: Settings) -> str:
    """Return the name of a listener that has none in the configuration: its protocol, as in
    Kafka.
    """
    return SSL if settings.tls_certificate_file else PLAINTEXT


def advertised_on(settings: Settings, name: str) -> Endpoint | None:
    """Return a listener's advertised endpoint, or None if it has no address to advertise."""
    listeners = bound(settings)
    if len(listeners) == 1:
        if settings.advertised_listeners:
            return settings.advertised_listeners[0]
        # Other nodes reach a configured voter at the address in the voter list, wherever it
        # listens.
        return next(_own_address(settings), listeners.get(name))
    for one in settings.advertised_listeners:
        if one.name == name:
            return one
    return listeners.get(name)


def for_nodes(settings: Settings) -> tuple[str, ...]:
    """Return the names of the listeners for nodes, the preferred one first."""
    names = tuple(bound(settings))
    if is_controller(settings):
        named = tuple(name for name in settings.controller_listener_names if name in names)
    else:
        named = tuple(name for name in names if name == settings.inter_broker_listener_name)
    return named or (names if len(names) == 1 else ())


def protocol_of(settings: Settings, name: str) -> str:
    """Return PLAINTEXT or SSL, or empty if the settings do not define it."""
    for one in settings.listener_security_protocol_map:
        if one.name == name:
            return one.protocol
    if len(bound(settings)) <= 1 and not settings.listener_security_protocol_map:
        secured = name == SSL or key_of_listener(settings, name, "tls_certificate_file")
        return SSL if secured else PLAINTEXT
    return name if name in {PLAINTEXT, SSL} else ""


def key_of_listener(settings: Settings, name: str, field: str) -> Any:
    """Return the value of a key for one listener: its own value, or otherwise the node's."""
    for one in settings.listener_name:
        if (one.listener, one.field) == (name, field):
            return one.value
    return getattr(settings, field)


def controllers_name(settings: Settings) -> str:
    """Return the name of the controllers' listener that this node uses, or empty if none is
    configured.
    """
    return settings.controller_listener_names[0] if settings.controller_listener_names else ""


def controllers_protocol(settings: Settings) -> str:
    """Return the protocol of the controllers' listener that this node uses, or empty if the
    settings do not define it.
    """
    if is_controller(settings):
        names = for_nodes(settings)
        return protocol_of(settings, names[0]) if names else ""
    if name := controllers_name(settings):
        return protocol_of(settings, name)
    return SSL if settings.tls_certificate_file else PLAINTEXT


def serves_https(settings: Settings) -> bool:
    """Return whether the HTTP listener has TLS."""
    return any(one.name == HTTPS for one in settings.http_listener)


def security_of(settings: Settings, base: Path, name: str) -> Security:
    """Return the security of the listeners with this name; relative paths start at ``base``."""
    client_auth = key_of_listener(settings, name, "ssl_client_auth")
    secured = protocol_of(settings, name) == SSL
    return Security(tls_files(settings, base, name) if secured else None, client_auth)


def tls_files(settings: Settings, base: Path, name: str) -> TlsFiles:
    """Return the TLS files of the listeners with this name; relative paths start at ``base``."""
    paths = (base / key_of_listener(settings, name, field) for field in TLS_FILES)
    return TlsFiles(*paths)


def listeners_of(settings: Settings, base: Path) -> tuple[NodeListener, ...]:
    """Return all listeners, those for nodes first: other nodes use the first one as this node's
    address.
    """
    listeners, nodes = bound(settings), for_nodes(settings)
    made: list[NodeListener] = []
    for name in (*nodes, *(one for one in listeners if one not in nodes)):
        advertised = advertised_on(settings, name)
        assert advertised is not None
        security = security_of(settings, base, name)
        made.append(NodeListener(name, listeners[name], advertised, name in nodes, security))
    return tuple(made)
