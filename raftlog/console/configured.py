"""The console as a node's configuration wants it."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from raftlog.client.security import ClientSecurity
from raftlog.config.node import NodeConfig
from raftlog.console.door import Door, read_token
from raftlog.console.local import Local
from raftlog.console.routes import Console
from raftlog.transport.configured import peer_tls

if TYPE_CHECKING:
    from raftlog.console.look import Looker


def console_of(config: NodeConfig, local: Local) -> Console:
    """The console of one node. Raises ConfigError for a token that cannot be used."""
    return Console(_LateLooker(local, ClientSecurity(peer_tls(config))).look, door_of(config))


class _LateLooker:
    """Imports what asks the cluster at the first look: a node whose console nobody opens does not
    pay for it, and none does at its start.
    """

    def __init__(self, local: Local, security: ClientSecurity) -> None:
        self._local, self._security = local, security
        self._looker: Looker | None = None

    async def look(self) -> bytes:
        """As ``Looker.look``. One at a time."""
        if self._looker is None:
            module = await asyncio.to_thread(importlib.import_module, "raftlog.console.look")
            self._looker = module.Looker(self._local, self._security)
        assert self._looker is not None
        return await self._looker.look()


def door_of(config: NodeConfig) -> Door:
    """Who may look. Raises ConfigError."""
    secured = (
        config.http_tls is not None
        or bool(config.settings.authorizer_class_name)
        or any(one.security.tls is not None for one in config.listeners)
    )
    token = "" if config.console_token is None else read_token(config.console_token)
    return Door(secured=secured, token=token)
