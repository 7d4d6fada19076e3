"""The transport of one simulated process, over :class:`simulation.twins.network.SimNetwork`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raftlog.errors import ConfigError
from raftlog.identity import CERTIFICATES_ALONE, Access
from raftlog.transport.api import Acceptor, Conversation, DialHandler, LinkClosedError, Probe
from raftlog.transport.links import BaseDialer, log
from raftlog.transport.probe import split_address
from simulation.twins.loop import host_context
from simulation.twins.network_links import Connection, SimLink, Site

if TYPE_CHECKING:
    from simulation.twins.network import SimNetwork


class SimDialer(BaseDialer):
    """Connects over the simulated network; everything else is the real dialer's."""

    def __init__(
        self,
        network: SimNetwork,
        site: Site,
        address: str,
        conversation: Conversation,
        handler: DialHandler,
    ) -> None:
        rng = network.rng_for(f"backoff {site.host}>{address} {conversation.name}")
        super().__init__(network.loop, address, handler, network.params.limits, rng=rng)
        self.site = site
        self.conversation = conversation
        self.address = address
        self._network = network
        self._connecting: Connection | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._loop.call_soon(self._start_attempt, context=site.context)

    def connected(self, connection: Connection) -> None:
        if connection is self._connecting and self._timeout is not None:
            self._end_attempt()
            self._opened(connection.client)

    def refused(self, connection: Connection | None, reason: str) -> None:
        if self._timeout is not None and connection is self._connecting:
            self._end_attempt()
            self._failed(reason)

    def begun(self, connection: Connection) -> None:
        self._connecting = connection
        connection.client.attach(
            lambda _link, _messages: None, lambda _, reason: self.refused(connection, reason)
        )

    @property
    def connecting(self) -> bool:
        return self._timeout is not None

    def die(self) -> None:
        self._link = None
        self.close()

    def _attempt(self) -> None:
        if self._closed:
            return
        timeout_ms = self._network.params.limits.connect_timeout_ms
        self._timeout = self._loop.call_later(
            timeout_ms / 1000, self._give_up, f"no response within {timeout_ms} ms"
        )
        self._network.connect(self)

    def _abort(self) -> None:
        connecting = self._connecting
        self._end_attempt()
        if connecting is not None:
            connecting.client.close("the dialer gave up")

    def _give_up(self, reason: str) -> None:
        self._abort()
        self._failed(reason)

    def _end_attempt(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self._timeout = None
        self._connecting = None


class SimListener:
    """A bound address of a simulated process."""

    def __init__(
        self, network: SimNetwork, site: Site, acceptors: dict[Conversation, Acceptor], name: str
    ) -> None:
        self.site = site
        self.name = name
        self.acceptors = acceptors
        self._network = network
        self._links: dict[SimLink, None] = {}

    @property
    def address(self) -> str:
        return self.site.address

    def accept(self, connection: Connection, conversation: Conversation, dialer: SimDialer) -> None:
        """Accept a stream, in the context of this process."""
        link = connection.server
        if link.close_reason is not None:
            return
        link.flow.push_call(lambda: dialer.connected(connection))
        link.identity = self._network.identity_of(dialer.site.host)
        link.listener = self.name
        try:
            handler = self.acceptors[conversation](link)
        except Exception as error:
            log.error("an acceptor failed", conversation=conversation.name, exc_info=error)
            self._network.handler_failures.append(error)
            link.close("the acceptor failed")
            return
        self._links = {other: None for other in self._links if other.close_reason is None}
        self._links[link] = None
        link.attach(handler.received, handler.closed)

    async def close(self, grace_s: float = 0.0) -> None:
        self._network.unbind(self)
        for link in list(self._links):
            link.close("the server stops")
        await asyncio.sleep(0)


class SimTransport:
    """Transport of one host's process; dies with ``SimNetwork.crash``."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host
        self._context = host_context(host)
        self._dialers: list[SimDialer] = []
        self._listeners: list[SimListener] = []
        self._dead = False

    @property
    def host(self) -> str:
        return self._host

    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> SimDialer:
        self._check_alive()
        split_address(address)
        site = Site(self._host, self._context, self._network.client_address(self._host))
        dialer = SimDialer(self._network, site, address, conversation, handler)
        self._dialers.append(dialer)
        return dialer

    async def listen(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        *,
        name: str = "",
        extra_handlers: Sequence[Any] = (),
        access: Access = CERTIFICATES_ALONE,
    ) -> SimListener:
        self._check_alive()
        host, port = split_address(address)
        if host != self._host:
            raise ConfigError(f"cannot listen on {address}: this host is {self._host}")
        site = Site(host, self._context, self._network.free_address(host) if port == 0 else address)
        listener = SimListener(self._network, site, acceptors, name)
        self._network.bind(listener)
        self._listeners.append(listener)
        return listener

    async def probe(self, address: str, timeout_s: float) -> Probe:
        return await self._network.probe(self._host, address, timeout_s)

    async def close(self) -> None:
        dialers, self._dialers = self._dialers, []
        listeners, self._listeners = self._listeners, []
        for dialer in dialers:
            dialer.close()
        for listener in listeners:
            await listener.close()
        await asyncio.sleep(0)

    def die(self) -> None:
        self._dead = True
        for dialer in self._dialers:
            dialer.die()
        for listener in self._listeners:
            self._network.unbind(listener)

    def _check_alive(self) -> None:
        if self._dead:
            raise LinkClosedError(f"the process on {self._host} has died")
