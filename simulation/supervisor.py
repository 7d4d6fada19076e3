"""The supervisor: samples all hosts, and restarts processes that have ended by themselves."""

import asyncio

from broker.registration.lifecycle import Exit
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata import versions
from simulation.checks.api import CheckFailedError, fail
from simulation.hosts import BrokerHost, ControllerHost
from simulation.world import SAMPLE_S, World

RESTART_S = 1.0
"""A process that ended by itself is started again after this long."""
OPERATOR_S = (0.5, 5.0)
"""Range of the time before a damaged disk is replaced, in seconds."""


class Supervisor:
    """Receives each process that ends by itself, and judges its reason. In the liveness phase hosts
    outside the healed part stay down.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        for host in world.controllers:
            host.on_stopped, host.on_death = self._controller_stopped, self._died_writing

    def _controller_stopped(self, host: ControllerHost, error: FatalError) -> None:
        """Handle a controller that stopped itself: only an injected disk error justifies that."""
        if not host.disk.excuses(error):
            self._world.fail(CheckFailedError(f"{host.name} stopped without a reason: {error}"))
            return
        self._died(host)

    def _died_writing(self, host: ControllerHost) -> None:
        self._world.happened("kill_mid_write")
        self._died(host)

    def _died(self, host: ControllerHost) -> None:
        if self._world.may_mend(host.name):
            self._world.loop.call_later(RESTART_S, self._restart, host, host.incarnation)

    def _restart(self, host: ControllerHost, incarnation: int) -> None:
        world = self._world
        if host.service is None and host.incarnation == incarnation and world.may_mend(host.name):
            world.note(host.name, "started again")
            host.start()

    def _broker_ended(self, broker: BrokerHost, ended: Exit) -> None:
        """Handle a broker that exited: members are restarted."""
        self._world.note(broker.name, f"ended: {ended.reason}")
        broker.kill(ended.reason)
        if broker in self._world.members:
            self._world.loop.call_later(RESTART_S, self._restart_broker, broker)

    def _broker_stopped(self, broker: BrokerHost, error: BaseException) -> None:
        """Handle a broker that stopped itself: only an injected disk error justifies that."""
        world = self._world
        if broker.disk is None or not broker.disk.excuses(error):
            fail(f"{broker.name} met a fatal error: {error}")
        world.note(broker.name, f"stopped: {error}")
        broker.kill(str(error))
        if broker not in world.members:
            return
        if isinstance(error, CorruptLogError):
            rng = world.rng(f"operator {world.fleet.replaced_disks}")
            world.loop.call_later(rng.uniform(*OPERATOR_S), self._replace_disk, broker)
        else:
            world.loop.call_later(RESTART_S, self._restart_broker, broker)

    def _replace_disk(self, broker: BrokerHost) -> None:
        if broker.service is None and self._world.may_mend(broker.name):
            self._world.fleet.replace_broker_disk(broker)
            broker.start()

    def _restart_broker(self, broker: BrokerHost) -> None:
        if broker.service is None and self._world.may_mend(broker.name):
            self._upgrade_if_behind(broker)
            broker.start()

    def _upgrade_if_behind(self, host: BrokerHost) -> None:
        service = self._world.active()
        level = versions.metadata_version(service.image.features) if service is not None else 0
        if level > host.highest_level:
            self._world.note(host.name, "is upgraded: the level was raised")
            host.be_of_build(versions.LATEST_METADATA_VERSION)

    async def keep_sampling(self) -> None:
        """Sample all hosts during the run. Raises CheckFailedError, or what a checker raised."""
        while True:
            if failures := self._world.network.handler_failures:
                fail(f"a handler raised: {failures[0]!r}")
            for controller in self._world.controllers:
                self._sample_controller(controller)
            for broker in self._world.brokers:
                self._sample_broker(broker)
            self._world.watch.tell("sample")
            await asyncio.sleep(SAMPLE_S)

    def _sample_controller(self, host: ControllerHost) -> None:
        service, core = host.service, host.core
        if service is None or core is None:
            self._world.note_change(host.name, "down")
            return
        self._world.note_change(
            host.name,
            f"{core.role} epoch={core.epoch} leader={core.leader_id} end={core.log_end_offset}"
            f" hw={core.high_watermark} image={service.image.offset}"
            f" lao={service.node.lowest_acknowledged_offset}",
        )

    def _sample_broker(self, broker: BrokerHost) -> None:
        if broker.service is None:
            self._world.note_change(broker.name, "down")
            return
        if broker.fatal is not None:
            self._broker_stopped(broker, broker.fatal)
            return
        if (ended := broker.exit) is not None:
            self._broker_ended(broker, ended)
            return
        view = broker.service.view
        registered = view.registration
        fenced = registered.fenced if registered is not None else None
        self._world.note_change(
            broker.name,
            f"epoch={view.controller_epoch} applied={view.applied} known_lao={view.known_lao}"
            f" fenced={fenced}",
        )
