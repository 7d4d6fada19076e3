"""Finds out whether a broker whose connection broke is gone: asks the kernel of its machine, by a
raw connect to its listener.

A connection that ends proves nothing: it may be the network. A refused connect proves something
only where a connect was accepted before: what the broker advertises may be for its clients alone,
and refuse this node at all times. So each registration's listener is tried once when its first
heartbeat is here. One refusal may be a broker that starts; they are counted.

Why: docs/decisions/012-sessions-and-fencing.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from controller.decider import Decider
from raftlog.errors import ConfigError
from raftlog.metadata.entities import Broker
from raftlog.transport.api import Probe, Transport

log = structlog.get_logger(__name__)

PROBE_TIMEOUT_S = 0.5
PROBE_AGAIN_S = 0.1
REFUSALS = 2
"""So many refused connects in a row, PROBE_AGAIN_S apart, count as evidence."""
MAX_PROBES = 32
"""At a time; of brokers beyond them the session decides."""


class BrokerProbes:
    """The probes of one node while it is the active controller.

    ``found``: this registration's process seems to be gone.
    """

    def __init__(
        self,
        transport: Transport,
        decider: Callable[[], Decider | None],
        found: Callable[[int, int], None],
    ) -> None:
        self._transport = transport
        self._active = decider
        self._found = found
        self._links: dict[int, int] = {}
        """id(link) -> the broker whose newest heartbeat came on it."""
        self._newest: dict[int, int] = {}
        """Broker id -> id(link)."""
        self._accepted: dict[int, int] = {}
        """Broker id -> the epoch of the registration whose listener has accepted a connect, or was
        asked to (-1 - epoch).
        """
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def heard(self, link: Any, broker_id: int, broker_epoch: int) -> None:
        """A heartbeat of a registered broker has arrived on a link."""
        if self._newest.get(broker_id) != id(link):
            self._links[id(link)] = broker_id
            self._newest[broker_id] = id(link)
        if (
            self._accepted.get(broker_id) not in (broker_epoch, -1 - broker_epoch)
            and len(self._tasks) < MAX_PROBES
        ):
            self._accepted[broker_id] = -1 - broker_epoch
            self._begin(broker_id, self._try_first(broker_id, broker_epoch))

    def closed(self, link: Any) -> None:
        """A link is gone: if it was the newest of a broker's, look for the broker."""
        broker_id = self._links.pop(id(link), None)
        if broker_id is None or self._newest.get(broker_id) != id(link):
            return
        del self._newest[broker_id]
        broker = self._registered(broker_id)
        if (
            broker is not None
            and self._accepted.get(broker_id) == broker.epoch
            and len(self._tasks) < MAX_PROBES
        ):
            self._begin(broker_id, self._find_out(broker_id, broker.epoch))

    def reset(self) -> None:
        """The leadership is lost, or the node stops.

        Links stay known: their brokers may heartbeat under the next one.
        """
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        self._accepted.clear()

    def _begin(self, broker_id: int, work: Any) -> None:
        old = self._tasks.pop(broker_id, None)
        if old is not None:
            old.cancel()
        task = self._tasks[broker_id] = asyncio.get_running_loop().create_task(
            work, name=f"probe of broker {broker_id}"
        )
        task.add_done_callback(
            lambda _: self._tasks.get(broker_id) is task and self._tasks.pop(broker_id)
        )

    def _registered(self, broker_id: int) -> Broker | None:
        decider = self._active()
        broker = decider.state.log.pending.brokers.get(broker_id) if decider is not None else None
        return broker

    async def _try_first(self, broker_id: int, epoch: int) -> None:
        broker = self._registered(broker_id)
        if (
            broker is not None
            and broker.epoch == epoch
            and await self._probe(broker) is Probe.ACCEPTED
        ):
            self._accepted[broker_id] = epoch

    async def _find_out(self, broker_id: int, epoch: int) -> None:
        refusals = 0
        while broker_id not in self._newest:
            broker = self._registered(broker_id)
            decider = self._active()
            if broker is None or decider is None or broker.epoch != epoch or broker.fenced:
                return
            if not decider.state.sessions.is_alive(broker_id, asyncio.get_running_loop().time()):
                return
            refusals = refusals + 1 if await self._probe(broker) is Probe.REFUSED else 0
            if refusals == REFUSALS and broker_id not in self._newest:
                log.warning(
                    "a broker's process seems to be gone",
                    broker=broker_id,
                    endpoint=broker.endpoint,
                )
                self._found(broker_id, epoch)
                return
            await asyncio.sleep(PROBE_AGAIN_S)

    async def _probe(self, broker: Broker) -> Probe:
        try:
            return await self._transport.probe(broker.endpoint, PROBE_TIMEOUT_S)
        except (
            ConfigError,
            ValueError,
        ):  # an endpoint that is no address: a name that cannot be encoded
            return Probe.SILENT
