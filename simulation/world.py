"""The state of a simulated run: its hosts, clock, network and checkers, and the operations on them
that faults, clients and operators share.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from controller.service.service import ControllerService
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.quorum.config import Voter
from raftlog.transport.api import TransportLimits
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.broker_ids import BROKER_IDS
from simulation.hosts import (
    AnyHost,
    BrokerHost,
    ControllerHost,
    quorum_of,
    settings_of_broker,
    settings_of_controllers,
)
from simulation.outcome import Outcome, Transcript
from simulation.swarm import identities
from simulation.twins.loop import host_context
from simulation.twins.network import NetworkParams, SimNetwork
from simulation.twins.partition_disk import SimPartitionDisk
from simulation.watching import Watch

SAMPLE_S = 0.05
VOTER_FAULTS = frozenset(("change_voters", "lose_disk", "removed_campaigns", "set_back_directory"))
_TIMEOUT_S = 5.0
_AGAIN_S = 0.3
_DONE = frozenset((ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND))
OBSERVER_IDS = 101
NEWCOMER_IDS = 900
OLD_SHARE = 0.5


class World:
    """The state that the hosts, faults and clients of a run share. Create it on a running
    VirtualLoop. A subclass implements the course of the run in ``_live``.
    """

    def __init__(self, outcome: Outcome, checkers: Sequence[Checker] = ()) -> None:
        """``outcome``: contains the seed and config of the run, and receives the results."""
        self.outcome = outcome
        self.seed, self.config = outcome.seed, (config := outcome.config)
        self.loop = asyncio.get_running_loop()
        limits = TransportLimits(max_queued_messages=config.queue_messages)
        limits = limits.within(config.fetch_timeout_ms)
        params = NetworkParams(config.delay_min_ms, config.delay_mean_ms, limits)
        self.network = SimNetwork(self.rng("network"), params)
        self.failed: asyncio.Future[None] = self.loop.create_future()
        self.watch = Watch(checkers, self.fail)
        self._transcript = Transcript(outcome, self.now)
        self._tasks: list[asyncio.Task[Any]] = []
        self.lasting = False
        """True in the liveness phase: broken hosts stay broken, and healed ones are left alone."""
        self.healed: dict[str, None] = {}
        """Names of the hosts that were healed; empty before the liveness phase."""
        self.mending: dict[str, None] = {}
        """Names of the controllers that repair their logs; meanwhile no other disk may be lost."""
        self.damaged: dict[str, None] = {}
        """Names of the controllers whose copy of the log is lost or damaged."""
        self.operations = 0
        self.burst: Callable[[random.Random], None] = lambda _: None
        """Sends many writes at once; set by the workload."""
        self.fleet = Fleet(self)
        self.controllers = self.fleet.controllers
        self.members, self.brokers = self.fleet.members, self.fleet.brokers
        self.operator = Operator(self)
        self.watch.begin(self)

    def rng(self, purpose: str) -> random.Random:
        """Return a generator for one purpose, so that no change elsewhere changes its numbers."""
        return random.Random(f"{self.seed} {purpose}")

    def now(self) -> float:
        return self.network.loop.true_time()

    def active(self) -> ControllerService | None:
        found = [
            host.service
            for host in self.controllers
            if host.service is not None and host.service.node.decider
        ]
        return max(found, key=lambda service: service.node.controller_epoch, default=None)

    def leader(self) -> ControllerHost | None:
        service = self.active()
        return next(
            (host for host in self.controllers if service and host.service is service), None
        )

    def leading(self) -> ControllerHost:
        return self.leader() or fail("there is no active controller")

    def active_image(self) -> Any:
        return (self.active() or fail("there is no active controller")).image

    def note(self, who: str, what: str) -> None:
        self._transcript.note(who, what)

    def note_change(self, who: str, what: str) -> None:
        self._transcript.note_change(who, what)

    def happened(self, fault: str, times: int = 1) -> None:
        """Count a fault, once it has had an effect."""
        self.outcome.faults[fault] += times

    def count(self, outcome: str, times: int = 1) -> None:
        self.outcome.operations[outcome] += times

    def fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def operation(self, **fields: Any) -> Operation:
        """Begin a client's operation: number it, and report it to the checkers."""
        self.operations += 1
        operation = Operation(number=self.operations, invoked_at=self.now(), **fields)
        self.watch.tell("client_invoked", operation)
        return operation

    def returned(self, operation: Operation) -> None:
        """End a client's operation: count it, and report its outcome to the checkers."""
        operation.returned_at = self.now()
        self.count(f"{operation.kind} {operation.outcome}")
        shown = operation.value[:24] or (operation.found if operation.kind == "read_config" else "")
        self.note(
            operation.client,
            f"{operation.kind} {operation.key}={str(shown)[:24]} {operation.outcome}"
            f" {operation.error} at {operation.offset} reached {operation.reached}",
        )
        self.watch.tell("client_returned", operation)

    def controller_client(self, host: str) -> ControllerClient:
        """Return a client on ``host`` that has the endpoints of all controllers."""
        transport = self.network.transport_for(host)
        return ControllerClient(transport, self.fleet.endpoints, rng=self.rng(f"{host} router"))

    async def carry_out(
        self, operation: Operation, call: Coroutine[Any, Any, pb.ControllerResponse]
    ) -> pb.ControllerResponse | None:
        """Record a controller's response or error in the operation. Return None for an error."""
        try:
            response = await call
        except ApiError as error:
            operation.refused(error)
            return None
        operation.response, operation.outcome = response, "ok"
        if response.HasField("write"):
            operation.wrote(response.write)
        return response

    def answered(self, operation: Operation) -> None:
        """As ``returned``. Raises CheckFailedError if the node reported an internal error."""
        if operation.error == ErrorCode.UNKNOWN_SERVER_ERROR.name:
            fail(f"{operation.client} got {operation.error} to {operation.kind} {operation.key}")
        self.returned(operation)

    def may_mend(self, *names: str) -> bool:
        """Return whether these hosts may recover: in the liveness phase only healed ones may."""
        return not self.lasting or all(name in self.healed for name in names)

    @property
    def voters_change(self) -> bool:
        """True if the run may change the voter set: then only the log says what a majority is."""
        return (
            self.config.auto_join
            or self.config.replace_after_ms > 0
            or self.config.recovery
            or not VOTER_FAULTS.isdisjoint(self.config.faults)
        )

    def may_damage(self) -> bool:
        """Return whether one more voter may lose its copy: a majority must keep intact copies."""
        return not self.mending and len(self.damaged) < (len(self.fleet.voter_ids) - 1) // 2

    def healed_controllers(self) -> list[ControllerHost]:
        """Return the healed controllers with links to the leader, which need not be healed."""
        return [host for host in self.controllers if self._is_healed(host.name)]

    def healed_brokers(self) -> list[BrokerHost]:
        """Return the healed brokers with links to the leader, which need not be healed."""
        return [host for host in self.members if self._is_healed(host.name)]

    def _is_healed(self, name: str) -> bool:
        host = self.leader()
        reached = host is None or not self.network.is_cut(name, host.name)
        return name in self.healed and reached

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, host: str = "") -> asyncio.Task[Any]:
        task = self.loop.create_task(work, name=name, context=host_context(host))
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def has_spawned(self, name: str) -> bool:
        return any(task.get_name() == name for task in self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait until a condition holds. Raises CheckFailedError if it does not hold in time."""
        deadline = self.now() + within_s
        while not condition():
            if self.now() > deadline:
                fail(f"within {within_s:g} s it did not happen: {what}")
            await asyncio.sleep(SAMPLE_S)

    async def live(self) -> None:
        """Run to the end. Raises the error of the first task that fails."""
        work = self.loop.create_task(self._live(), name="life")
        await asyncio.wait({work, self.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            work.cancel()
            self.failed.result()
        work.result()

    async def _live(self) -> None:
        raise NotImplementedError

    def is_up(self) -> bool:
        service = self.active()
        return service is not None and all(
            host.id in service.image.brokers and not service.image.brokers[host.id].fenced
            for host in self.members
        )

    def finish(self) -> None:
        """Complete the outcome: fault counts, elapsed time, checker counts, digest."""
        hosts: list[AnyHost] = [*self.controllers, *self.brokers]
        for host in hosts:
            host.collect_faults(self.outcome.faults)
        self.outcome.virtual_s = self.now()
        self.outcome.steps = self.network.loop.steps
        for checker in (*self.watch.retired, *self.watch.checkers):
            for what, count in checker.looked_at().items():
                self.outcome.looked_at[f"{type(checker).__name__}.{what}"] += count
        self.outcome.digest = self._transcript.digest()


class Actors:
    """The clients of one kind in a world, with their tasks."""

    def __init__(self, world: World, *hosts: str) -> None:
        """``hosts``: names of the clients' hosts; none if the config has no such clients."""
        self._world, self._hosts = world, list(hosts)
        self._tasks: list[asyncio.Task[Any]] = []

    def hosts(self) -> list[str]:
        return self._hosts

    def begin(self) -> None:
        for host in self._hosts:
            self.spawn(self._live(), host)

    async def _live(self) -> None:
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, Any], host: str) -> asyncio.Task[Any]:
        task = self._world.spawn(work, host, host)
        self._tasks.append(task)
        return task

    def stop(self) -> None:
        """Cancel the clients' tasks. Requests already sent may still be executed."""
        for task in self._tasks:
            task.cancel()


class Fleet:
    """All hosts of a world. ``members``: the permanent brokers; ``brokers``: twins and newcomers,
    too.
    """

    def __init__(self, world: World) -> None:
        self._world, self._config = world, (config := world.config)
        self._disk_latency_s = (config.disk_min_ms / 1000, config.disk_max_ms / 1000)
        self._newcomers = 0
        self.replaced_disks = 0
        """Number of calls of ``next_disk``."""
        self._names: dict[str, None] = {}
        voters = tuple(Voter(i, f"c{i}:9093") for i in range(1, self._config.voters + 1))
        self.voter_ids = [voter.node_id for voter in voters]
        self.endpoints = tuple(voter.endpoint for voter in voters)
        self.controllers = self._make_controllers(voters)
        self.members = [
            self.make_broker(BROKER_IDS + i, f"b{i}") for i in range(1, self._config.brokers + 1)
        ]
        self.brokers: list[BrokerHost] = list(self.members)
        self._give_certificates()
        for controller in self.controllers:
            self._let_work_take_time(controller.name)
        self._make_old_builds()
        self._let_clocks_drift()

    def _make_controllers(self, voters: tuple[Voter, ...]) -> list[ControllerHost]:
        world, config = self._world, self._config
        settings = settings_of_controllers(config)
        observers = range(OBSERVER_IDS, OBSERVER_IDS + config.observers)
        return [
            ControllerHost(
                world.network,
                quorum_of(config, node_id, voters),
                settings,
                world.rng(f"c{node_id}"),
                world.note,
                world.watch,
                failed=lambda _, error: world.fail(error),
                disk_latency_s=self._disk_latency_s,
            )
            for node_id in (*self.voter_ids, *observers)
        ]

    def _give_certificates(self) -> None:
        if not self._config.authorizer:
            return
        network = self._world.network
        network.other_identity = identities.certificate_of_client(identities.OPERATOR)
        for name in (*identities.CALLERS, identities.WARDEN, identities.FORGER):
            network.identities[name] = identities.certificate_of_client(
                identities.principal_of(name, self._config)
            )
        network.addresses.update({name: site.address for name, site in identities.CALLERS.items()})
        for controller in self.controllers:
            network.identities[controller.name] = identities.certificate_of_node(controller.id)
        for member in self.members:
            # The simulated partition leader proposes ISRs in the broker's name.
            network.identities[f"leader{member.id}"] = identities.certificate_of_node(member.id)

    def _let_work_take_time(self, host: str) -> None:
        if mean_us := self._config.work_us:
            rng = self._world.rng(f"work of {host}")
            self._world.network.loop.set_cost(host, partial(rng.expovariate, 1e6 / mean_us))

    def _make_old_builds(self) -> None:
        if self._config.old_build:
            rng = self._world.rng("builds")
            for each in self.hosts():
                if rng.random() < OLD_SHARE:
                    each.be_of_build(self._config.old_build)

    def _let_clocks_drift(self) -> None:
        if drift := self._config.drift:
            rng = self._world.rng("drift")
            for each in self.hosts():
                self._world.network.loop.set_clock_rate(each.name, 1 + rng.uniform(-drift, drift))
                self._world.happened("drift")

    def make_broker(self, broker_id: int, name: str = "") -> BrokerHost:
        """Create a broker's host. ``name``: of the host, if it does not follow from the id."""
        world, config = self._world, self._config
        settings = settings_of_broker(config, broker_id, name, self.endpoints)
        rng, disk = world.rng(name or f"b{broker_id}"), None
        if config.data_per_s:
            disk_rng = random.Random(rng.getrandbits(64))
            directory_id = f"{name or f'b{broker_id}'}-disk-0"
            disk = SimPartitionDisk(directory_id, disk_rng, latency_s=self._disk_latency_s)
        security = identities.security_of_brokers(config) if config.authorizer else None
        host = BrokerHost(world.network, settings, rng, world.watch, disk=disk, security=security)
        if config.authorizer:
            world.network.identities[host.name] = identities.certificate_of_node(broker_id)
        self._let_work_take_time(host.name)
        return host

    @property
    def next_newcomer(self) -> str:
        """Name of the host that ``make_newcomer`` will create."""
        return f"n{self._newcomers + 1}"

    def make_newcomer(self) -> BrokerHost:
        """Create a host whose broker has no id, and ends as soon as it gets one."""
        name = self.next_newcomer
        self._newcomers += 1
        host = self.make_broker(NEWCOMER_IDS + self._newcomers, name)
        host.lose_disk()
        host.only_passing = True
        return host

    def new_name(self, name: str) -> str:
        """Return this name or, if a host had it, a variant: random numbers depend on the name."""
        while name in self._names:
            name += "x"
        self._names[name] = None
        return name

    def next_disk(self) -> int:
        """Return a number that no other replaced disk has."""
        self.replaced_disks += 1
        return self.replaced_disks

    def replace_disk(self, host: ControllerHost, directory_id: str) -> None:
        """Give a controller an empty disk with this directory id; faults of the old one count."""
        host.collect_faults(self._world.outcome.faults)
        others = tuple(other.endpoint for other in self.controllers if other is not host)
        host.replace_disk(directory_id, others)

    def replace_broker_disk(self, host: BrokerHost) -> None:
        """Give an empty disk to a broker that is down, and tell the checkers."""
        assert host.disk is not None
        host.collect_faults(self._world.outcome.faults)
        old = host.disk.directory_id
        host.replace_disk(f"{host.name}-disk-{self.next_disk()}")
        self._world.note(host.name, f"its disk {old} is replaced")
        self._world.watch.tell("broker_disk_lost", host, old)

    def hosts(self) -> list[AnyHost]:
        return [*self.controllers, *self.members]

    def voters(self) -> list[ControllerHost]:
        return [host for host in self.controllers if host.id in self.voter_ids]


class Operator:
    """An operator that sends one request after another to the leader."""

    def __init__(self, world: World) -> None:
        self._world = world
        transport = world.network.transport_for("operator")
        endpoints = [host.endpoint for host in world.controllers]
        self._client = ControllerClient(transport, endpoints, rng=world.rng("operator"))
        self.busy = False
        self.unknown = False
        """True if the outcome of a request is unknown: it may still be executed."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be ``busy`` within the context: faults that change the voter set wait for each other."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    async def ask(self, body: Any) -> ApiError | None:
        """Send a request to the leader. Return its error, or None if it succeeded."""
        try:
            await self._client.call(body, timeout_s=_TIMEOUT_S)
        except ApiError as error:
            self._world.note(
                "operator",
                f"{type(body).__name__} {error.code.name} unknown={error.outcome_unknown}",
            )
            self.unknown |= error.outcome_unknown
            return error
        self._world.note("operator", f"{type(body).__name__} done")
        return None

    async def until_done(self, body: Any) -> bool:
        """Repeat a request until it succeeds. Return False if the liveness phase begins first."""
        while not self._world.lasting:
            error = await self.ask(body)
            if error is None or error.code in _DONE:
                return True
            await asyncio.sleep(_AGAIN_S)
        return False
