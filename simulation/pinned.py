"""A client that asks one controller alone, whichever leads."""

from __future__ import annotations

from typing_extensions import override

from raftlog.client.controller_client import ControllerClient
from raftlog.client.router import Refusal
from raftlog.wire.controller.v1 import controller_pb2


class PinnedClient(ControllerClient):
    """Client that asks the one controller it knows, and accepts NOT_CONTROLLER as an answer."""

    @override
    def refusal(self, response: controller_pb2.ControllerResponse) -> Refusal | None:
        return None
