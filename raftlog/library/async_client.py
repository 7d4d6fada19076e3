"""``raftlog.AsyncClient``."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

from typing_extensions import Unpack

from raftlog.errors import RaftlogError
from raftlog.library.configs import AsyncConfigs
from raftlog.library.core import Core
from raftlog.library.options import Addresses, ClientOptions, Options
from raftlog.library.topics import AsyncTopics
from raftlog.library.wire import token_from_wire, token_to_wire
from raftlog.outcome import Token
from raftlog.transport.api import Transport
from raftlog.transport.grpc_transport import GrpcTransport


class AsyncClient:
    """A client of one cluster, for one event loop.

    ``bootstrap``: ``host:port`` of brokers, several with commas between; one that is up is enough.
    Empty: what the environment says. Options: :class:`ClientOptions`. Nothing connects before the
    first call. Raises ConfigError.

    What this client has seen or written it never unsees, whatever broker answers.
    """

    def __init__(self, bootstrap: Addresses = "", **options: Unpack[ClientOptions]) -> None:
        self._options = Options.of(bootstrap, options)
        self._core: Core | None = None
        self._closed = False
        self._made_by = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.topics = AsyncTopics(self._opened)
        self.configs = AsyncConfigs(self._opened)

    @property
    def token(self) -> Token | None:
        """The newest position that this client has seen or written; None: none yet."""
        token = self._core.brokers.token if self._core is not None else None
        return token_from_wire(token) if token is not None else None

    async def see(self, token: Token) -> None:
        """Let the reads from now on show this position or a later one: another client's write."""
        self._opened().brokers.see(token_to_wire(token))

    async def forget(self) -> None:
        """Begin anew, as after InconsistentGenerationError: the cluster was restored, and what was
        seen before may be gone.
        """
        self._opened().brokers.forget()

    async def __aenter__(self) -> Self:
        self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls and connections. Idempotent."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await core.close()

    def _transport(self) -> Transport:
        return GrpcTransport(tls=self._options.tls, token=self._options.token)

    def _opened(self) -> Core:
        """What the calls share, made on the loop of the first one. Raises RaftlogError."""
        if self._closed:
            raise RaftlogError("this client was closed")
        if self._made_by != os.getpid():
            raise RaftlogError(
                "this client belongs to the process that this one was forked from, and connections"
                " do not survive a fork: make a client in each process, after the fork"
            )
        loop = asyncio.get_running_loop()
        if self._core is None:
            self._core, self._loop = Core(self._options, self._transport()), loop
        elif self._loop is not loop:
            raise RaftlogError(
                "this client belongs to another event loop: make one in each, or use"
                " raftlog.Client, which works from several threads"
            )
        return self._core
