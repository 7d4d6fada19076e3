"""Reads from brokers, monotone over all of them, and writes through them."""

from __future__ import annotations

import asyncio
import random

from google.protobuf.message import Message
from typing_extensions import override

from raftlog.client.endpoints import Endpoints, known_endpoints
from raftlog.client.requests import (
    broker_request,
    require_success,
    timeout_ms,
)
from raftlog.client.router import Protocol, Refusal, RoundRobin, Router
from raftlog.client.session import DEFAULT_TIMEOUT_S, Writer
from raftlog.endpoint import address_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Transport
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

LEARN_FIRST_S, LEARN_AGAIN_S, LEARN_EVERY_S = 1.0, 10.0, 300.0
"""Time to the first question for the brokers, after one that failed, and after one that did not."""
_BROKERS_ALONE = broker_pb2.MetadataRequest(response_partition_limit=1, cursor="~")
"""Asks for the topics behind the last name that there can be."""


class BrokerClient(Writer):
    """Calls to one broker, or to whichever of several answers; brokers that metadata names become
    some of these.

    Every reply says which image answered, and the next read asks for that one or a later one: what
    this client has seen it never unsees, whatever broker it comes to, its own writes included. A
    read that fails on the way is tried at another broker; a write only if it was definitely not
    executed. Must be made on the event loop.
    """

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        *,
        rng: random.Random,
        cluster_id: str = "",
        round_robin: bool = False,
    ) -> None:
        """``round_robin``: each call goes to the next of the given brokers that can be reached;
        else all go to one as long as it answers.
        """
        self.endpoints = known_endpoints(endpoints)
        """The brokers that are known, those that brokers have named included."""
        self._token: common_pb2.MetadataToken | None = None
        self._offered: broker_pb2.ApiVersionsResponse | None = None
        protocol = Protocol(
            Conversation.BROKER,
            _refusal,
            _again,
            max_attempts=lambda: len(list(self.endpoints)),
            hello=self._hello,
            greeted=lambda response: self._learn(response.api_versions),
            notice=self._noticed,
        )
        router = (
            RoundRobin(transport, self.endpoints.given, protocol, rng=rng)
            if round_robin
            else Router(transport, self.endpoints, protocol, rng=rng)
        )
        super().__init__(router, rng, cluster_id)

    @property
    def servers(self) -> str:
        """The brokers, each with the reason why it could not be reached, for people."""
        return self._router.servers

    @property
    def token(self) -> common_pb2.MetadataToken | None:
        """The newest image that this client has seen or written; None: none yet."""
        return self._token

    def see(self, token: common_pb2.MetadataToken) -> None:
        """Take note of an image seen elsewhere: the reads from now on show it or a later one.

        Raises ApiError, INCONSISTENT_GENERATION, if this client has seen another log.
        """
        if not self._saw(token):
            assert self._token is not None
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the token is of generation {token.generation} of the log, this client has seen"
                f" generation {self._token.generation}",
                field="token.generation",
            )

    def _saw(self, token: common_pb2.MetadataToken) -> bool:
        """Remember an image, unless it is of another log than those before: the next read reports
        that [what was seen is gone, and the program continues as if it existed].
        """
        mine = self._token
        if mine is not None and token.generation != mine.generation:
            return False
        if mine is None or token.offset > mine.offset:
            self._token = token
        return True

    def forget(self) -> None:
        """Start afresh, as after INCONSISTENT_GENERATION: the cluster was restored and what was
        seen before may be gone.
        """
        self._token = None

    async def api_versions(
        self, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> broker_pb2.ApiVersionsResponse:
        """What the cluster offers: asked for once, kept up to date by what brokers say.

        Raises ApiError if no broker can be asked.
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
        """Feature levels are the cluster's, not a broker's: the newest answer holds for all."""
        known = self._offered
        if (
            known is None
            or offered.generation != known.generation
            or offered.finalized_features_epoch > known.finalized_features_epoch
        ):
            self._offered = offered

    def _hello(self) -> broker_pb2.BrokerRequest | None:
        """Ask on each new connection, once asked: a notice on the old one may be lost."""
        if self._offered is None:
            return None
        return broker_request(broker_pb2.ApiVersionsRequest(), cluster_id=self._cluster_id)

    def _noticed(self, notice: broker_pb2.BrokerResponse) -> bool:
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
        """The hot path: give a request away as it is, get a future of the response, which may hold
        an error. Tokens are the caller's.
        """
        return self._router.send(request, timeout_s, idempotent=idempotent)

    async def read(
        self,
        body: Message,
        *,
        mode: broker_pb2.ReadMode = broker_pb2.REPEATABLE,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> broker_pb2.BrokerResponse:
        """One read: MetadataRequest, DescribeConfigsRequest, DescribeClusterRequest or
        DescribeBrokerRequest. Raises ApiError.
        """
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
        """Ask for the brokers now and then, without end, so that a client continues when all that
        it was given are gone.
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
        """Remember the brokers that metadata names."""
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


ELSEWHERE = frozenset(
    {
        ErrorCode.BROKER_FENCED,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.NO_READ_LEASE,
    }
)


def _refusal(response: broker_pb2.BrokerResponse) -> Refusal | None:
    """A fenced broker takes nothing new, one without a lease reads nothing strictly, and one of
    another cluster is the wrong one: another one may.
    """
    elsewhere = response.HasField("error") and response.error.error_code in ELSEWHERE
    return Refusal() if elsewhere else None


def _again(request: broker_pb2.BrokerRequest, remaining_s: float) -> broker_pb2.BrokerRequest:
    copy = broker_pb2.BrokerRequest()
    copy.CopyFrom(request)
    if copy.HasField("write"):
        copy.write.timeout_ms = timeout_ms(remaining_s)
    else:
        copy.read.timeout_ms = timeout_ms(remaining_s)
    return copy
