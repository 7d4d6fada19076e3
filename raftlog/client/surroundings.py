"""The network of the process in which a client is made: in tests it may be a simulated one."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.transport.api import Transport


class Surroundings(Protocol):
    """The process in which clients are made."""

    bootstrap: str
    """Brokers of a client that names none."""

    def admit(self, client: AsyncClient) -> tuple[Callable[[], Transport], random.Random]:
        """Return the connections of a new client, and its random numbers."""


SURROUNDINGS: ContextVar[Surroundings | None] = ContextVar("raftlog_surroundings", default=None)
"""None: the real network."""
