"""A client that asks one controller alone, whichever leads."""

from __future__ import annotations

import random
from collections.abc import Sequence

from raftlog.client.controller_client import ControllerClient, controller_again
from raftlog.client.router import Protocol, Router
from raftlog.transport.api import Conversation, Transport


class PinnedClient(ControllerClient):
    """Client that asks the one controller it knows, and accepts NOT_CONTROLLER as an answer."""

    def __init__(
        self, transport: Transport, bootstrap: Sequence[str], *, rng: random.Random
    ) -> None:
        super().__init__(transport, bootstrap, rng=rng)
        protocol = Protocol(Conversation.CONTROLLER, lambda _response: None, controller_again)
        self._router = Router(transport, bootstrap, protocol, rng=rng)
