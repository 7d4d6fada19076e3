"""Limits of nodes: the free-space reserve, bounded queues (I20), and bounded turns.

A controller that leads while no disk has its reserve accepts no client's write, a few seconds after
measurements and Fetches show it. A broker whose disk is below its reserve stores no records. Queues
stay within the bounds of the code, and callbacks within a turn; both are sampled.
"""

import asyncio
from functools import partial
from typing import Any

from controller.service.intake import MAX_REQUEST_BYTES, MAX_WAITING
from controller.service.turns import MAX_PARKED, MAX_UNCOMMITTED_CHUNKS
from raftlog.bounds import CONTROLLER_TURN_MAX_MS, TAIL_CACHE_BYTES
from raftlog.quorum.leader import MAX_PARKED as MAX_PARKED_FETCHES
from simulation.checks import api
from simulation.checks.ledger import Ledger
from simulation.twins.loop import host_context

KNOWN_WITHIN_S = 5.0
"""Time in seconds for two measurements and a Fetch, and until a dead voter counts as dead."""
HELD_UP_S = 0.1
WRITES = ("write_config", "create_topic", "delete_topic")


class Space(api.Checker):
    """Checker of the reserve, by all disks and the newest leader's clock."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leader: tuple[str, int] | None = None
        self._since = 0.0
        """Time since which the leader has led without delay while every disk was low."""
        self.refused = 0

    def sample(self) -> None:
        world = self._ledger.world
        reserve = world.config.reserve_bytes
        if not reserve:
            return
        newest, epoch = api.deciding(world)
        leader = (newest.name, epoch) if newest is not None else None
        low = all(host.disk.free_bytes() < reserve for host in world.controllers)
        if newest is None or leader != self._leader or not low or _held_up(newest):
            self._leader, self._since = leader, world.now()

    def client_returned(self, operation: api.Operation) -> None:
        if not self._ledger.world.config.reserve_bytes or operation.kind not in WRITES:
            return
        if self._leader is None or operation.invoked_at < self._since + KNOWN_WITHIN_S:
            return
        self.refused += operation.outcome == "failed"
        if operation.outcome == "ok":
            raise api.CheckFailedError(
                f"{operation.kind} of {operation.client} is written; all disks are below their"
                f" reserve since {self._since:.3f}, and {self._leader[0]} leads since then"
            )


class BrokerSpace(api.Checker):
    """Checker of brokers' reserves: while a broker's disk is below its reserve, and the broker has
    had the time to measure it, the size of its replicas does not grow.
    """

    def __init__(self) -> None:
        self._low: dict[tuple[str, int], tuple[float, int]] = {}
        """By host and incarnation: time since which its disk is low, and size of its replicas."""
        self.judged = 0

    def begin(self, world: api.World) -> None:
        super().begin(world)
        self._loop: Any = asyncio.get_running_loop()

    def looked_at(self) -> dict[str, int]:
        return {"low": self.judged}

    def sample(self) -> None:
        reserve, now = self.world.config.broker_reserve_bytes, self.world.now()
        before, self._low = self._low, {}
        for host in self.world.brokers if reserve else ():
            disk, process = host.disk, (host.name, host.incarnation)
            if disk is None or host.service is None or self._loop.is_held(host.name):
                continue
            if disk.free_bytes() < reserve:
                used = disk.used_bytes()
                since, kept = before.get(process, (now, used))
                self._low[process] = since, used
                if now > since + KNOWN_WITHIN_S:
                    self.judged += 1
                    if used > kept:
                        raise api.CheckFailedError(
                            f"{host.name} stores {used - kept} bytes; its disk is below its"
                            f" reserve since {since:.3f}"
                        )


def _held_up(host: api.ControllerView) -> bool:
    service = api.present(host.service)
    now = host_context(host.name).run(service.node.now)
    return now > service.describe().next_tick_at + HELD_UP_S


MAX_HELD = 10_000


class Queues(api.Checker):
    """Checker of I20."""

    def __init__(self) -> None:
        self.longest: dict[str, int] = {}

    def looked_at(self) -> dict[str, int]:
        return {"queues": sum(map(bool, self.longest.values()))}

    def sample(self) -> None:
        for host in self.world.controllers:
            if host.service is not None and host.core is not None:
                self._controller(host)
        for broker in self.world.brokers:
            if broker.service is not None:
                self._broker(broker)

    def _controller(self, host: api.ControllerView) -> None:
        service, core = api.present(host.service), api.present(host.core)
        waits, backlog = service.describe(), service.replica.backlog()
        at_most = partial(self._at_most, host.name)
        at_most("intake", waits.waiting_requests, MAX_WAITING)
        at_most("intake bytes", waits.waiting_bytes, MAX_WAITING * MAX_REQUEST_BYTES)
        at_most("held effects", backlog.held_effects, MAX_HELD)
        at_most("inbox", backlog.events, MAX_HELD)
        at_most("tail cache", backlog.tail_cache_bytes, TAIL_CACHE_BYTES)
        parked = core.describe(core.stepped_at).parked_fetches
        at_most("parked fetches", parked, MAX_PARKED_FETCHES)
        if (leadership := service.node.leadership) is not None:
            at_most("parked replies", len(leadership.parking), MAX_PARKED + MAX_WAITING)
            # The inherited tail counts as one more.
            chunks = leadership.log.uncommitted_chunks
            at_most("uncommitted chunks", chunks, MAX_UNCOMMITTED_CHUNKS + 1)

    def _broker(self, host: api.BrokerView) -> None:
        service = api.present(host.service)
        settings, view = service.settings, service.view
        parked = service.requests.parked_reads
        self._at_most(host.name, "parked reads", parked, settings.max_parked_reads)
        # One response may exceed the bound before the stream is held back.
        most = settings.image_max_bytes + 10 * settings.follower.fetch_max_bytes
        self._at_most(host.name, "image bytes", view.bytes_kept, most)

    def _at_most(self, who: str, queue: str, length: int, bound: int) -> None:
        if length > self.longest.get(queue, -1):
            self.longest[queue] = length
            if length > bound:
                raise api.CheckFailedError(f"I20: {queue} of {who}: {length}, the bound is {bound}")


ITEMS = 60
"""Number of callbacks' costs, which are random, that a turn may take beyond its bound."""


class Turns(api.Checker):
    """Checker of turns, by the loop's sums of each callback's time."""

    def __init__(self) -> None:
        self.measured = 0
        """Nodes looked at whose callbacks take time."""

    def begin(self, world: api.World) -> None:
        self._loop: Any = asyncio.get_running_loop()
        self._bound_s = CONTROLLER_TURN_MAX_MS / 1000 + ITEMS * world.config.work_us / 1e6

    def sample(self) -> None:
        for name, longest_s in self._loop.longest_s.items():
            self.measured += 1
            if longest_s > self._bound_s:
                raise api.CheckFailedError(f"{name} holds up its loop for {longest_s:.3f} s")
