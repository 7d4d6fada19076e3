"""One command's connections: made when needed, closed at the end, all within its timeout.

Each client is imported when it is made: what a command does not use would be half of its start.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog.cli.interrupts import run_cancellable
from raftlog.cli.options import brokers, controllers
from raftlog.client.admission import require_listener

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from raftlog.client.broker_client import BrokerClient
    from raftlog.client.consumer import Consumer, ConsumerSettings
    from raftlog.client.controller_client import ControllerClient
    from raftlog.client.log_reader import LogReader
    from raftlog.client.producer import Producer, ProducerSettings
    from raftlog.transport.certificates import TlsFiles
    from raftlog.transport.grpc_transport import GrpcTransport

T = TypeVar("T")


class Session:
    """Clients over one transport. ``timeout_s``: for the whole of each call."""

    def __init__(
        self,
        transport: GrpcTransport,
        timeout_s: float,
        *,
        plaintext: bool = False,
        files: TlsFiles | None = None,
    ) -> None:
        """``plaintext``, ``files``: how it connects, as far as that is known."""
        self.transport = transport
        self._plaintext, self._files = plaintext, files
        self.timeout_s = timeout_s
        self._rng = random.Random()
        self._open: list[Any] = []

    def controllers(self, bootstrap: str) -> ControllerClient:
        """A client of the active controller."""
        from raftlog.client.controller_client import ControllerClient

        client = ControllerClient(
            self.transport, self._listening(controllers(bootstrap)), rng=self._rng
        )
        self._open.append(client)
        return client

    def brokers(self, bootstrap: str) -> BrokerClient:
        """A client of the brokers."""
        from raftlog.client.broker_client import BrokerClient

        client = BrokerClient(self.transport, self._listening(brokers(bootstrap)), rng=self._rng)
        self._open.append(client)
        return client

    def producer(self, bootstrap: str, settings: ProducerSettings) -> Producer:
        """A client that writes records."""
        from raftlog.client.producer import Producer

        addresses = self._listening(brokers(bootstrap))
        client = Producer(self.transport, addresses, rng=self._rng, settings=settings)
        self._open.append(client)
        return client

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> Consumer:
        """A client that reads records."""
        from raftlog.client.consumer import Consumer

        addresses = self._listening(brokers(bootstrap))
        client = Consumer(self.transport, addresses, rng=self._rng, settings=settings)
        self._open.append(client)
        return client

    def broker_addresses(self, bootstrap: str) -> list[str]:
        """Of the brokers, for a client that is closed by who makes it."""
        return self._listening(brokers(bootstrap))

    def log(self, bootstrap: str) -> LogReader:
        """A reader of the running cluster's log."""
        from raftlog.client.log_reader import LogReader

        addresses = self._listening(controllers(bootstrap))
        reader = LogReader(self.transport, addresses, rng=self._rng, timeout_s=self.timeout_s)
        self._open.append(reader)
        return reader

    def _listening(self, addresses: list[str]) -> list[str]:
        require_listener(addresses, plaintext=self._plaintext, files=self._files)
        return addresses

    async def close(self) -> None:
        """Close everything."""
        for client in self._open:
            client.close()
        await self.transport.close()


def run(body: Callable[[Session], Awaitable[T]], timeout_s: float) -> T:
    """Run one command's work on an event loop of its own.

    SIGTERM and SIGHUP cancel it, as Ctrl-C does: what it holds is given back. Then they end the
    command (EndedBySignal).
    """

    async def session() -> T:
        opened = open_session(timeout_s)
        try:
            return await body(opened)
        finally:
            await opened.close()

    return run_cancellable(session())


def ask_controller(body: Message, bootstrap: str, timeout_s: float) -> Any:
    """One question to the active controller: the response. Raises ApiError."""

    async def ask(session: Session) -> Any:
        return await session.controllers(bootstrap).call(body, timeout_s=timeout_s)

    return run(ask, timeout_s)


def open_session(timeout_s: float) -> Session:
    """A session on the running event loop.

    Raises ConfigError for certificates and tokens that cannot be read.
    """
    from raftlog.client.options import security_of_environment
    from raftlog.transport.grpc_transport import GrpcTransport

    security = security_of_environment()
    tls = security.tls
    transport = GrpcTransport(tls=tls, token=security.token)
    files = None if tls is None else tls.files
    return Session(transport, timeout_s, plaintext=tls is None, files=files)
