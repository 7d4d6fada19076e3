"""The free-space reserve: a controller that leads while no disk has its reserve accepts no client's
write.

It decides by measurements made once a second, and by the followers' last Fetch: so it has a few
seconds.

Would catch: a reserve that is not checked, flags of followers that do not arrive, a leadership
transfer that is retried forever instead.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from simulation.checks.api import Checker, CheckFailedError, ControllerView, Operation
from simulation.checks.ledger import Ledger
from simulation.twins.loop import host_context

KNOWN_WITHIN_S = 5.0
"""Two measurements, a Fetch, and a voter that was alive until just now."""
HELD_UP_S = 0.1
WRITES = ("write_config", "create_topic", "delete_topic")


class Space(Checker):
    """Checker of the reserve, by all disks and the newest leader's clock."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leader: tuple[str, int] | None = None
        self._since = 0.0
        """Time since which the leader has led without delay while every disk was low."""
        self.refused = 0
        """Writes that were refused, and had to be."""

    @override
    def sample(self) -> None:
        world = self._ledger.world
        reserve = world.config.reserve_bytes
        if not reserve:
            return
        active = [
            host
            for host in world.controllers
            if host.service is not None and host.service.node.decider
        ]
        newest: Any = max(active, key=lambda host: host.service.node.controller_epoch, default=None)  # type: ignore[union-attr]
        leader = (newest.name, newest.service.node.controller_epoch) if newest is not None else None
        low = all(host.disk.free_bytes() < reserve for host in world.controllers)
        if leader is None or leader != self._leader or not low or _held_up(newest):
            self._leader, self._since = leader, world.now()

    @override
    def client_returned(self, operation: Operation) -> None:
        if not self._ledger.world.config.reserve_bytes or operation.kind not in WRITES:
            return
        if self._leader is None or operation.invoked_at < self._since + KNOWN_WITHIN_S:
            return
        self.refused += operation.outcome == "failed"
        if operation.outcome == "ok":
            raise CheckFailedError(
                f"{operation.kind} of {operation.client} is written; all disks are below their"
                f" reserve since {self._since:.3f}, and {self._leader[0]} leads since then"
            )


def _held_up(host: ControllerView) -> bool:
    """Return whether its timers are late."""
    assert host.service is not None
    now = host_context(host.name).run(host.service.node.now)
    return now > host.service.describe().next_tick_at + HELD_UP_S
