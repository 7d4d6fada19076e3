"""A controller run inside the test's process."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controller import late_http
from controller.run import run_controller
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster, Node
from raftlog.node.config.load import load_config
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.http_socket import bind_http
from raftlog.transport.api import Probe
from raftlog.transport.probe import probe


def one_controller(tmp_path: Path) -> tuple[LocalCluster, Node]:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    (node,) = cluster.controllers
    return cluster, node


async def test_stopping_node_refuses_connections_once_it_answers_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[HTTP took 0.1 s to stop, and a write that arrived during that time had an unknown outcome.]"""
    cluster, node = one_controller(tmp_path)
    found: list[Probe] = []
    stop = HttpServer.stop

    async def look_first(server: HttpServer) -> None:
        found.append(await probe(node.endpoint, 5.0))
        await stop(server)

    monkeypatch.setattr(HttpServer, "stop", look_first)
    running = asyncio.create_task(run_controller(load_config(cluster.config_path(node.name))))
    async with asyncio.timeout(30):
        while not (await asyncio.to_thread(cluster.ready, node.name))[0]:
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
    assert found == [Probe.REFUSED]


async def test_http_listens_at_once_and_answers_when_ready_or_after_a_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = one_controller(tmp_path)
    asked: list[float] = []
    monkeypatch.setattr(late_http, "WAIT_MAX_S", 0.3)

    def never_ready(_service: object) -> tuple[bool, str]:
        asked.append(1)
        return False, ""

    monkeypatch.setattr("controller.run.ready", never_ready)
    running = asyncio.create_task(run_controller(load_config(cluster.config_path(node.name))))
    async with asyncio.timeout(30):
        while not asked:
            await asyncio.sleep(0.01)
        # One attempt, which waits for its answer.
        assert (await asyncio.to_thread(cluster.ready, node.name, 20.0))[0]
        assert len(asked) > 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0


async def test_node_with_an_http_address_in_use_does_not_start(tmp_path: Path) -> None:
    cluster, node = one_controller(tmp_path)
    config = load_config(cluster.config_path(node.name))
    assert config.http_listener is not None
    with bind_http("127.0.0.1", config.http_listener.port), pytest.raises(ConfigError):
        await run_controller(config)
