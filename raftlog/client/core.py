"""The shared state of one client's calls, on one event loop: connections and numbered writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from google.protobuf.message import Message

from raftlog.client.arguments import checked
from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.endpoints import KnownEndpoints
from raftlog.client.options import Options, positive
from raftlog.client.requests import (
    RefusedItemsError,
    broker_request,
    require_success,
    retrying,
    timeout_ms,
)
from raftlog.client.session import NoSessionError
from raftlog.client.values import ItemResult, WaitOptions, WriteOptions
from raftlog.client.wire import acks_to_wire, mode_to_wire, write_result
from raftlog.errors import (
    AcksNotReachedError,
    ApiError,
    ClientClosedError,
    ConfigError,
    ErrorCode,
    ItemsRefusedError,
    NetworkError,
    RaftlogError,
    UnknownOutcomeError,
)
from raftlog.logger import get_logger
from raftlog.outcome import Token, WriteResult
from raftlog.transport.api import Transport, TransportLimits
from raftlog.transport.links import Backoff
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

if TYPE_CHECKING:
    from raftlog.client.consumer import Consumer, ConsumerSettings
    from raftlog.client.log_reader import LogReader
    from raftlog.client.producer import Producer, ProducerSettings
    from raftlog.client.watch import Watch, WatchStreams

log = get_logger(__name__)

ItemT = TypeVar("ItemT", bound=ItemResult)
T = TypeVar("T")
ItemsOf = Callable[[controller_pb2.ControllerResponse], Iterable[ItemT]]
"""Function that returns each item's result from the response to a write."""
CLOSE_TIMEOUT_S = 1.0
"""Maximum time to close the session, in seconds. Waiting longer is of no use: the cluster forgets
an idle client by itself.
"""
_PAUSES = TransportLimits(reconnect_backoff_min_ms=20, reconnect_backoff_max_ms=500)
_NO_NUMBERS = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
"""Errors after which writes are sent unnumbered: an old feature level, or no right to open
clients.
"""


def require_same_process(made_by: int) -> None:
    """Raise RaftlogError if called from a process other than the one that made the client."""
    if made_by != os.getpid():
        raise RaftlogError(
            "this client belongs to the parent process, and connections do not survive a fork: "
            "create a client in each process, after the fork"
        )


def require_unpatched() -> None:
    """Raise RaftlogError if gevent or eventlet has patched the modules under event loops and gRPC:
    every call would hang.
    """
    if type(threading.Lock()).__module__ != "_thread" or not hasattr(select, "epoll"):
        raise RaftlogError(
            "gevent or eventlet has patched this process, but a client needs real threads and "
            "select.epoll: monkey.patch_all(thread=False, select=False)"
        )


class EndsWithClient(Protocol):
    """A watch, consumer or lease that is closed together with its client."""

    def end(self, why: str, /) -> None:
        """Close it, for a reason that waiting callers get."""


class Withdraws(Protocol):
    """A place in a queue."""

    async def withdraw(self) -> None:
        """Leave the queue."""


class Core:
    """The shared core of one client.

    Most commands use no producers, consumers or watches, so these are imported when one is created.
    """

    def __init__(self, options: Options, transport: Transport, rng: random.Random) -> None:
        self._loop = asyncio.get_running_loop()
        self.options = options
        self.transport = transport
        self.rng = rng
        self._known = KnownEndpoints(options.servers)
        self._shared: Any = {"rng": rng, "cluster_id": options.cluster_id}
        self.brokers = BrokerClient(transport, self._known, **self._shared)
        self._controllers: ControllerClient | None = None
        self._learning: asyncio.Task[None] | None = None
        if options.bootstrap:
            self._learning = self._loop.create_task(
                self.brokers.keep_learning(options.timeout_s), name="learn brokers"
            )
        else:
            self._controllers = ControllerClient(transport, options.controllers, **self._shared)
        self._session = (self._controllers or self.brokers).session(options.client_id)
        self._numbered = options.exactly_once is not False
        self._producer: Producer | None = None
        self._watch_streams: WatchStreams | None = None
        self.lease_keepers: dict[tuple[float, int], Any] = {}
        """Keepers of the client's leases, by time to live and generation of the log."""
        self._streams: weakref.WeakValueDictionary[int, EndsWithClient] = (
            weakref.WeakValueDictionary()
        )
        self._last_stream = 0
        self._readers: list[LogReader] = []
        self.closed = asyncio.Event()
        self.waiting: dict[Withdraws, None] = {}
        """Places in queues that are not first yet: closing the client leaves these queues."""

    @property
    def producer(self) -> Producer:
        """The single producer for all records of this client."""
        if self._producer is None:
            from raftlog.client.producer import ProducerSettings

            in_ms = timeout_ms(self.options.timeout_s)
            self._producer = self.new_producer(ProducerSettings(delivery_timeout_ms=in_ms))
        return self._producer

    def new_producer(self, settings: ProducerSettings) -> Producer:
        """Return a producer with its own settings. The caller closes it."""
        from raftlog.client.producer import Producer

        return Producer(self.transport, self._known, settings=settings, **self._shared)

    def consumer(self, settings: ConsumerSettings) -> Consumer:
        """Return a new consumer for one reader. The caller closes it."""
        from raftlog.client.consumer import Consumer

        return Consumer(self.transport, self._known, settings=settings, **self._shared)

    def watch(
        self,
        selectors: Sequence[str],
        *,
        since: Token | None,
        initial: bool,
        tip: bool,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> Watch:
        """Return a new watch. The caller closes it. ``waiting`` is called with the reason for a
        wait.
        """
        from raftlog.client.watch import Watch, WatchStreams

        if self._watch_streams is None:
            self._watch_streams = WatchStreams(self.transport)
        return Watch(
            self.transport,
            self._known,
            selectors,
            since=since,
            initial=initial,
            tip=tip,
            start_timeout_s=self.options.timeout_s,
            calls=self._watch_streams,
            waiting=waiting,
            **self._shared,
        )

    def log_reader(self, timeout_s: float) -> LogReader:
        """Return a reader of the committed log, which is closed with the client. Raises ConfigError
        without controllers.
        """
        from raftlog.client.log_reader import LogReader

        if not self.options.controllers:
            raise ConfigError("reading the log needs controllers: pass controllers=host:port,…")
        reader = LogReader(
            self.transport, self.options.controllers, rng=self.rng, timeout_s=timeout_s
        )
        self._readers.append(reader)
        return reader

    async def read(
        self, body: Message, read: str | None = None, timeout_s: float | None = None
    ) -> broker_pb2.BrokerResponse:
        """Send a read to any broker that answers in time. Raises ConfigError without brokers."""
        if self._controllers is not None:
            raise ConfigError("reads need a broker, but only controllers are given")
        mode = mode_to_wire(self.options.read if read is None else read)
        return await self._until_answered(
            lambda left_s: self.brokers.read(body, mode=mode, timeout_s=left_s), timeout_s
        )

    async def offered(self, timeout_s: float | None = None) -> broker_pb2.ApiVersionsResponse:
        """Return a broker's current requests and features."""
        request = broker_request(
            broker_pb2.ApiVersionsRequest(), cluster_id=self.options.cluster_id
        )

        async def ask(left_s: float) -> broker_pb2.ApiVersionsResponse:
            answer = await self.brokers.send(request, left_s, idempotent=True)
            return require_success(answer).api_versions

        return await self._until_answered(ask, timeout_s)

    async def ask_controller(
        self, body: Message, timeout_s: float | None = None
    ) -> controller_pb2.ControllerResponse:
        """Send the active controller a query, or a write that is only validated."""
        return await self._until_answered(
            lambda left_s: self.send(body, timeout_s=left_s), timeout_s
        )

    async def write(
        self, body: Message, how: WaitOptions, items: ItemsOf[ItemT] = lambda _: ()
    ) -> WriteResult[ItemT]:
        """Send one write, and return its result. Raises the error of a single refused item, or
        ItemsRefusedError.
        """
        result, _ = await self.write_and_answer(body, how, items)
        return result

    async def write_and_answer(
        self, body: Message, how: WaitOptions, items: ItemsOf[ItemT] = lambda _: ()
    ) -> tuple[WriteResult[ItemT], controller_pb2.ControllerResponse]:
        """Send one write as ``write`` does, and also return the response."""
        acks, timeout_s = how.get("acks"), how.get("timeout_s")
        validate_only = cast("WriteOptions", how).get("validate_only", False)
        asked = self.options.acks if acks is None else acks
        level = acks_to_wire(asked)
        try:
            if validate_only:
                cast("Any", body).validate_only = True
                response = await self.ask_controller(body, timeout_s)
            else:
                with self.until_closed():
                    response = await self._send(body, asked, self.timeout_s(timeout_s))
        except RefusedItemsError as error:
            refused = ItemsRefusedError(error.errors) if error.errors[1:] else error.errors[0]
            refused.write = write_result(error.response, items(error.response))
            raise refused from None
        result = write_result(response, items(response))
        if result.token is not None and response.write.reached < level:
            raise AcksNotReachedError(str(asked), result)
        return result, response

    async def _send(
        self, body: Message, acks: str, timeout_s: float
    ) -> controller_pb2.ControllerResponse:
        how: Any = {
            "acks": acks_to_wire(acks),
            "timeout_s": timeout_s,
            "principal": self.options.principal,
        }
        if self._numbered:
            try:
                return await self._session.write(body, **how)
            except NoSessionError as error:
                if self.options.exactly_once or error.code not in _NO_NUMBERS:
                    raise ApiError(error.code, error.message, field=error.field) from error
                log.info("no session: sending writes without sequence numbers", reason=str(error))
                self._numbered = False
        return await self.send(body, **how)

    def send(
        self, body: Message, **how: Any
    ) -> Coroutine[Any, Any, controller_pb2.ControllerResponse]:
        """Send one attempt, through a broker if one is given, else directly to the active
        controller.
        """
        if self._controllers is not None:
            return self._controllers.call(body, **how)
        return self.brokers.write(body, **how)

    @contextlib.contextmanager
    def until_closed(self) -> Generator[None]:
        """Convert the error of a closed connection to ClientClosedError if the client is closed."""
        try:
            yield
        except NetworkError as error:
            if self.closed.is_set():
                raise ClientClosedError() from error
            raise

    def timeout_s(self, given: float | None) -> float:
        """Return a call's timeout in seconds, by default the client's. Raises ValueError."""
        return self.options.timeout_s if given is None else positive(given)

    async def _until_answered(
        self, attempt: Callable[[float], Awaitable[T]], timeout_s: float | None
    ) -> T:
        """Retry a request without effects until it is answered or the time is over."""
        deadline = self._loop.time() + self.timeout_s(timeout_s)

        async def ask() -> T:
            try:
                return await attempt(max(0.001, deadline - self._loop.time()))
            except UnknownOutcomeError as error:
                # A query changes nothing, so its outcome is never unknown.
                raise ApiError(error.code, error.message, field=error.field) from error

        with self.until_closed():
            return await retrying(deadline, Backoff(_PAUSES, self.rng), self.closed)(ask)

    def end_with_client(self, one: EndsWithClient) -> None:
        """Register a watch, consumer or lease to be closed together with the client."""
        self._last_stream += 1
        self._streams[self._last_stream] = one

    def forget(self) -> None:
        """Forget all positions and numbered writes, as the log may be a different one."""
        self.brokers.forget()
        self._session.forget()

    async def close(self) -> None:
        """Leave all queues, then close all connections, and the client's session in the cluster if
        it can be reached.
        """
        if leaving := [asyncio.ensure_future(one.withdraw()) for one in self.waiting]:
            _, late = await asyncio.wait(leaving, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
        self.closed.set()
        if self._learning is not None:
            self._learning.cancel()
        # In the order of creation; a set's order differs between processes.
        for one in list(self._streams.values()):
            one.end("the client was closed")
        try:
            await self._session.close(CLOSE_TIMEOUT_S)
        except ApiError as error:
            log.debug("could not close the session in the cluster", reason=str(error))
        finally:
            if self._producer is not None:
                self._producer.close()
            for reader in self._readers:
                reader.close()
            self.brokers.close()
            if self._controllers is not None:
                self._controllers.close()
            await self.transport.close()


class Namespace:
    """A group of calls of one client, whose arguments are checked."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, call in [*vars(cls).items()]:
            if iscoroutinefunction(call) and not name.startswith("_"):
                setattr(cls, name, checked(call))

    def __init__(self, opened: Callable[[], Core]) -> None:
        self._opened = opened

    @property
    def _core(self) -> Core:
        return self._opened()
