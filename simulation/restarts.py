"""Restarts of processes that have ended by themselves, as a supervisor and an operator do them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.errors import CorruptLogError, FatalError
from simulation import faults_data, faults_operators
from simulation.checks.api import CheckFailedError
from simulation.hosts import BrokerHost, ControllerHost

if TYPE_CHECKING:
    from broker.registration.lifecycle import Exit
    from simulation.world import World

RESTART_S = 1.0
"""A process that ended by itself is started again after this long."""


class Restarts:
    """Supervisor that receives each process that ends by itself, and judges whether it had a
    reason.

    In the liveness phase, hosts outside the healed part stay down.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    # --- controllers -----------------------------------------------------------------------------

    def controller_stopped(self, host: ControllerHost, error: FatalError) -> None:
        """A node has stopped itself. Only an error that its disk was made to raise is a reason."""
        if not host.disk.excuses(error):
            self._world.fail(CheckFailedError(f"{host.name} stopped without a reason: {error}"))
            return
        self._died(host)

    def died_writing(self, host: ControllerHost) -> None:
        """A node was killed in the midst of what it wrote."""
        self._world.happened("kill_mid_write")
        self._died(host)

    def _died(self, host: ControllerHost) -> None:
        """Restart a host that has died, unless it is to stay dead."""
        if self._world.may_mend(host.name):
            self._world.loop.call_later(RESTART_S, self._restart, host, host.incarnation)

    def _restart(self, host: ControllerHost, incarnation: int) -> None:
        world = self._world
        if host.service is None and host.incarnation == incarnation and world.may_mend(host.name):
            world.note(host.name, "started again")
            host.start()

    # --- brokers ---------------------------------------------------------------------------------

    def broker_ended(self, broker: BrokerHost, ended: Exit) -> None:
        """A broker has ended in order; who belongs to the cluster comes back."""
        self._world.note(broker.name, f"ended: {ended.reason}")
        broker.kill(ended.reason)
        if broker in self._world.members:
            self._world.loop.call_later(RESTART_S, self._restart_broker, broker)

    def broker_stopped(self, broker: BrokerHost, error: BaseException) -> None:
        """A broker has stopped itself.

        Only an error that its disk was made to raise is a reason.
        """
        world = self._world
        if broker.disk is None or not broker.disk.excuses(error):
            raise CheckFailedError(f"{broker.name} met a fatal error: {error}")
        world.note(broker.name, f"stopped: {error}")
        broker.kill(str(error))
        if broker not in world.members:
            return
        if isinstance(error, CorruptLogError):
            world.loop.call_later(
                world.rng(f"operator {world.fleet.replaced_disks}").uniform(
                    *faults_data.OPERATOR_S
                ),
                self._replace_disk,
                broker,
            )
        else:
            world.loop.call_later(RESTART_S, self._restart_broker, broker)

    def _replace_disk(self, broker: BrokerHost) -> None:
        """Replace the disk of a broker that does not start with it, as an operator does."""
        if broker.service is None and self._world.may_mend(broker.name):
            faults_data.replace(self._world, broker)
            broker.start()

    def _restart_broker(self, broker: BrokerHost) -> None:
        if broker.service is None and self._world.may_mend(broker.name):
            faults_operators.upgrade_if_behind(self._world, broker)
            broker.start()
