"""One command's connections: made when needed, closed at the end, all within its timeout."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from raftlog.cli.options import brokers, controllers
from raftlog.client.broker_client import BrokerClient
from raftlog.client.consumer import Consumer, ConsumerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ConfigError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig

T = TypeVar("T")
_TLS_VARIABLES = ("RAFTLOG_TLS_CERTIFICATE_FILE", "RAFTLOG_TLS_KEY_FILE", "RAFTLOG_TLS_CA_FILE")


class Session:
    """Clients over one transport. ``timeout_s``: for the whole of each call."""

    def __init__(self, transport: GrpcTransport, timeout_s: float) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self._rng = random.Random()
        self._open: list[Any] = []

    def controllers(self, bootstrap: str) -> ControllerClient:
        """A client of the active controller."""
        client = ControllerClient(self.transport, controllers(bootstrap), rng=self._rng)
        self._open.append(client)
        return client

    def brokers(self, bootstrap: str) -> BrokerClient:
        """A client of the brokers."""
        client = BrokerClient(self.transport, brokers(bootstrap), rng=self._rng)
        self._open.append(client)
        return client

    def producer(self, bootstrap: str, settings: ProducerSettings) -> Producer:
        """A client that writes records."""
        addresses = brokers(bootstrap)
        client = Producer(self.transport, addresses, rng=self._rng, settings=settings)
        self._open.append(client)
        return client

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> Consumer:
        """A client that reads records."""
        addresses = brokers(bootstrap)
        client = Consumer(self.transport, addresses, rng=self._rng, settings=settings)
        self._open.append(client)
        return client

    def log(self, bootstrap: str) -> LogReader:
        """A reader of the running cluster's log."""
        addresses = controllers(bootstrap)
        reader = LogReader(self.transport, addresses, rng=self._rng, timeout_s=self.timeout_s)
        self._open.append(reader)
        return reader

    async def close(self) -> None:
        """Close everything."""
        for client in self._open:
            client.close()
        await self.transport.close()


def run(body: Callable[[Session], Awaitable[T]], timeout_s: float) -> T:
    """Run one command's work on an event loop of its own."""

    async def session() -> T:
        opened = open_session(timeout_s)
        try:
            return await body(opened)
        finally:
            await opened.close()

    return asyncio.run(session())


def open_session(timeout_s: float) -> Session:
    """A session on the running event loop.

    Raises ConfigError for certificates that cannot be read.
    """
    return Session(GrpcTransport(tls=tls_of_environment()), timeout_s)


def tls_of_environment() -> TlsConfig | None:
    """The certificates that the environment names. Raises ConfigError if only some of them are."""
    paths = [os.environ.get(variable, "") for variable in _TLS_VARIABLES]
    if not any(paths):
        return None
    if not all(paths):
        missing = [
            variable for variable, path in zip(_TLS_VARIABLES, paths, strict=True) if not path
        ]
        raise ConfigError(
            f"TLS needs all of {', '.join(_TLS_VARIABLES)}; missing: {', '.join(missing)}"
        )
    certificate, key, ca = map(Path, paths)
    return TlsConfig(certificate, key, ca)
