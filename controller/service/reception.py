"""Takes in what comes on links of the controller conversation: requests into the intake, signs of
life at once. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from controller.decision import cluster_error
from controller.service.answers import Answers
from controller.service.broker_probes import BrokerProbes
from controller.service.farewell import Farewell
from controller.service.hand_over import HandOver
from controller.service.intake import Intake
from controller.service.node import ControllerNode
from raftlog.config_writes.messages import KIND, ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Link, Transport
from raftlog.wire.controller.v1 import controller_pb2 as pb


class Reception:
    """All links that requests come on. ``wake``: run a turn soon."""

    def __init__(
        self,
        node: ControllerNode,
        intake: Intake,
        answers: Answers,
        hand_over: HandOver,
        farewell: Farewell,
        transport: Transport,
        wake: Callable[[], None],
    ) -> None:
        self._node, self._intake, self._answers = node, intake, answers
        self._hand_over, self._farewell = hand_over, farewell
        self._wake = wake
        self._gone: set[Any] = set()
        """Links that have closed since the last tick."""
        self.probes = BrokerProbes(transport, lambda: node.decider, self._broker_gone)

    def accept(self, link: Link) -> Reception:
        """A link has opened: who hears of it."""
        self._farewell.opened(link)
        return self

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Queue the requests of one envelope, or refuse them."""
        refused = self._node.not_controller()
        now, begun = self._node.now(), self._answers.figures.stopwatch()
        self._farewell.heard(now)
        if refused is not None and self._hand_over.holds(now) and not self._farewell.begun:
            refused = None
        for request in messages:
            if refused is not None:
                # A client that has another cluster's addresses learns it from any of them.
                other = cluster_error(self._node.cluster_id, request.cluster_id)
                self._answers.refuse(link, request, other or refused)
                continue
            body = KIND if type(request) is ConfigWrites else request.WhichOneof("body")
            if body is None:
                link.unknown_kind("a request without a body")
                self._answers.refuse(
                    link,
                    request,
                    ApiError(ErrorCode.INVALID_REQUEST, "a request without a body", field="body"),
                )
                continue
            heartbeat = body == "broker_heartbeat"
            if heartbeat:
                self._heard(link, request.broker_heartbeat)
            try:
                self._intake.add(link, request, now, heartbeat=heartbeat, kind=body, begun=begun)
            except ApiError as error:
                self._answers.refuse(link, request, error)
                if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    link.throttled(error.message)
        self._wake()

    def closed(self, link: Link, reason: str) -> None:
        """A link has closed.

        ``forget_gone`` drops its parked replies and deferred requests; its queued requests are
        still decided.
        """
        self._gone.add(link)
        self._farewell.closed(link)
        self.probes.closed(link)

    def forget_gone(self) -> None:
        """Drop what waits for links that have closed since the last call."""
        gone, self._gone = self._gone, set()
        leadership = self._node.leadership
        if gone and leadership is not None:
            leadership.parking.abandon(gone)
            self._intake.abandon(gone)

    def _heard(self, link: Any, heartbeat: pb.BrokerHeartbeatRequest) -> None:
        # A heartbeat counts on arrival, not when it is decided: a long or full queue must not fence
        # the brokers that wait in it.
        decider = self._node.decider
        if decider is not None and decider.heard(
            heartbeat.broker_id, heartbeat.broker_epoch, self._node.now()
        ):
            self.probes.heard(link, heartbeat.broker_id, heartbeat.broker_epoch)

    def _broker_gone(self, broker_id: int, broker_epoch: int) -> None:
        decider = self._node.decider
        if decider is not None:
            decider.found_gone(broker_id, broker_epoch, self._node.now())
            self._wake()
