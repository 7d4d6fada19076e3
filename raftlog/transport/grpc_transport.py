"""The real network as a client has it: links are gRPC streams.

Of a server there is grpc_server_transport.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from raftlog.errors import ConfigError
from raftlog.transport import probe
from raftlog.transport.api import Conversation, Dialer, DialHandler, Probe, TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.transport.grpc_dialer import GrpcDialer
from raftlog.transport.lane_offer import OF_CLIENTS
from raftlog.transport.listener_security import Routes
from raftlog.transport.tls import ClientTls
from raftlog.transport.token_source import TokenSource
from raftlog.transport.wakeups import take_all_wakeups

_GRPC_STATUS_TASK = "_AioCall._handle_status_once_received"


class GrpcTransport:
    """Implements :class:`raftlog.transport.api.Transport`. Made and used on one running event loop.

    ``token`` gives the token that each new connection shows, if the servers take some. ``rng``
    spreads the pauses between connection attempts. ``routes``: of a node, which dials listeners of
    several kinds; without them ``tls`` counts for all. Raises ConfigError for unreadable TLS files,
    and for a token without TLS.
    """

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        tls: ClientTls | None = None,
        token: TokenSource | None = None,
        rng: random.Random | None = None,
        routes: Routes | None = None,
        lanes: bool = True,
    ) -> None:
        """``lanes``: ask for them, where the conversation may have one."""
        check_token_is_safe(tls, token)
        self._limits = limits or TransportLimits()
        self._rng = rng or random.Random()
        self._token = token
        self._routes = routes or Routes({"": tls})
        loop = asyncio.get_running_loop()
        take_all_wakeups(loop)
        self.bounds = Bounds(loop, self._limits)
        self._laned: Collection[Conversation] = OF_CLIENTS if lanes else ()
        """On which it asks for lanes."""
        self._dialers: list[GrpcDialer] = []

    def dial(self, address: str, conversation: Conversation, handler: DialHandler) -> Dialer:
        """Begin to keep a link to ``address``; ``handler`` hears of it later, never before this
        returns.
        """
        self._dialers = [dialer for dialer in self._dialers if not dialer.done]
        address, credentials = self._routes.lead(address)
        dialer = GrpcDialer(
            address,
            conversation,
            handler,
            bounds=self.bounds,
            rng=self._rng,
            credentials=credentials,
            token=self._token,
            lane=credentials is None and conversation in self._laned,
        )
        self._dialers.append(dialer)
        return dialer

    async def probe(self, address: str, timeout_s: float) -> Probe:
        """Try a raw connect."""
        address, _ = self._routes.lead(address)
        return await probe.probe(address, timeout_s)

    async def close(self) -> None:
        """Close everything and wait until it is gone.

        Idempotent. With calls of another transport alive it takes 50 ms.
        """
        self.bounds.complaints.close()
        dialers, self._dialers = self._dialers, []
        for dialer in dialers:
            dialer.close()
        await asyncio.gather(*(dialer.wait_closed() for dialer in dialers), self._close_listeners())
        if dialers:
            await _let_grpc_confirm()

    async def _close_listeners(self) -> None:
        """Of those that have some."""


def check_token_is_safe(tls: ClientTls | None, token: TokenSource | None) -> None:
    """Raises ConfigError for a token that would be sent in plain text."""
    if token is not None and tls is None:
        raise ConfigError("a token is sent over TLS only: who reads it on the way can use it")


async def _let_grpc_confirm() -> None:
    """Wait for gRPC's own tasks that await the end of a cancelled call, which its thread confirms a
    moment later.

    An event loop that is closed before that would be called when it is dead. There is no telling
    whose call a task awaits.
    """
    for _ in range(50):
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        if not any(getattr(coro, "__qualname__", "") == _GRPC_STATUS_TASK for coro in coroutines):
            return
        await asyncio.sleep(0.001)
