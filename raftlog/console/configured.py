"""The console as a node's configuration wants it."""

from __future__ import annotations

from raftlog.cli.client_security import ClientSecurity
from raftlog.config.node import NodeConfig
from raftlog.console.door import Door, read_token
from raftlog.console.look import Local, Looker
from raftlog.console.routes import Console
from raftlog.transport.configured import peer_tls


def console_of(config: NodeConfig, local: Local) -> Console:
    """The console of one node. Raises ConfigError for a token that cannot be used."""
    looker = Looker(local, ClientSecurity(peer_tls(config)))
    return Console(looker.look, door_of(config))


def door_of(config: NodeConfig) -> Door:
    """Who may look. Raises ConfigError."""
    secured = (
        config.http_tls is not None
        or bool(config.settings.authorizer_class_name)
        or any(one.security.tls is not None for one in config.listeners)
    )
    token = "" if config.console_token is None else read_token(config.console_token)
    return Door(secured=secured, token=token)
