"""Bearer tokens over real gRPC."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from scenarios import scenario
from structlog.testing import capture_logs
from tls_files import issue
from token_issuer import AUDIENCE, ISSUER, Issuer, claims
from transport_worlds import LIMITS, Recorder, echo, request, until

from raftlog import identity as access_module
from raftlog.errors import ConfigError, ErrorCode
from raftlog.identity import Access, NodeRule, PeerIdentity
from raftlog.node.security.guard import Authentication, guarded, guarded_handler
from raftlog.node.security.issuer_keys import KeySet
from raftlog.node.security.token_rules import TokenRules
from raftlog.node.security.tokens import Tokens
from raftlog.transport.api import Acceptors, Conversation, Link
from raftlog.transport.bounds import Complaint
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.grpc_transport import (
    LINK_METADATA_KEY,
    GrpcTransport,
    NoTokenError,
    TokenSource,
    token_file,
)
from raftlog.transport.rpc_client import RpcClient
from raftlog.transport.statuses import ERROR_METADATA_KEY
from raftlog.transport.tls import ListenerSecurity, TlsConfig, TlsTrust
from raftlog.transport.unary import Caller, answer, unary_handler
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as controller

import grpc  # isort: skip
import grpc.aio  # isort: skip

US = Issuer()
KEYS = KeySet.parse(US.jwks())
CONTROLLER = controller.DESCRIPTOR.services_by_name["Controller"]
DESCRIBE = "/raftlog.wire.controller.v1.Controller/DescribeBrokers"
DELETE = "/raftlog.wire.controller.v1.Controller/DeleteTopics"
RULE = Authentication(NodeRule.parse("CN=node-{id}"))
TIMEOUT_S = 30.0


class Keys:
    """The issuer's keys, which stay the same."""

    def __init__(self) -> None:
        self.closed = False

    def current(self) -> KeySet:
        return KEYS

    async def newer(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self.closed = True


@dataclass
class Node:
    address: str
    server: GrpcServerTransport
    tls: TlsConfig
    authority: trustme.CA
    directory: Path
    keys: Keys
    streams: Recorder
    callers: list[Caller] = field(default_factory=list)
    items: list[controller.ControllerRequest] = field(default_factory=list)

    @property
    def complaints(self) -> int:
        return self.server.bounds.complaints.counts[Complaint.UNAUTHENTICATED]

    @property
    def reached(self) -> int:
        return len(self.streams.links) + len(self.streams.envelopes) + len(self.callers)

    @property
    def trust(self) -> TlsTrust:
        return TlsTrust(self.tls.ca_path)

    def issue(self, name: str) -> TlsConfig:
        return issue(self.directory, self.authority, name)


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    certificates: bool = False,
    tokens: bool = True,
    guard: Authentication | None = None,
    clock: Callable[[], float] = time.time,
    reflection: bool = False,
) -> AsyncIterator[Node]:
    authority = trustme.CA()
    tls = issue(directory, authority, "node-1")
    listeners = {"": ListenerSecurity(tls, reflection=reflection)}
    server = GrpcServerTransport(LIMITS, tls=tls, listeners=listeners)
    keys, streams = Keys(), Recorder(echo)
    check = Tokens(TokenRules(ISSUER, frozenset({AUDIENCE}), skew_s=0), keys)
    node = Node("", server, tls, authority, directory, keys, streams)
    handler = guarded_handler(AnswerAll(), Conversation.CONTROLLER, guard)

    async def ask(item: controller.ControllerRequest, caller: Caller) -> Any:
        # As a handler that has to wait has it: others have come meanwhile.
        await asyncio.sleep(0)
        node.callers.append(caller)
        node.items.append(item)
        return await answer(handler, item, caller)

    acceptors: Acceptors = {
        Conversation.CONTROLLER: streams.accept,
        Conversation.QUORUM: streams.accept,
        Conversation.REPLICATION: streams.accept,
        Conversation.OBSERVER: streams.accept,
    }
    listener = await server.listen(
        "127.0.0.1:0",
        guarded(acceptors, guard),
        extra_handlers=[unary_handler(CONTROLLER, controller.ControllerRequest, ask)],
        access=Access(certificates, check if tokens else None, clock),
    )
    node.address = listener.address
    try:
        yield node
    finally:
        await server.close()
        assert keys.closed == tokens


class AnswerAll:
    """Answers each request with an empty body of the same kind."""

    def received(self, link: Link, messages: Any) -> None:
        for message in messages:
            response = controller.ControllerResponse(correlation_id=message.correlation_id)
            getattr(response, message.WhichOneof("body")).SetInParent()
            link.send(response)

    def closed(self, link: Link, reason: str) -> None:
        pass


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()
        await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})

    uvloop.run(main())


def bearing(*tokens: str) -> tuple[tuple[str, str], ...]:
    return tuple(("authorization", f"Bearer {one}") for one in tokens)


@asynccontextmanager
async def channel(node: Node, tls: TlsConfig | None = None) -> AsyncIterator[Any]:
    credentials = (tls or node.trust).channel_credentials()
    options = [("grpc.max_metadata_size", 4 << 20)]
    async with grpc.aio.secure_channel(node.address, credentials, options=options) as opened:
        yield opened


@dataclass
class Refusal:
    status: Any
    details: str
    code: int


async def unary(opened: Any, metadata: Any, method: str = DESCRIBE, body: bytes = b"") -> Refusal:
    """Return the status of a call; OK if it succeeded."""
    try:
        await opened.unary_unary(method)(body, metadata=metadata, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return refusal(error.code(), error.details(), error.trailing_metadata())
    return Refusal(grpc.StatusCode.OK, "", 0)


async def stream(opened: Any, metadata: Any) -> Refusal:
    """Return the status of a stream with one request."""
    call = opened.stream_stream(Conversation.CONTROLLER.value)(metadata=metadata, timeout=TIMEOUT_S)
    # As our client does: grpc.aio makes an internal error of a write that meets a refusal.
    if LINK_METADATA_KEY in await call.initial_metadata():
        requests = controller.ControllerRequests(requests=[request(1)])
        await call.write(requests.SerializeToString())
        assert await call.read() is not grpc.aio.EOF
        call.cancel()
        return Refusal(grpc.StatusCode.OK, "", 0)
    return refusal(await call.code(), await call.details(), await call.trailing_metadata())


def refusal(status: Any, details: str | None, metadata: Any) -> Refusal:
    found = dict(metadata or ())
    error = common_pb2.Error.FromString(found.get(ERROR_METADATA_KEY, b""))
    return Refusal(status, details or "", error.error_code)


# --- good ones -----------------------------------------------------------------------------------


@scenario(run)
async def test_concurrent_callers_keep_their_principals(*, tmp_path: Path) -> None:
    async with serving(tmp_path) as node, channel(node) as opened:
        names = [f"u{number % 7}" for number in range(60)]
        tokens = {name: bearing(US.token(sub=name)) for name in names}
        requests = [
            controller.DeleteTopicsRequest(names=[name]).SerializeToString() for name in names
        ]
        done = await asyncio.gather(
            *(
                unary(opened, tokens[name], DELETE, body)
                for name, body in zip(names, requests, strict=True)
            )
        )
        assert {one.status for one in done} == {grpc.StatusCode.OK}
        assert len(node.callers) == len(names)
        for caller, item in zip(node.callers, node.items, strict=True):
            (name,) = item.delete_topics.names
            assert caller.identity == PeerIdentity(principal=f"User:{name}")
        assert node.complaints == 0


@scenario(run)
async def test_token_names_the_principal_and_certificate_the_node(*, tmp_path: Path) -> None:
    async with serving(tmp_path, certificates=True, guard=RULE) as node:
        like_a_node = US.token(sub="CN=node-1", CN="node-1", dns="node-1", names=["CN=node-1"])
        for metadata in ((), bearing(US.token()), bearing(like_a_node)):
            async with channel(node, node.issue("client")) as opened:
                assert (await stream(opened, metadata)).status is grpc.StatusCode.OK
        async with channel(node, node.tls) as opened:
            assert (await stream(opened, bearing(US.token()))).status is grpc.StatusCode.OK
        principals = [
            RULE.mapping.principal_of(one.identity).partition(",")[0] for one in node.streams.links
        ]
        assert principals == ["User:CN=client", "User:alice", "User:CN=node-1", "User:alice"]
        nodes = [RULE.rule.nodes_of(one.identity) for one in node.streams.links]
        assert nodes == [set(), set(), set(), {1}]


@scenario(run)
async def test_tokens_are_ignored_where_none_are_configured(*, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, certificates=True, tokens=False) as node,
        channel(node, node.issue("client")) as opened,
    ):
        assert (await unary(opened, bearing("x"))).status is grpc.StatusCode.OK
        assert node.callers[0].identity.principal == ""


# --- bad ones ------------------------------------------------------------------------------------


def bad(now: float) -> dict[str, tuple[tuple[tuple[str, str], ...], str]]:
    """Metadata, and its refusal; tests/security/test_tokens.py has all kinds of tokens."""
    return {
        "none": ((), "has no token"),
        "empty": (bearing(""), "not a signed JWT"),
        "another scheme": ((("authorization", "Basic YTpi"),), "must be `Bearer <token>`"),
        "two": (bearing(US.token(), US.token(sub="bob")), "several tokens"),
        "expired": (bearing(US.token(exp=int(now) - 1)), "has expired"),
        "an unknown key": (bearing(Issuer("k9").token("k9")), "no key with the token's id"),
        "too long": (bearing(US.token(more="x" * 8_192)), "at most 8192 are allowed"),
    }


@pytest.mark.parametrize("certificates", [False, True], ids=["token alone", "with a certificate"])
def test_invalid_token_reaches_no_handler(tmp_path: Path, *, certificates: bool) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, certificates=certificates) as node:
            cases = bad(time.time())
            if certificates:
                # It is enough there.
                del cases["none"]
            refusals = 0
            tls = node.issue("client") if certificates else None
            async with channel(node, tls) as opened:
                for name, (metadata, why) in cases.items():
                    for made in (stream, unary):
                        refused = await made(opened, metadata)
                        assert refused.status is grpc.StatusCode.UNAUTHENTICATED, (name, refused)
                        assert refused.code == ErrorCode.SASL_AUTHENTICATION_FAILED, name
                        assert why in refused.details, (name, refused)
                        refusals += 1
                        assert node.complaints == refusals, name
            assert node.reached == 0
            # Nobody holds a place.
            await until(lambda: not any(one.total for one in node.server.bounds.streams.values()))

    with capture_logs() as logs:
        run(scenario)
    said = json.dumps(logs)
    assert "127.0.0.1:" in said
    assert "a peer has not proved its identity" in said
    # Every token begins with a header in JSON, and has a body that does.
    assert "eyJ" not in said


@scenario(run)
async def test_token_of_a_megabyte_is_refused_before_it_is_parsed(*, tmp_path: Path) -> None:
    async with serving(tmp_path) as node, channel(node) as opened:
        for made in (stream, unary):
            refused = await made(opened, bearing("x" * (1 << 20)))
            assert refused.status in {
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.INTERNAL,
            }, refused
        assert node.reached == 0
        # Others are served as before, with tokens as long as they may be.
        long = US.token(more="x" * 5_500)
        assert 7_600 < len(long) <= 8_192
        for _ in range(20):
            assert (await unary(opened, bearing(long))).status is grpc.StatusCode.OK


@scenario(run)
async def test_unauthenticated_peer_may_only_check_the_health(*, tmp_path: Path) -> None:
    async with serving(tmp_path) as node, channel(node) as opened:
        stub = health_pb2_grpc.HealthStub(opened)
        found = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        # Its one message goes with the call: gRPC says INTERNAL of one that is written when the
        # call has ended meanwhile.
        listing = opened.unary_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        )(reflection_pb2.ServerReflectionRequest(list_services=""), timeout=TIMEOUT_S)
        # Where there is TLS there is no reflection.
        for call, code in (
            (watch, grpc.StatusCode.UNAUTHENTICATED),
            (listing, grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(call))
            assert caught.value.code() is code


@scenario(run)
async def test_tls_requires_client_certificates_only_when_configured(*, tmp_path: Path) -> None:
    async with serving(tmp_path, certificates=True) as node, channel(node) as opened:
        refused = await unary(opened, bearing(US.token()))
        assert refused.status is grpc.StatusCode.UNAVAILABLE
        assert node.reached == 0
    async with serving(tmp_path) as node, channel(node, node.issue("node-2")) as opened:
        # Not asked for, so not shown: it makes nobody a node here.
        assert (await unary(opened, bearing(US.token()))).status is grpc.StatusCode.OK
        assert node.callers[0].identity.names == frozenset()


# --- the end of a token --------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access_module, "EXPIRY_LOOK_AGAIN_S", 0.01)
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def token(self, name: str, lasts_s: float) -> str:
        return US.token(**claims(self.now_s, sub=name, exp=self.now_s + lasts_s))


@scenario(run)
async def test_stream_ends_with_token(*, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async with serving(tmp_path, clock=clock) as node, channel(node) as opened:
        method = opened.stream_stream(Conversation.CONTROLLER.value)
        call = method(metadata=bearing(clock.token("brief", 100)), timeout=TIMEOUT_S)
        stays = method(metadata=bearing(clock.token("long", 1_000)), timeout=TIMEOUT_S)
        await until(lambda: len(node.streams.links) == 2)
        clock.now_s += 99
        requests = controller.ControllerRequests(requests=[request(1)])
        await call.write(requests.SerializeToString())
        assert await call.read() is not grpc.aio.EOF
        clock.now_s += 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        ended = caught.value
        told = refusal(ended.code(), ended.details(), ended.trailing_metadata())
        assert told.status is grpc.StatusCode.UNAUTHENTICATED
        assert told.details == "the token has expired: connect again with a fresh one"
        assert told.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert node.streams.reasons == [told.details]
        assert node.complaints == 0, "that is not a misbehaviour"
        stays.cancel()


@scenario(run)
async def test_health_and_reflection_streams_end_with_token_or_certificate(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[They continued forever with a certificate that had expired years ago.]"""
    clock = Clock(monkeypatch)
    clock.now_s = time.time()
    async with (
        serving(tmp_path, certificates=True, clock=clock, reflection=True) as node,
        channel(node, node.issue("alice")) as opened,
    ):
        health = health_pb2_grpc.HealthStub(opened)
        services = reflection_pb2_grpc.ServerReflectionStub(opened)
        asks = reflection_pb2.ServerReflectionRequest(list_services="")
        for metadata, what in ((bearing(clock.token("brief", 100)), "token"), ((), "certificate")):
            watch = health.Watch(
                health_pb2.HealthCheckRequest(), metadata=metadata, timeout=TIMEOUT_S
            )
            names = services.ServerReflectionInfo(metadata=metadata, timeout=TIMEOUT_S)
            for call in (watch, names):
                if call is names:
                    await call.write(asks)
                assert await call.read() is not grpc.aio.EOF
            # A call that is over in time is not touched by the end of its caller.
            assert (await unary(opened, metadata)).status is grpc.StatusCode.OK
            clock.now_s += 100 if what == "token" else 10_000 * 365 * 86_400
            for call in (watch, names):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert caught.value.details() == (
                    "SASL_AUTHENTICATION_FAILED:"
                    f" the {what} has expired: connect again with a fresh one"
                )
        assert node.complaints == 0


@scenario(run)
async def test_calls_on_an_old_connection_end_with_the_certificate(*, tmp_path: Path) -> None:
    """[A thief keeps the connection open, and keeps calling for years.]"""
    late_s = 0.0

    def clock() -> float:
        return time.time() + late_s

    async with (
        serving(tmp_path, certificates=True, tokens=False, clock=clock) as node,
        channel(node, node.issue("alice")) as opened,
    ):
        assert (await unary(opened, ())).status is grpc.StatusCode.OK
        reached = node.reached
        late_s = 10_000 * 365 * 86_400.0
        for refused in (await unary(opened, ()), await stream(opened, ())):
            assert refused.status is grpc.StatusCode.UNAUTHENTICATED
            assert "the certificate has expired: connect again with a" in refused.details
            assert refused.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert node.reached == reached


@scenario(run)
async def test_client_reconnects_with_a_fresh_token(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    async with serving(tmp_path, clock=clock) as node:
        path = tmp_path / "token"
        path.write_text(clock.token("first", 100) + "\n")
        client = GrpcTransport(LIMITS, tls=node.trust, token=token_file(path))
        caller = RpcClient(client, node.address, Conversation.CONTROLLER)
        await caller.call(request(), TIMEOUT_S)
        path.write_text(clock.token("second", 1_000))
        clock.now_s += 100
        await until(lambda: len(node.streams.links) == 2)
        await caller.call(request(), TIMEOUT_S)
        principals = [one.identity.principal for one in node.streams.links]
        assert principals == ["User:first", "User:second"]
        await client.close()


# --- the client's side ---------------------------------------------------------------------------


@scenario(run)
async def test_token_is_not_sent_in_plain_text() -> None:
    with pytest.raises(ConfigError, match="anyone who reads"):
        GrpcTransport(LIMITS, token=lambda: "x")
    server = GrpcServerTransport(LIMITS)
    access = Access(tokens=Tokens(TokenRules(ISSUER, frozenset()), Keys()))
    with pytest.raises(ConfigError, match="anyone who reads"):
        await server.listen("127.0.0.1:0", {}, access=access)
    await server.close()


async def given(token: str) -> str:
    await asyncio.sleep(0)
    return token


def secret_in_an_error() -> str:
    raise ValueError("eyJsecret")


def no_token_now() -> str:
    raise NoTokenError("no token: not logged in")


async def for_ever() -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda: "", "must return a token"),
        (lambda: "a b", "must return a token"),
        (lambda: "eyJa\nb", "must return a token"),
        (lambda: "eyJé", "must return a token"),
        (lambda: "x" * 8_193, "must return a token"),
        (lambda: 7, "must return a token"),
        (lambda: given("eyJa\nb"), "must return a token"),
        (secret_in_an_error, "the token source failed with ValueError"),
        (no_token_now, "not logged in"),
        (token_file(Path("/nowhere/token")), "No such file or directory: /nowhere/token"),
    ],
)
def test_unusable_token_prevents_the_dial(tmp_path: Path, source: TokenSource, why: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as node:
            client = GrpcTransport(LIMITS, tls=node.trust, token=source)
            caller = RpcClient(client, node.address, Conversation.CONTROLLER)
            await until(lambda: caller.failure)
            assert why in caller.failure
            assert "eyJ" not in caller.failure
            assert (node.reached, node.complaints) == (0, 0)
            await client.close()

    with capture_logs() as logs:
        run(scenario)
    assert "eyJ" not in json.dumps(logs)


@scenario(run)
async def test_unresponsive_token_source_ends_with_its_client(*, tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = GrpcTransport(LIMITS, tls=node.trust, token=for_ever)
        RpcClient(client, node.address, Conversation.CONTROLLER)
        await asyncio.sleep(0)
        await client.close()


def test_invalid_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(NoTokenError, match="is not ASCII text"):
        token_file(tmp_path / "binary")()


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff"])
def test_invalid_authority_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ca").write_bytes(content)
    with pytest.raises(ConfigError, match=r"tls\.ca\.file: .*/ca contains no certificate"):
        TlsTrust(tmp_path / "ca").channel_credentials()
    with pytest.raises(ConfigError, match=r"tls\.ca\.file: No such file or directory: .*/other"):
        TlsTrust(tmp_path / "other").channel_credentials()


def test_listener_that_nobody_could_use_is_refused() -> None:
    with pytest.raises(ValueError, match="no client can be authenticated"):
        Access(certificates=False)
