"""Changes of the quorum, sent to the active controller: they need no broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from raftlog.client.admission import require_listener
from raftlog.client.controller_client import ControllerClient
from raftlog.client.options import security_of_environment
from raftlog.identity import os_user
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb


def open_transport(addresses: Sequence[str]) -> GrpcTransport:
    """Return a transport with the credentials of the environment, on the running event loop.

    Raises ConfigError for files that cannot be read, and if no address has a suitable listener.
    """
    tls, token = security_of_environment()
    require_listener(addresses, plaintext=tls is None, files=None if tls is None else tls.files)
    return GrpcTransport(tls=tls, token=token)


class QuorumChanges:
    """A sender of changes of the quorum, each once: raises UnknownOutcomeError if the outcome is
    unknown.
    """

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self._addresses, self._timeout_s = addresses, timeout_s

    async def add_voter(self, voter_id: int, directory_id: str, endpoint: str) -> None:
        """Make a running observer a voter. Raises ApiError."""
        await self._send(
            pb.AddRaftVoterRequest(
                voter_id=voter_id, voter_directory_id=directory_id, endpoint=endpoint
            )
        )

    async def remove_voter(self, voter_id: int, directory_id: str) -> None:
        """Remove a voter, dead or alive. Raises ApiError."""
        await self._send(
            pb.RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory_id)
        )

    async def transfer(self, target_id: int) -> int:
        """Transfer the leadership, and return the successor; -1: to the voter with the most
        complete log. Raises ApiError.
        """
        response = await self._send(pb.TransferLeadershipRequest(target_id=target_id))
        successor: int = response.transfer_leadership.target_id
        return successor

    async def _send(self, body: Any) -> Any:
        transport = open_transport(self._addresses)
        client = ControllerClient(transport, self._addresses, rng=random.Random())
        try:
            return await client.call(body, timeout_s=self._timeout_s, principal=os_user())
        finally:
            client.close()
            await transport.close()
