"""Several listeners of one node, each with its own authority, name and services."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from scenarios import scenario
from tls_files import issue
from transport_worlds import LIMITS, Recorder, echo, request, still_open, until

from raftlog.node.config.load import load_config
from raftlog.node.transport import transport_of
from raftlog.transport.api import Conversation, Probe, TransportLimits
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import ListenerSecurity, Routes, TlsConfig
from raftlog.transport.unary import Caller, unary_handler
from raftlog.wire.controller.v1 import controller_pb2, controller_pb2_grpc

import grpc  # isort: skip
import grpc.aio  # isort: skip
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # isort: skip

C = Conversation.CONTROLLER
ANY = "127.0.0.1:0"
TLS_KEYS = ("tls.certificate.file", "tls.key.file", "tls.ca.file")


class Stage:
    """A node with a listener of each name, and its clients."""

    def __init__(self, limits: TransportLimits, served: Mapping[str, ListenerSecurity]) -> None:
        self.node = GrpcServerTransport(limits, listeners=served, routes=Routes({"": None}))
        self.transports: list[GrpcTransport] = [self.node]
        self.server = Recorder(echo)

    async def listen(self, name: str, **more: Any) -> str:
        return (await self.node.listen(ANY, {C: self.server.accept}, name=name, **more)).address

    def client(self, tls: TlsConfig | None = None, routes: Routes | None = None) -> GrpcTransport:
        self.transports.append(GrpcTransport(LIMITS, tls=tls, routes=routes))
        return self.transports[-1]

    async def answers(self, transport: GrpcTransport, address: str) -> bool:
        """Return whether a request is answered there; False: no connection."""
        client = Recorder()
        dialer = transport.dial(address, C, client)
        await until(lambda: client.links or dialer.last_failure)
        if client.links:
            client.links[0].send(request(1))
            await until(lambda: client.ids == [1])
        dialer.close()
        return bool(client.links)


def played(
    scenario: Callable[[Stage], Awaitable[None]],
    served: Mapping[str, ListenerSecurity],
    limits: TransportLimits = LIMITS,
) -> None:
    async def main() -> None:
        stage = Stage(limits, served)
        try:
            async with asyncio.timeout(60):
                await scenario(stage)
        finally:
            for transport in reversed(stage.transports):
                await transport.close()

    uvloop.run(main())


def test_each_listener_accepts_certificates_of_its_own_authority(tmp_path: Path) -> None:
    nodes, clients = trustme.CA(), trustme.CA()
    served = {
        "INTERNAL": ListenerSecurity(issue(tmp_path / "i", nodes)),
        "CLIENTS": ListenerSecurity(issue(tmp_path / "c", clients)),
        "PLAINTEXT": ListenerSecurity(),
    }
    node, client = issue(tmp_path / "node", nodes), issue(tmp_path / "client", clients)

    async def scenario(stage: Stage) -> None:
        addresses = {name: await stage.listen(name) for name in served}
        for tls, reached in ((node, "INTERNAL"), (client, "CLIENTS"), (None, "PLAINTEXT")):
            transport = stage.client(tls)
            found = [name for name, at in addresses.items() if await stage.answers(transport, at)]
            assert found == [reached]
        assert [link.listener for link in stage.server.links] == list(served)

    played(scenario, served)


def test_node_dials_by_the_name_of_the_listener(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = issue(tmp_path / "own", authority)
    served = {"P": ListenerSecurity(), "S": ListenerSecurity(own)}

    async def scenario(stage: Stage) -> None:
        plain, secured = await stage.listen("P"), await stage.listen("S")
        both = f"P://{plain},S://{secured}"
        by_name = {"P": None, "S": own}
        before = stage.client(routes=Routes({**by_name, "": None}, ("P", "S")))
        after = stage.client(routes=Routes({**by_name, "": own}, ("S", "P")))
        for transport, wanted in ((before, "P"), (after, "S")):
            assert await stage.answers(transport, both)
            assert stage.server.links[-1].listener == wanted
            # One that is named is dialled as its name says, whatever is preferred.
            for name, address in (("P", plain), ("S", secured)):
                assert await stage.answers(transport, f"{name}://{address}")
                assert stage.server.links[-1].listener == name
            assert await transport.probe(both, 5.0) is Probe.ACCEPTED
            assert await transport.probe("P://127.0.0.1:1,S://127.0.0.1:1", 5.0) is Probe.REFUSED
        # Also where it is none of those that this node prefers for itself.
        broker = stage.client(routes=Routes({**by_name, "": None}, ("P",)))
        assert await stage.answers(broker, f"S://{secured}")
        # Addresses without a name, and names that nobody knows, are of the kind that "" says.
        assert await stage.answers(before, plain)
        assert await stage.answers(after, secured)
        assert await stage.answers(before, f"OTHER://{plain},ANOTHER://127.0.0.1:1")
        assert not await stage.answers(after, plain)

    played(scenario, served)


@scenario(played, {"A": ListenerSecurity()})
async def test_unary_call_knows_its_listener_and_has_only_its_methods(stage: Stage) -> None:
    heard: list[str] = []

    async def answer(item: Any, caller: Caller) -> Any:
        heard.append(caller.listener)
        return controller_pb2.ControllerResponse(
            create_topics=controller_pb2.CreateTopicsResponse()
        )

    def handler(name: str, *without: str) -> Any:
        service = controller_pb2.DESCRIPTOR.services_by_name["Controller"]
        item = controller_pb2.ControllerRequest
        return unary_handler(service, item, answer, listener=name, without=without)

    address = await stage.listen("A", extra_handlers=[handler("A", "broker_heartbeat")])
    async with grpc.aio.insecure_channel(address) as channel:
        stub = controller_pb2_grpc.ControllerStub(channel)
        await stub.CreateTopics(controller_pb2.CreateTopicsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.BrokerHeartbeat(controller_pb2.BrokerHeartbeatRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert heard == ["A"]


@pytest.mark.parametrize(
    ("protocol", "flag", "reflects"),
    [("PLAINTEXT", "", True), ("SSL", "", False), ("SSL", "grpc.reflection.enable=true", True)],
)
def test_reflection_is_off_with_tls_unless_enabled(
    tmp_path: Path, protocol: str, flag: str, reflects: bool
) -> None:
    tls = issue(tmp_path / "node", trustme.CA())
    flags = {
        "process.roles": "broker",
        "node.id": 4,
        "cluster.id": "c",
        "log.dirs": tmp_path,
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "listeners": ANY,
    }
    if protocol == "SSL":
        paths = (tls.certificate_path, tls.private_key_path, tls.ca_path)
        flags |= dict(zip(TLS_KEYS, paths, strict=True))
    given = [f"{key}={value}" for key, value in flags.items()]
    config = load_config(None, flags=[*given, *filter(None, [flag])], environment={})

    async def main() -> None:
        node = transport_of(config)
        try:
            listener = await node.listen(ANY, {}, name=protocol)
            async with channel(listener.address, tls if protocol == "SSL" else None) as opened:
                ask = reflection_pb2_grpc.ServerReflectionStub(opened).ServerReflectionInfo
                call = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
                if reflects:
                    assert [answer async for answer in call]
                else:
                    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            await node.close()

    uvloop.run(main())


def channel(address: str, tls: TlsConfig | None) -> Any:
    if tls is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, tls.channel_credentials())


def test_connections_of_all_listeners_share_one_limit() -> None:
    """Each has its share, so that a flood of clients leaves room for nodes."""

    async def scenario(stage: Stage) -> None:
        addresses = [await stage.listen(name) for name in ("A", "B")]
        held: list[socket.socket] = []
        try:
            for share, address in ((3, addresses[0]), (6, addresses[1])):
                host, _, port = address.rpartition(":")
                held.extend(socket.create_connection((host, int(port))) for _ in range(9))
                await until(partial(lambda left: len(still_open(held)) == left, share))
            assert len(still_open(held)) == 6
        finally:
            for one in held:
                one.close()

    limits = replace(LIMITS, max_connections=6, handshake_timeout_ms=60_000)
    played(scenario, {"A": ListenerSecurity(), "B": ListenerSecurity()}, limits)


@pytest.mark.parametrize(
    ("newest", "outcome"),
    [
        (ssl.TLSVersion.TLSv1_1, None),
        (ssl.TLSVersion.TLSv1_2, "TLSv1.2"),
        (ssl.TLSVersion.MAXIMUM_SUPPORTED, "TLSv1.3"),
    ],
    ids=["1.1", "1.2", "the newest"],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_1_2_or_later_and_1_3_if_supported(
    tmp_path: Path, newest: ssl.TLSVersion, outcome: str | None
) -> None:
    tls = issue(tmp_path / "node", trustme.CA())
    context = old_context(ssl.create_default_context(cafile=str(tls.ca_path)), tls)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = newest

    def shake(address: str) -> str | None:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            try:
                with context.wrap_socket(raw, server_hostname=host) as secured:
                    return secured.version()
            except (ssl.SSLError, ConnectionError):
                return None

    async def scenario(stage: Stage) -> None:
        address = await stage.listen("S")
        assert await asyncio.to_thread(shake, address) == outcome

    # It is the node that refuses: somebody else would have taken this very client.
    lenient = old_context(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
    assert in_memory(context, lenient) == {ssl.TLSVersion.TLSv1_1: "TLSv1.1"}.get(newest, outcome)
    played(scenario, {"S": ListenerSecurity(tls)})


def old_context(context: ssl.SSLContext, tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that offers and accepts old versions, too."""
    context.load_cert_chain(tls.certificate_path, tls.private_key_path)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    return context


def in_memory(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(down, up, server_hostname="127.0.0.1")
    other = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (one, other):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return one.version()
