"""The real transport: bytes on the wire, services beside the conversations, TLS, and threads."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from command_runs import run_text
from scenarios import scenario
from structlog.testing import capture_logs
from tls_files import issue
from transport_worlds import LIMITS, Recorder, World, connect, connected, echo, run_real, until

from raftlog.errors import ConfigError
from raftlog.transport import probe
from raftlog.transport.api import Conversation, LinkClosedError, Probe
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip
from grpc_health.v1 import health_pb2, health_pb2_grpc  # isort: skip
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # isort: skip

CONTROLLER = "raftlog.wire.controller.v1.Controller"


@scenario(run_real)
async def test_health_and_reflection_list_the_services(world: World) -> None:
    listener: Any = await world.server.listen(
        world.bind, {Conversation.CONTROLLER: Recorder(echo).accept}
    )
    async with grpc.aio.insecure_channel(listener.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", CONTROLLER):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await listener.set_serving(CONTROLLER, False)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=CONTROLLER))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        listed = await health.List(health_pb2.HealthListRequest())
        assert {name: one.status for name, one in listed.statuses.items()} == {
            "": health_pb2.HealthCheckResponse.SERVING,
            CONTROLLER: health_pb2.HealthCheckResponse.NOT_SERVING,
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        questions = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=CONTROLLER),
        ]
        services, files = [answer async for answer in ask(iter(questions))]
        names = [service.name for service in services.list_services_response.service]
        assert CONTROLLER in names
        assert "grpc.health.v1.Health" in names
        assert files.file_descriptor_response.file_descriptor_proto


@scenario(run_real)
async def test_half_closed_client_ends_its_link(world: World) -> None:
    server = Recorder(echo)
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        stream = channel.stream_stream(Conversation.CONTROLLER.value)()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
    await until(lambda: server.reasons)
    assert server.reasons == ["the peer ended the stream"]


@scenario(run_real)
async def test_reason_of_the_peer_arrives_with_the_end_of_the_stream(world: World) -> None:
    server, client = await connected(world)
    await until(lambda: server.links)
    assert server.links[0].peer.startswith("127.0.0.1:")
    server.links[0].close("your cluster is another one")
    await until(lambda: client.reasons)
    assert client.reasons == ["UNAVAILABLE: your cluster is another one"]


@scenario(run_real, replace(LIMITS, max_message_bytes=100000, max_queued_bytes=250000))
async def test_link_with_too_many_unsent_bytes_is_closed(world: World) -> None:
    _, client = await connected(world, echo)
    link = client.links[0]
    link.send(controller_pb2.ControllerRequest(correlation_id=1, cluster_id="c" * 99_000))
    link.send(controller_pb2.ControllerRequest(correlation_id=2, cluster_id="c" * 99_000))
    with pytest.raises(LinkClosedError, match="2 messages with 198012 bytes are unsent"):
        link.send(controller_pb2.ControllerRequest(correlation_id=3, cluster_id="c" * 99_000))
    await until(lambda: client.reasons)


@scenario(run_real, replace(LIMITS, connect_timeout_ms=200))
async def test_silent_server_is_abandoned(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = Recorder()
        world.client.dial(f"127.0.0.1:{deaf.getsockname()[1]}", Conversation.CONTROLLER, client)
        with capture_logs() as logs:
            await until(lambda: logs)
        assert logs[0]["reason"] == "no response within 200 ms"
        assert client.events == []


def test_unresolvable_host_name_is_the_reported_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A host without an address "does not answer": its process was to be ended first.]"""

    async def deaf(self: Any) -> None:
        raise TimeoutError

    async def scenario(world: World) -> None:
        assert await probe.host_failure("localhost:1", 10) == ""
        assert await probe.host_failure("[::1]:1", 10) == ""
        world.client.dial("no-such-host.invalid:1", Conversation.CONTROLLER, Recorder())
        with capture_logs() as logs:
            await until(lambda: logs)
        assert logs[0]["reason"].startswith("the host name no-such-host.invalid does not resolve: ")

    # gRPC asks its name servers for longer than that.
    monkeypatch.setattr("grpc.aio._call.StreamStreamCall.initial_metadata", deaf)
    run_real(scenario)


def test_exit_does_not_wait_for_a_name_server() -> None:
    program = """
import asyncio, socket, time
from raftlog.transport import probe
find = socket.getaddrinfo
socket.getaddrinfo = lambda *a, **o: find(*a, **o) if o.get("flags") else time.sleep(60)
async def main():
    print(await probe.probe("silent.example:1", 0.05))
    print(await probe.host_failure("silent.example:1", 0.05))
asyncio.run(main())
"""
    ran = run_text([sys.executable, "-c", program], timeout=20)
    why = "the host name silent.example does not resolve: no name server has answered within 0.05 s"
    assert (ran.returncode, ran.stdout) == (0, f"Probe.SILENT\n{why}\n"), ran.stderr


@scenario(run_real)
async def test_probe_detects_silence_and_unknown_names(world: World) -> None:
    listener = await world.server.listen(world.bind, {})
    port = listener.address.rpartition(":")[2]
    # localhost may be ::1 first, where nobody listens: that refusal proves nothing.
    assert await world.client.probe(f"localhost:{port}", 10) is Probe.ACCEPTED
    assert await world.client.probe("localhost:1", 10) is Probe.REFUSED
    assert await world.client.probe("no-such-host.invalid:1", 10) is Probe.SILENT
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        # Its queue of connects is full: no answer, and that is not a refusal.
        assert await world.client.probe(f"127.0.0.1:{full.getsockname()[1]}", 0.2) is Probe.SILENT
        for sock in waiting:
            sock.close()
    for bad in ("nohost", "h:", ":1", "h:x", "h:70000"):
        with pytest.raises(ConfigError, match="is not an address of the form host:port"):
            await world.client.probe(bad, 1)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([Probe.REFUSED, Probe.REFUSED], Probe.REFUSED),
        ([Probe.REFUSED, Probe.SILENT], Probe.SILENT),
        ([Probe.REFUSED, Probe.ACCEPTED], Probe.ACCEPTED),
        ([], Probe.SILENT),
    ],
)
def test_refusal_by_one_of_several_addresses_is_not_proof(
    monkeypatch: pytest.MonkeyPatch, found: list[Probe], verdict: Probe
) -> None:
    async def resolve(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, one) for one in found]

    async def connect_to(family: int, sockaddr: Probe) -> Probe:
        return sockaddr

    monkeypatch.setattr(probe, "_resolve", resolve)
    monkeypatch.setattr(probe, "_connect", connect_to)
    assert asyncio.run(probe.probe("many-addresses:1", 10)) is verdict


@scenario(run_real)
async def test_bind_failure_states_the_reason(world: World) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1:0: (?!port in use)"):
        await world.server.listen("192.0.2.1:0", {})


def test_unreadable_tls_files_are_all_reported(tmp_path: Path) -> None:
    tls = TlsConfig(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with pytest.raises(ConfigError) as caught:
        GrpcServerTransport(tls=tls)
    for key in ("tls.certificate.file", "tls.key.file", "tls.ca.file"):
        assert f"{key}: No such file" in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_private_key_must_be_private(tmp_path: Path, mode: int) -> None:
    tls = issue(tmp_path, trustme.CA(), "good")
    tls.private_key_path.chmod(mode)
    for credentials in (tls.server_credentials, tls.channel_credentials):
        with pytest.raises(ConfigError) as caught:
            credentials()
        assert str(caught.value).startswith("tls.key.file: ")
        assert str(caught.value).endswith(f"(mode {mode:04o}): chmod 600 {tls.private_key_path}")
    tls.private_key_path.chmod(0o400)
    tls.server_credentials()


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario(world: World) -> None:
        await connect(world, Recorder(echo), Recorder())

    run_real(scenario)


def test_close_leaves_no_thread() -> None:
    before = set(threading.enumerate())

    async def scenario(world: World) -> None:
        await connect(world, Recorder(echo), Recorder())

    run_real(scenario)
    gc.collect()
    # gRPC's completion-queue thread ends with the last of its objects.
    deadline = threading.Event()
    for _ in range(1000):
        if set(threading.enumerate()) <= before:
            break
        deadline.wait(0.01)
    assert set(threading.enumerate()) <= before


PING_PONG = """
import asyncio, sys, time
{prelude}
from raftlog.transport.grpc_runtime import event_engine_cpu_s, event_engine_state
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.api import Conversation
from raftlog.transport.rpc_client import RpcClient
sys.path.insert(0, "tests/transport")
from transport_worlds import Recorder, echo, request

async def main():
    server, client = GrpcServerTransport(), GrpcServerTransport()
    listener = await server.listen("127.0.0.1:0", {{Conversation.CONTROLLER: Recorder(echo).accept}})
    caller = RpcClient(client, listener.address, Conversation.CONTROLLER)
    await caller.call(request(), 60)
    event_engine, process = event_engine_cpu_s(), time.process_time()
    for _ in range(500):
        await caller.call(request(), 60)
    print((event_engine_cpu_s() - event_engine) / (time.process_time() - process), event_engine_state(), sep="|")
    await client.close()
    await server.close()

asyncio.run(main())
"""


def in_a_process(code: str, environment: dict[str, str]) -> str:
    """Return the output of a process whose environment has no gRPC variable except this."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def ping_pong_in_a_process(prelude: str, environment: dict[str, str]) -> tuple[float, str]:
    share, state = (
        in_a_process(PING_PONG.format(prelude=prelude), environment)
        .strip()
        .splitlines()[-1]
        .split("|")
    )
    return float(share), state


IDLE_SHARE = 0.05
"""Between the CPU share of EventEngine threads that are idle, 0.004, and that of busy ones, 0.12.
Idle ones still tick by the clock: a process with a tenth of a core had 0.009.
"""


def test_event_engine_is_off_and_its_threads_are_idle() -> None:
    share, state = ping_pong_in_a_process("", {})
    assert state == "off"
    assert share < IDLE_SHARE


def test_operators_own_experiments_are_kept_and_reported() -> None:
    share, state = ping_pong_in_a_process("", {"GRPC_EXPERIMENTS": "-event_engine_client"})
    assert state == "on: GRPC_EXPERIMENTS lacks -event_engine_listener"
    assert share > IDLE_SHARE


def test_switches_after_the_grpc_import_are_reported() -> None:
    _, state = ping_pong_in_a_process("import grpc", {})
    assert state.startswith("on, probably: grpc was imported before")


FORK = """
import asyncio, subprocess, sys
from pathlib import Path
from raftlog.transport.api import Conversation
from raftlog.transport.rpc_client import RpcClient
from raftlog.transport.grpc_server import GrpcServerTransport
sys.path.insert(0, "tests/transport")
from transport_worlds import Recorder, echo, request

def alone():
    assert len(list(Path("/proc/self/task").iterdir())) == 1

async def main():
    server, client = GrpcServerTransport(), GrpcServerTransport()
    listener = await server.listen("127.0.0.1:0", {Conversation.CONTROLLER: Recorder(echo).accept})
    await RpcClient(client, listener.address, Conversation.CONTROLLER).call(request(), 60)
    subprocess.run(["true"], preexec_fn=alone, check=True)
    await client.close()
    await server.close()

asyncio.run(main())
"""


def test_forked_child_has_no_threads_of_grpc() -> None:
    # As PySpark starts its Java. With gRPC's threads in it one child in a hundred aborts before it
    # is another program.
    assert in_a_process(FORK, {}) == ""
