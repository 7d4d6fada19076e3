"""Bounded queues (I20): no queue of a node passes the bound that its code names.

Sampled. Would catch: a queue without its bound, reports or effects that pile up behind a vote,
images kept without end, a parked read that never expires.

Turns of event loops: where code takes time, no callback of a node holds up its loop for longer
than a turn may take.

Would catch: a turn that decides whatever waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override

from controller.service.intake import MAX_REQUEST_BYTES, MAX_WAITING
from controller.service.turns import MAX_PARKED, MAX_UNCOMMITTED_CHUNKS
from raftlog.bounds import CONTROLLER_TURN_MAX_MS, TAIL_CACHE_BYTES
from raftlog.quorum.leader import MAX_PARKED as MAX_PARKED_FETCHES
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView, World

MAX_HELD = 10_000
"""Effects that wait for one vote to be written."""


class Queues(Checker):
    """Checker of I20."""

    def __init__(self) -> None:
        self.longest: dict[str, int] = {}
        """Greatest length of each queue."""

    @override
    def looked_at(self) -> dict[str, int]:
        return {"queues": sum(map(bool, self.longest.values()))}

    @override
    def sample(self) -> None:
        for host in self.world.controllers:
            if host.service is not None and host.core is not None:
                self._controller(host)
        for broker in self.world.brokers:
            if broker.service is not None:
                self._broker(broker)

    def _controller(self, host: ControllerView) -> None:
        service, core = host.service, host.core
        assert service is not None
        assert core is not None
        waits, backlog = service.describe(), service.replica.backlog()
        self._at_most(host.name, "intake", waits.waiting_requests, MAX_WAITING)
        self._at_most(
            host.name, "intake bytes", waits.waiting_bytes, MAX_WAITING * MAX_REQUEST_BYTES
        )
        self._at_most(host.name, "held effects", backlog.held_effects, MAX_HELD)
        self._at_most(host.name, "inbox", backlog.events, MAX_HELD)
        self._at_most(host.name, "tail cache", backlog.tail_cache_bytes, TAIL_CACHE_BYTES)
        parked = core.describe(core.stepped_at).parked_fetches
        self._at_most(host.name, "parked fetches", parked, MAX_PARKED_FETCHES)
        leadership = service.node.leadership
        if leadership is not None:
            self._at_most(
                host.name, "parked replies", len(leadership.parking), MAX_PARKED + MAX_WAITING
            )
            # The inherited tail counts as one more.
            self._at_most(
                host.name,
                "uncommitted chunks",
                leadership.log.uncommitted_chunks,
                MAX_UNCOMMITTED_CHUNKS + 1,
            )

    def _broker(self, host: BrokerView) -> None:
        service = host.service
        assert service is not None
        settings, view = service.settings, service.view
        self._at_most(
            host.name, "parked reads", service.requests.parked_reads, settings.max_parked_reads
        )
        # One reply may come over the bound before the stream is held back.
        most = settings.image_max_bytes + 10 * settings.follower.fetch_max_bytes
        self._at_most(host.name, "image bytes", view.bytes_kept, most)

    def _at_most(self, who: str, queue: str, length: int, bound: int) -> None:
        if length > self.longest.get(queue, -1):
            self.longest[queue] = length
            if length > bound:
                raise CheckFailedError(f"I20: {queue} of {who}: {length}, the bound is {bound}")


ITEMS = 60
"""Whose work may come on top: the last one of a turn costs what it costs, and costs are drawn."""


class Turns(Checker):
    """Checker of turns, by the loop's sums of each callback's time."""

    def __init__(self) -> None:
        self.measured = 0
        """Nodes looked at whose callbacks take time."""

    @override
    def begin(self, world: World) -> None:
        self._loop: Any = asyncio.get_running_loop()
        self._bound_s = CONTROLLER_TURN_MAX_MS / 1000 + ITEMS * world.config.work_us / 1e6

    @override
    def sample(self) -> None:
        for name, longest_s in self._loop.longest_s.items():
            self.measured += 1
            if longest_s > self._bound_s:
                raise CheckFailedError(f"{name} holds up its loop for {longest_s:.3f} s")
