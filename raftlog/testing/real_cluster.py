"""A cluster of real processes, as one test uses it."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import Unpack

from raftlog.client.async_client import AsyncClient
from raftlog.client.client import Client
from raftlog.client.options import ClientOptions
from raftlog.local.cluster import LocalCluster
from raftlog.testing.cluster_session import START_TIMEOUT_S


class RealCluster:
    """Controllers and brokers on this machine, without data when the test begins. After the test,
    the nodes are restored and the test's writes deleted.
    """

    def __init__(self, local: LocalCluster) -> None:
        self._local = local
        self._clients: list[Client] = []

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers, separated by commas."""
        return self._local.bootstrap_servers

    @property
    def bootstrap_controllers(self) -> str:
        """Addresses of the controllers, separated by commas."""
        return self._local.bootstrap_controllers

    @property
    def controllers(self) -> list[str]:
        """Names of the controllers."""
        return [node.name for node in self._local.controllers]

    @property
    def brokers(self) -> list[str]:
        """Names of the brokers."""
        return [node.name for node in self._local.brokers]

    @property
    def leader(self) -> str | None:
        """Name of the controller that leads, or None."""
        # In a separate thread, since the test may have an event loop in this one.
        with ThreadPoolExecutor(1) as thread:
            leader = thread.submit(self._local.leader).result()
        return None if leader is None else leader.name

    def connect(self, **options: Unpack[ClientOptions]) -> Client:
        """Return a client, which is closed after the test."""
        client = Client(self.bootstrap_servers, **options)
        self._clients.append(client)
        return client

    def connect_async(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a client for the event loop that uses it first; ``async with`` closes it."""
        return AsyncClient(self.bootstrap_servers, **options)

    def address(self, name: str) -> str:
        """Return the address of a node."""
        return self._local.node(name).endpoint

    def log(self, name: str) -> str:
        """Return a node's log output since the cluster was started."""
        return self._local.log_path(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a node with SIGKILL, and wait until it has exited."""
        self._local.kill(name, signal.SIGKILL)
        self._local.wait_gone(name)

    def start(self, name: str) -> None:
        """Start a stopped node, and wait until it is ready. Raises FailedError."""
        self._local.start(name)
        self._local.wait_ready([name], START_TIMEOUT_S)

    def pause(self, name: str) -> None:
        """Stop a node with SIGSTOP, and wait until it is paused."""
        self._local.pause(name)

    def resume(self, name: str) -> None:
        """Resume a paused node."""
        self._local.resume(name)

    def close(self) -> None:
        """Close the clients of :meth:`connect`. Idempotent."""
        clients, self._clients = self._clients, []
        for client in clients:
            client.close()
