"""Reads from brokers, monotone over all of them, and writes through them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from google.protobuf.message import Message
from typing_extensions import override

from raftlog.client.endpoints import Endpoints, known_endpoints
from raftlog.client.requests import broker_request, require_success, timeout_ms
from raftlog.client.router import Refusal
from raftlog.client.session import DEFAULT_TIMEOUT_S, Writer
from raftlog.endpoint import address_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Transport
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

LEARN_FIRST_S, LEARN_AGAIN_S, LEARN_EVERY_S = 1.0, 10.0, 300.0
"""Delays in seconds before the list of brokers is first read, read again after a failure, and
refreshed.
"""
_BROKERS_ALONE = broker_pb2.MetadataRequest(response_partition_limit=1, cursor="~")
"""Request for the topics after the last possible name, so that the answer lists only brokers."""

ELSEWHERE = frozenset(
    {ErrorCode.BROKER_FENCED, ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.NO_READ_LEASE}
)


class BrokerClient(Writer):
    """Sends calls to any broker that answers; brokers named in metadata are added to the known
    ones.

    Every reply names its image, and the next read requires that image or a later one, so this
    client's reads never go back, even across brokers, and include its own writes. A failed read is
    retried at another broker; a write is retried only if it was definitely not executed. Must be
    created on the event loop.
    """

    conversation = Conversation.BROKER

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        *,
        rng: random.Random,
        cluster_id: str = "",
    ) -> None:
        self.endpoints = known_endpoints(endpoints)
        """The known brokers, including those named by brokers."""
        super().__init__(transport, self.endpoints, rng=rng, cluster_id=cluster_id)
        self._token: common_pb2.MetadataToken | None = None
        self._offered: broker_pb2.ApiVersionsResponse | None = None

    @property
    @override
    def max_attempts(self) -> int:
        return len(list(self.endpoints))

    @override
    def refusal(self, response: broker_pb2.BrokerResponse) -> Refusal | None:
        # A fenced broker serves no new requests, a broker without a lease no strict reads, and a
        # broker of another cluster none at all.
        elsewhere = response.HasField("error") and response.error.error_code in ELSEWHERE
        return Refusal() if elsewhere else None

    @override
    def again(self, request: broker_pb2.BrokerRequest, remaining_s: float) -> Any:
        copy = broker_pb2.BrokerRequest()
        copy.CopyFrom(request)
        timed = copy.write if copy.HasField("write") else copy.read
        timed.timeout_ms = timeout_ms(remaining_s)
        return copy

    @property
    def token(self) -> common_pb2.MetadataToken | None:
        """The newest image that this client has read or written, or None before the first one."""
        return self._token

    def see(self, token: common_pb2.MetadataToken) -> None:
        """Make later reads show this image or a later one. Raises ApiError."""
        if not self._saw(token):
            assert self._token is not None
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the token belongs to generation {token.generation} of the log, but this client "
                f"has read generation {self._token.generation}",
                field="token.generation",
            )

    def _saw(self, token: common_pb2.MetadataToken) -> bool:
        """Record an image. Return False if it belongs to another log; the next read reports
        that.
        """
        mine = self._token
        if mine is not None and token.generation != mine.generation:
            return False
        if mine is None or token.offset > mine.offset:
            self._token = token
        return True

    def forget(self) -> None:
        """Forget all positions, as needed after INCONSISTENT_GENERATION: earlier reads may
        be lost.
        """
        self._token = None

    async def api_versions(
        self, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> broker_pb2.ApiVersionsResponse:
        """Return the cluster's APIs and features, requested once and then updated by notices.
        Raises ApiError.
        """
        if self._offered is None:
            request = broker_request(broker_pb2.ApiVersionsRequest(), cluster_id=self._cluster_id)
            response = await self.send(request, timeout_s, idempotent=True)
            if response.HasField("error"):
                raise error_from_wire(response.error)
            self._learn(response.api_versions)
        assert self._offered is not None
        return self._offered

    def _learn(self, offered: broker_pb2.ApiVersionsResponse) -> None:
        """Record the newest feature levels, which belong to the cluster, not to a single broker."""
        known = self._offered
        if (
            known is None
            or offered.generation != known.generation
            or offered.finalized_features_epoch > known.finalized_features_epoch
        ):
            self._offered = offered

    @override
    def greeting(self) -> broker_pb2.BrokerRequest | None:
        # On every connection after the first: a notice on the old one may be lost.
        if self._offered is None:
            return None
        return broker_request(broker_pb2.ApiVersionsRequest(), cluster_id=self._cluster_id)

    @override
    def greeted(self, response: broker_pb2.BrokerResponse) -> None:
        self._learn(response.api_versions)

    @override
    def notice(self, notice: broker_pb2.BrokerResponse) -> bool:
        if not notice.HasField("api_versions"):
            return False
        self._learn(notice.api_versions)
        return True

    def send(
        self,
        request: broker_pb2.BrokerRequest,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        idempotent: bool = False,
    ) -> asyncio.Future[broker_pb2.BrokerResponse]:
        """Send a request, which the caller must not change afterwards. The future's result is the
        response, even if it contains an error. The caller handles tokens.
        """
        return self.start(request, timeout_s, idempotent=idempotent)

    async def read(
        self,
        body: Message,
        *,
        mode: broker_pb2.ReadMode = broker_pb2.REPEATABLE,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> broker_pb2.BrokerResponse:
        """Send one read request body. Raises ApiError."""
        request = broker_request(body, cluster_id=self._cluster_id)
        request.read.mode = mode
        request.read.timeout_ms = timeout_ms(timeout_s)
        if self._token is not None:
            request.read.at_least.CopyFrom(self._token)
        response = require_success(await self.send(request, timeout_s, idempotent=True))
        if response.HasField("token"):
            self._saw(response.token)
        self._learn_from(response)
        return response

    async def keep_learning(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Refresh the list of brokers periodically, so that even all the given ones may be
        replaced.
        """
        pause_s = LEARN_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = LEARN_EVERY_S
            request = broker_request(_BROKERS_ALONE, cluster_id=self._cluster_id)
            try:
                self._learn_from(
                    require_success(await self.send(request, timeout_s, idempotent=True))
                )
            except ApiError as error:
                if error.retriable:
                    pause_s = LEARN_AGAIN_S

    def _learn_from(self, response: broker_pb2.BrokerResponse) -> None:
        """Record the brokers named in metadata."""
        self.endpoints.learn(address_of(one.host, one.port) for one in response.metadata.brokers)

    write = Writer.call

    @override
    async def attempt(
        self, request: controller_pb2.ControllerRequest, timeout_s: float
    ) -> controller_pb2.ControllerResponse:
        response = await self.send(broker_request(request, cluster_id=self._cluster_id), timeout_s)
        if response.HasField("error"):
            return controller_pb2.ControllerResponse(error=response.error, leader_id=-1)
        if response.write.HasField("write"):
            self._saw(response.write.write.token)
        return response.write
