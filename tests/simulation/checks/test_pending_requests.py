"""Two hosts have several links, and each counts its requests from 1 on."""

from __future__ import annotations

from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.pending_requests import Asked

BEAT = pb.ControllerRequest(
    correlation_id=4, broker_heartbeat=pb.BrokerHeartbeatRequest(broker_id=1)
)
ANSWER = pb.ControllerResponse(correlation_id=4, broker_heartbeat=pb.BrokerHeartbeatResponse())
ERROR = pb.ControllerResponse(correlation_id=4, error=common_pb2.Error(error_code=7))
CREATED = pb.ControllerResponse(correlation_id=4, create_topics=pb.CreateTopicsResponse())


def test_answer_on_another_link_takes_nothing_away() -> None:
    asked = Asked[str]("broker_heartbeat")
    asked.note("b1", "c2", 4, "at 7.1 s")
    assert asked.answered("c2", "b1", ERROR) == "at 7.1 s"
    assert asked.answered("c2", "b1", CREATED) is None
    assert asked.answered("c3", "b1", ANSWER) is None
    assert asked.answered("c2", "b1", ANSWER) == "at 7.1 s"
    assert asked.answered("c2", "b1", ANSWER) is None


def test_pending_requests_note_the_requested_kinds_only() -> None:
    asked = Asked[str]("broker_heartbeat")
    assert asked.kind_of(BEAT) == "broker_heartbeat"
    assert asked.kind_of(pb.ControllerRequest(create_topics=pb.CreateTopicsRequest())) == ""
    assert asked.kind_of(ANSWER) == ""
