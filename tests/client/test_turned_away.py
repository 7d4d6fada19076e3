"""Servers that refuse a client: its calls fail once all have refused it."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import raftlog
from raftlog.client.broker_client import BrokerClient
from raftlog.client.watch import Watch
from raftlog.errors import (
    ApiError,
    ErrorCode,
    OtherServerError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    ThrottlingQuotaExceededError,
)
from raftlog.transport.api import Conversation
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2

REFUSED = ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the token has expired")
FAR_S = 60.0


class Dialled:
    """A dialer that does nothing by itself."""

    def __init__(self, address: str, handler: Any) -> None:
        self.address, self.handler = address, handler
        self.link: Any = None
        self.last_failure = ""
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def turn_away(self) -> None:
        self.last_failure = "UNAUTHENTICATED"
        self.handler.attempt_failed(self.last_failure, REFUSED)


class Answering:
    """A link on which every request is answered with an empty response."""

    peer = "server"

    def __init__(self, dialled: Dialled) -> None:
        self._dialled = dialled

    def send(self, request: Any) -> None:
        response = broker_pb2.BrokerResponse(correlation_id=request.correlation_id)
        asyncio.get_running_loop().call_soon(self._dialled.handler.received, self, [response])


class Network:
    """A transport whose dialers the test drives."""

    def __init__(self) -> None:
        self.dialled: list[Dialled] = []

    def dial(self, address: str, conversation: Any, handler: Any) -> Dialled:
        self.dialled.append(Dialled(address, handler))
        return self.dialled[-1]

    def at(self, address: str) -> Dialled:
        """Return the newest dialer to that address."""
        return next(one for one in reversed(self.dialled) if one.address == address)

    async def until_dialled(self, address: str) -> Dialled:
        async with asyncio.timeout(5):
            while not any(one.address == address and not one.closed for one in self.dialled):
                await asyncio.sleep(0.001)
        return self.at(address)


def client(network: Any) -> BrokerClient:
    return BrokerClient(network, ["a:1", "b:1"], rng=random.Random(1))


def ask(brokers: BrokerClient) -> asyncio.Future[Any]:
    return brokers.send(broker_pb2.BrokerRequest(), FAR_S, idempotent=True)


async def test_call_fails_when_all_servers_have_refused_the_client() -> None:
    network = Network()
    brokers = client(network)
    call = ask(brokers)
    (await network.until_dialled("a:1")).turn_away()
    await asyncio.sleep(0.05)
    assert not call.done()
    (await network.until_dialled("b:1")).turn_away()
    with pytest.raises(SaslAuthenticationFailedError, match="expired; the request was not exec"):
        await asyncio.wait_for(call, 1)
    assert not call.exception().outcome_unknown
    brokers.close()


async def test_call_continues_at_another_server_that_accepts_the_client() -> None:
    network = Network()
    brokers = client(network)
    call = ask(brokers)
    (await network.until_dialled("a:1")).turn_away()
    other = await network.until_dialled("b:1")
    other.handler.opened(Answering(other))
    await asyncio.wait_for(call, 1)
    brokers.close()


async def test_call_after_a_rejection_by_all_brokers_dials_them_again() -> None:
    network = Network()
    brokers = client(network)
    call = ask(brokers)
    for address in ("a:1", "b:1"):
        (await network.until_dialled(address)).turn_away()
    with pytest.raises(SaslAuthenticationFailedError):
        await asyncio.wait_for(call, 1)
    second = ask(brokers)
    async with asyncio.timeout(5):
        while not second.done():
            for one in [one for one in network.dialled if not one.closed]:
                one.handler.opened(Answering(one))
            await asyncio.sleep(0.01)
    assert second.exception() is None
    brokers.close()


def watched(**response: Any) -> broker_pb2.WatchManyResponse:
    return broker_pb2.WatchManyResponse(
        watch_ids=[1], response=broker_pb2.WatchResponse(**response)
    )


async def test_watch_that_no_broker_accepts_reports_the_reason() -> None:
    """[A program with too many watches was told that no broker answers.]"""
    network: Any = Network()
    watch = Watch(network, ["a:1"], rng=random.Random(1), start_timeout_s=0.3)
    full = common_pb2.Error(
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, error_message="5 of 5 watches are open"
    )

    async def refuse() -> None:
        while True:
            dialled = await network.until_dialled("a:1")
            dialled.handler.received(Answering(dialled), [watched(error=full)])

    refusing = asyncio.create_task(refuse())
    with pytest.raises(ThrottlingQuotaExceededError, match="5 of 5 watches are open"):
        await asyncio.wait_for(watch.started(), 5)
    refusing.cancel()
    watch.close()

    watch = Watch(network, ["b:1", "c:1"], rng=random.Random(1), start_timeout_s=0.3)

    async def fail() -> None:
        while True:
            for one in network.dialled:
                if not one.closed and one.address == "b:1":
                    one.handler.attempt_failed("UNAVAILABLE: Connection refused", None)
            await asyncio.sleep(0.01)

    failing = asyncio.create_task(fail())
    with pytest.raises(RequestTimedOutError, match=r"b:1 \(UNAVAILABLE: Connection refused\)"):
        await asyncio.wait_for(watch.started(), 5)
    failing.cancel()
    watch.close()


async def test_started_watch_waits_and_an_unstarted_one_fails() -> None:
    network: Any = Network()
    watch = Watch(network, ["a:1"], rng=random.Random(1))
    network.at("a:1").turn_away()
    with pytest.raises(SaslAuthenticationFailedError):
        await asyncio.wait_for(watch.started(), 1)
    watch.close()

    told: list[str] = []
    watch = Watch(network, ["b:1"], rng=random.Random(1), waiting=told.append)
    dialled = network.at("b:1")
    token = broker_pb2.WatchToken(epoch=1, offset=7)
    dialled.handler.received(Answering(dialled), [watched(token=token)])
    await asyncio.wait_for(watch.started(), 1)
    dialled.turn_away()
    again = await network.until_dialled("b:1")
    assert again is not dialled
    again.turn_away()
    third = await network.until_dialled("b:1")
    assert third is not again
    assert told == ["the token has expired"]
    third.handler.received(Answering(third), [watched(token=token)])
    third.handler.attempt_failed("UNAVAILABLE: Connection refused", None)
    assert told[1:] == ["", "no broker of b:1 (UNAVAILABLE: Connection refused) has answered"]
    watch.close()


async def test_waiting_watch_reports_the_current_error_of_all_servers() -> None:
    network: Any = Network()
    told: list[str] = []
    watch = Watch(network, ["a:1", "b:1"], rng=random.Random(1), waiting=told.append)
    fenced = common_pb2.Error(
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, error_message="5 of 5 watches are open"
    )
    refusing = next(one for one in network.dialled if not one.closed)
    refusing.handler.received(Answering(refusing), [watched(error=fenced)])
    serving = await network.until_dialled({"a:1": "b:1", "b:1": "a:1"}[refusing.address])
    token = broker_pb2.WatchToken(epoch=1, offset=7)
    serving.handler.received(Answering(serving), [watched(token=token)])
    await asyncio.wait_for(watch.started(), 1)
    serving.handler.attempt_failed("UNAVAILABLE: Connection refused", None)
    assert told == []
    again = await network.until_dialled(refusing.address)
    again.handler.attempt_failed("UNAVAILABLE: Connection reset", None)
    (why,) = told
    assert "Connection refused" in why
    assert "Connection reset" in why
    watch.close()


class Silent:
    def received(self, link: Any, messages: Any) -> None: ...

    def closed(self, link: Any, reason: str) -> None: ...


@asynccontextmanager
async def server(*conversations: Conversation) -> AsyncGenerator[str]:
    transport = GrpcServerTransport()
    try:
        acceptors: dict[Conversation, Any] = dict.fromkeys(conversations, lambda _: Silent())
        yield (await transport.listen("127.0.0.1:0", acceptors)).address
    finally:
        await transport.close()


async def test_call_to_a_controller_instead_of_a_broker_fails_at_once() -> None:
    """[it waited until its deadline, and then reported that no broker could be reached in time]"""
    async with (
        server(Conversation.CONTROLLER) as address,
        raftlog.AsyncClient(address, timeout_s=FAR_S) as library,
    ):
        for call in (library.topics.list(), library.topics.create("t")):
            with pytest.raises(OtherServerError, match=r"127.0.0.1:\d+ is a controller, not") as e:
                await asyncio.wait_for(call, 5)
            assert (e.value.outcome_unknown, e.value.retriable) == (False, False)
        with pytest.raises(OtherServerError, match="is a controller, not a broker"):
            async with asyncio.timeout(5), library.watch("topics"):
                pass


async def test_broker_that_is_not_ready_yet_is_waited_for() -> None:
    """[A broker that asks for its id listens, and serves nothing]"""
    async with server() as address, raftlog.AsyncClient(address, timeout_s=0.5) as library:
        with pytest.raises(RequestTimedOutError, match="Method not found"):
            await library.topics.list()


def test_error_with_another_text_counts_as_the_same_error() -> None:
    error = OtherServerError(ErrorCode.NETWORK_EXCEPTION, "a", field="f")
    said = error.saying("b")
    assert (type(said), str(said)) == (OtherServerError, "NETWORK_EXCEPTION: b (field f)")
    assert str(error) == "NETWORK_EXCEPTION: a (field f)"
