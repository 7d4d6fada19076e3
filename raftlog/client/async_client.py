"""``raftlog.AsyncClient``, the asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from typing_extensions import Unpack

from raftlog.client.admission import require_tls
from raftlog.client.arguments import Headers, bytes_of, checked, headers_of
from raftlog.client.core import Core, require_same_process, require_unpatched
from raftlog.client.options import Addresses, ClientOptions, Options
from raftlog.client.wire import token_from_wire, token_to_wire
from raftlog.errors import ApiError, ClientClosedError, RaftlogError, SaslAuthenticationFailedError
from raftlog.outcome import Token
from raftlog.transport.api import Transport
from raftlog.transport.grpc_transport import GrpcTransport

if TYPE_CHECKING:
    from raftlog.client.cluster import (
        AsyncAcls,
        AsyncBrokers,
        AsyncCluster,
        AsyncExportCursors,
        AsyncFeatures,
        AsyncHostnames,
        AsyncQuorum,
    )
    from raftlog.client.configs import AsyncConfigs
    from raftlog.client.consumer import AsyncRecords
    from raftlog.client.key_values import AsyncKeyValues
    from raftlog.client.leases import AsyncLeases
    from raftlog.client.producer import RecordMetadata
    from raftlog.client.topics import AsyncPartitions, AsyncTopics
    from raftlog.client.watch import AsyncChanges

NAMESPACES = {
    "topics": ("topics", "AsyncTopics"),
    "configs": ("configs", "AsyncConfigs"),
    "brokers": ("cluster", "AsyncBrokers"),
    "cluster": ("cluster", "AsyncCluster"),
    "features": ("cluster", "AsyncFeatures"),
    "quorum": ("cluster", "AsyncQuorum"),
    "acls": ("cluster", "AsyncAcls"),
    "kv": ("key_values", "AsyncKeyValues"),
    "leases": ("leases", "AsyncLeases"),
    "partitions": ("topics", "AsyncPartitions"),
    "export_cursors": ("cluster", "AsyncExportCursors"),
    "hostnames": ("cluster", "AsyncHostnames"),
}
"""Module and class of each namespace, imported on first use: a command uses only one."""


class Surroundings(Protocol):
    """The network and the randomness that a process provides to the clients created in it."""

    bootstrap: str
    """Brokers for a client that is created without any."""

    def admit(self, client: AsyncClient) -> tuple[Callable[[], Transport], random.Random]:
        """Return the transport factory of a new client, and its random number generator."""


SURROUNDINGS: ContextVar[Surroundings | None] = ContextVar("raftlog_surroundings", default=None)
"""Surroundings of new clients, or None for the real network."""


UNIQUE_NAME_CHARS = 20
LET_IN_TIMEOUT_S = 5.0
"""Maximum wait for a silent broker, in seconds; it may still answer the first call."""


class AsyncClient:
    """A client of one cluster, for one event loop.

    ``bootstrap``: ``host:port`` of brokers, separated by commas; one that is running is enough. If
    empty, the environment names them. Options: :class:`ClientOptions`. Nothing connects before the
    first call. Raises ConfigError. A client never reads a state older than one that it has read or
    written, whichever broker answers.
    """

    topics: AsyncTopics
    configs: AsyncConfigs
    brokers: AsyncBrokers
    cluster: AsyncCluster
    features: AsyncFeatures
    quorum: AsyncQuorum
    acls: AsyncAcls
    kv: AsyncKeyValues
    leases: AsyncLeases
    partitions: AsyncPartitions
    export_cursors: AsyncExportCursors
    hostnames: AsyncHostnames

    def __init__(self, bootstrap: Addresses = "", **options: Unpack[ClientOptions]) -> None:
        surroundings = SURROUNDINGS.get()
        if surroundings is not None and not bootstrap:
            bootstrap = surroundings.bootstrap
        self._options = Options.of(bootstrap, options)
        self._core: Core | None = None
        self._open: AsyncGenerator[None] | None = None
        self._closed = False
        self._rng = random.Random()
        self._make_transport: Callable[[], Transport] | None = None
        self._made_by = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends_with_loop = surroundings is None
        """Whether the client closes its connections when its loop ends: not in a simulated process,
        as a kill does not wait for that.
        """
        if surroundings is not None:
            self._make_transport, self._rng = surroundings.admit(self)

    if not TYPE_CHECKING:  # Type checkers then accept only the attributes that are declared.

        def __getattr__(self, name: str) -> Any:
            if name not in NAMESPACES:
                kind = type(self).__name__
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            module, kind = NAMESPACES[name]
            made = getattr(import_module(f"raftlog.client.{module}"), kind)(self._opened)
            setattr(self, name, made)
            return made

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *NAMESPACES})

    @classmethod
    def over(
        cls,
        transport: Callable[[], Transport],
        bootstrap: Addresses = "",
        *,
        rng: random.Random | None = None,
        **options: Unpack[ClientOptions],
    ) -> Self:
        """Return a client over another transport. ``rng``: for pauses, and for choosing the first
        broker.
        """
        client = cls(bootstrap, **options)
        client._make_transport = transport
        client._rng = rng or client._rng
        return client

    def _unique_name(self) -> str:
        """Return a name that no other client generates."""
        return f"{self._rng.getrandbits(64):0{UNIQUE_NAME_CHARS}}"

    @property
    def options(self) -> Options:
        """The client's checked options."""
        return self._options

    @property
    def core(self) -> Core:
        """Shared state of the calls, created on the event loop of the first call. Raises
        RaftlogError.
        """
        return self._opened()

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed: every call then raises ClientClosedError."""
        return self._closed

    def __repr__(self) -> str:
        return f"<raftlog.{type(self).__name__} of {','.join(self._options.servers)}>"

    @property
    def token(self) -> Token | None:
        """The newest position that this client has read or written, or None before the
        first one.
        """
        token = self._core.brokers.token if self._core is not None else None
        return token_from_wire(token) if token is not None else None

    @checked
    async def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int = -1,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Write one record, wait until all in-sync replicas have it, and return its position.

        ``partition``: -1 chooses it by the key's hash. Concurrent calls share requests. Raises
        UnknownOutcomeError, among others: the record may then be stored.
        """
        core = self._opened()
        with core.until_closed():
            return await core.producer.post(
                topic,
                None if value is None else bytes_of(value, "value"),
                key=None if key is None else bytes_of(key, "key"),
                partition=partition,
                headers=headers_of(headers),
            )

    @checked
    async def consume(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int | Literal["earliest", "latest"] = "latest",
        idle_timeout_s: float | None = None,
    ) -> AsyncRecords:
        """Read a topic's committed records, from all its partitions or from one.

        Raises UnknownTopicOrPartitionError. ``idle_timeout_s``: iteration ends when no record has
        arrived for this long; None to never end. There are no consumer groups: readers keep their
        own offsets.
        """
        from raftlog.client.consumer import AsyncRecords

        return await AsyncRecords.begin(self._opened(), topic, partition, offset, idle_timeout_s)

    @checked
    def watch(
        self,
        *selectors: str,
        since: Token | str | None = None,
        initial: bool = False,
        tip: bool = False,
        idle_timeout_s: float | None = None,
    ) -> AsyncChanges:
        """Return a stream of the changes to the metadata: each once, in order, across brokers.

        A selector is a path or a prefix of paths: "configs/topic/orders", "topics/ord*",
        "brokers/". Without selectors: every change except periodic bookkeeping. ``since``: continue
        after this token. ``initial``: begin with the existing entities. ``tip``: deliver each
        change as soon as a broker has applied it, instead of when every broker can show it.
        ``idle_timeout_s``: iteration ends when no change has arrived for this long. With ``async
        with``, the watch has started before the first line of the block.
        """
        from raftlog.client.watch import AsyncChanges

        if initial and since is not None:
            raise ValueError("initial and since cannot be combined")
        core = self._opened()
        token = None if since is None else _token(since, "since")
        watch = core.watch(selectors, since=token, initial=initial, tip=tip)
        return AsyncChanges(core, watch, idle_timeout_s)

    @checked
    async def see(self, token: Token | str) -> None:
        """Make later reads show this position or a later one, such as another client's write.

        ``token``: a token or its text. Raises InconsistentGenerationError if this client has read
        another log.
        """
        self._opened().brokers.see(token_to_wire(_token(token, "token")))

    async def forget(self) -> None:
        """Forget the position and the session: continue like a new client.

        Needed after InconsistentGenerationError: the cluster was restored or recovered, so what was
        read or written earlier may be lost.
        """
        self._opened().forget()

    async def __aenter__(self) -> Self:
        """Check the servers' certificates. Raises TlsError here instead of at the first call."""
        await require_tls(self._options)
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
        if self._open is not None:
            await self._open.aclose()
        elif core is not None:
            await core.close()

    async def _let_in(self) -> None:
        """Let a broker check the token. Raises only SaslAuthenticationFailedError."""
        try:
            await self._opened().offered(min(LET_IN_TIMEOUT_S, self._options.timeout_s))
        except SaslAuthenticationFailedError:
            raise
        except ApiError:
            return

    def _transport(self) -> Transport:
        if self._make_transport is not None:
            return self._make_transport()
        return GrpcTransport(tls=self._options.tls, token=self._options.token)

    def _opened(self) -> Core:
        """Return the shared state of the calls, which the first call creates. Raises
        RaftlogError.
        """
        if self._closed:
            raise ClientClosedError()
        require_same_process(self._made_by)
        loop = asyncio.get_running_loop()
        if self._core is None:
            require_unpatched()
            self._core, self._loop = Core(self._options, self._transport(), self._rng), loop
            if self._ends_with_loop:
                self._open = _until_closed(self._core)
                with contextlib.suppress(StopIteration):
                    self._open.__anext__().send(None)
        elif self._loop is not loop:
            raise RaftlogError(
                "this client belongs to another event loop: create one client per loop, or use "
                "raftlog.Client, which works from several threads"
            )
        return self._core


def _token(given: Token | str, argument: str) -> Token:
    try:
        return Token.parse(str(given))
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


async def _until_closed(core: Core) -> AsyncGenerator[None]:
    """Close a client's connections when it is closed or dropped, or when its loop ends and closes
    the generators that were started on it.
    """
    try:
        yield
    finally:
        await core.close()
