"""Calls to the active controller, which continue across a change of the leader."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from raftlog.client.requests import timeout_ms
from raftlog.client.router import Refusal
from raftlog.client.session import DEFAULT_TIMEOUT_S, Writer
from raftlog.config_writes.writes import ConfigWrite
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2


class ControllerClient(Writer):
    """A link to the active controller, found among ``bootstrap`` (host:port each) and the
    controllers they name.

    After a definite NOT_CONTROLLER the call is retried until the deadline, at the named controller
    or at the others in turn. An unknown outcome is reported, never retried; ``session`` offers
    writes that are retried. A committed write that waits for brokers when the leader changes
    continues to wait at the next leader, until the deadline. Must be created on the event loop.
    """

    conversation = Conversation.CONTROLLER

    @override
    def refusal(self, response: controller_pb2.ControllerResponse) -> Refusal | None:
        # From a controller that has lost leadership, NOT_CONTROLLER has an unknown outcome.
        code = response.error.error_code if response.HasField("error") else ErrorCode.NONE
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return Refusal(foreign=True)
        if code != ErrorCode.NOT_CONTROLLER:
            return None
        return Refusal(response.leader_endpoint, definite=not response.error.outcome_unknown)

    @override
    def again(
        self, request: controller_pb2.ControllerRequest | ConfigWrite, remaining_s: float
    ) -> controller_pb2.ControllerRequest | ConfigWrite:
        if isinstance(request, ConfigWrite):
            return request.again(remaining_s)
        copy = controller_pb2.ControllerRequest()
        copy.CopyFrom(request)
        copy.timeout_ms = timeout_ms(remaining_s)
        return copy

    @override
    def notice(self, notice: controller_pb2.ControllerResponse) -> bool:
        # A stopping controller announces that it no longer leads; it still answers pending
        # requests.
        return self.refusal(notice) is not None

    @override
    def successor(self, notice: controller_pb2.ControllerResponse) -> tuple[str, bool]:
        ahead = "" if notice.HasField("error") else notice.leader_endpoint
        return ahead, notice.successor_takes_requests

    @override
    def waits(self, request: controller_pb2.ControllerRequest | ConfigWrite) -> bool:
        return request.acks != common_pb2.ACKS_COMMITTED

    @override
    def wait_on(
        self,
        request: controller_pb2.ControllerRequest | ConfigWrite,
        response: controller_pb2.ControllerResponse,
    ) -> controller_pb2.ControllerRequest | None:
        if not response.write.leadership_lost:
            return None
        again = controller_pb2.ControllerRequest()
        again.CopyFrom(request.request() if isinstance(request, ConfigWrite) else request)
        again.written.CopyFrom(response.write.token)
        return again

    def send(
        self,
        request: controller_pb2.ControllerRequest | ConfigWrite,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> asyncio.Future[controller_pb2.ControllerResponse]:
        """Send a request, which the caller must not change afterwards. The hot path.

        The future's result is the response, even if it contains an error. Without a response, it
        fails with ApiError REQUEST_TIMED_OUT or NETWORK_EXCEPTION, which tells whether the outcome
        is unknown. The request's ``timeout_ms`` is set from ``timeout_s`` unless it is already set.
        A ConfigWrite is the cheapest write: it is sent without a message object.
        """
        if not request.timeout_ms:
            request.timeout_ms = timeout_ms(timeout_s)
        return self.start(request, timeout_s)

    attempt = send
