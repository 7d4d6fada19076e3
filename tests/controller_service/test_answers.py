"""A reply that cannot be sent ends in an error for its own client, in whose turn ever it is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.service.replies import COMMITTED, Answers, Parked, Parking, failure
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.observability.figures import RequestFigures
from raftlog.transport.api import LinkClosedError
from raftlog.wire.controller.v1 import controller_pb2 as pb


class Client:
    """A link that takes no message with a body beyond a limit."""

    peer, listener = "10.0.0.6:5000", ""

    def __init__(self, *, small: bool = False, gone: bool = False) -> None:
        self.sent: list[Any] = []
        self._small, self._gone = small, gone

    def send(self, message: Any) -> None:
        if self._gone:
            raise LinkClosedError("gone")
        if self._small and message.HasField("describe_acls"):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large", field="describe_acls")
        self.sent.append(message)


def refused(correlation_id: int, error: ApiError, _: str) -> pb.ControllerResponse:
    return failure(correlation_id, error, controller_epoch=1, leader_endpoint="")


def parked(client: Client, number: int, *, round: int) -> Parked:
    response = pb.ControllerResponse(correlation_id=number, describe_acls=pb.DescribeAclsResponse())
    return Parked(client, response, 4, round, COMMITTED, 10.0, kind="describe_acls")


@pytest.mark.parametrize("is_write", [False, True])
def test_reply_that_no_message_holds_is_an_error_and_those_behind_it_are_sent(
    is_write: bool,
) -> None:
    node: Any = SimpleNamespace(directory=SimpleNamespace(failure=refused), closed=False)
    parking = Parking(Answers(node, RequestFigures(lambda: 0.0)).send)
    clients = Client(small=True), Client(gone=True), Client()
    for number, client in enumerate(clients):
        parking.park(parked(client, number, round=0 if is_write else 1))
    parking.read_index_confirmed(1)
    parking.committed(5)
    (told,) = clients[0].sent
    assert (told.correlation_id, told.error.error_code) == (0, ErrorCode.MESSAGE_TOO_LARGE)
    assert told.error.field == "describe_acls"
    # A write is in the log by then.
    assert told.error.outcome_unknown is is_write
    (answered,) = clients[2].sent
    assert answered.HasField("describe_acls")
    assert len(parking) == 0
