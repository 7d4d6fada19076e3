"""What this node knows of the quorum: the active controller, the newest epoch, and the endpoints of
the voters.
"""

from __future__ import annotations

from controller.service.responses import failure
from raftlog.endpoint import endpoint_on
from raftlog.errors import ApiError, ErrorCode
from raftlog.voter import Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb


class Directory:
    """The active controller and the voters.

    ``voters``: the voter set in force on this node, committed or not.
    """

    def __init__(self, node_id: int, voters: tuple[Voter, ...]) -> None:
        self.node_id = node_id
        self.voters = voters
        self.leader_id = -1
        """The active controller, -1 if unknown."""
        self.leader_epoch = 0
        """The newest epoch this node knows."""
        self.successor_id = -1
        """To whom this node has just handed over, while nobody is known to lead; -1: nobody."""
        self.outage = ""
        """Why nobody leads, as of the last tick; empty: somebody does, as far as this node knows.
        """

    def endpoint_of(self, leader_id: int, listener: str) -> str:
        """host:port of a voter on a listener; empty if it is unknown, or has no such listener."""
        known = (voter.endpoint for voter in self.voters if voter.node_id == leader_id)
        return endpoint_on(next(known, ""), listener)

    def not_controller(self) -> ApiError:
        """The error of a node that does not lead.

        It names the active controller, if this node knows it; else it says what keeps the quorum
        from having one.
        """
        leader_id = self.successor_id if self.leader_id == -1 else self.leader_id
        elsewhere = leader_id not in (-1, self.node_id)
        why = self.outage or ("" if elsewhere else "no leader is known")
        return ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"node {self.node_id} is not the active controller" + (f"; {why}" if why else ""),
            leader_id=leader_id if elsewhere else -1,
        )

    def failure(self, correlation_id: int, error: ApiError, listener: str) -> pb.ControllerResponse:
        """The response with an error, and with the endpoint of the leader that the error names, for
        somebody who has come to this listener.
        """
        endpoint = self.endpoint_of(error.leader_id, listener)
        return failure(
            correlation_id, error, controller_epoch=self.leader_epoch, leader_endpoint=endpoint
        )

    def successor(
        self, node_id: int, listener: str, *, takes_requests: bool
    ) -> pb.ControllerResponse:
        """The notice that this controller is about to lead: a client connects to it meanwhile, for
        somebody who has come to this listener.

        ``takes_requests``: and asks there from now on.
        """
        return pb.ControllerResponse(
            leader_id=node_id,
            leader_endpoint=self.endpoint_of(node_id, listener),
            controller_epoch=self.leader_epoch,
            successor_takes_requests=takes_requests,
        )
