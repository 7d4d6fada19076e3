"""A whole cluster's life from a seed and a config: two phases, checks all the way, faults counted,
and a transcript.

*Safety*: all the faults of the config, and every promise checked at each step. *Liveness*: a
majority is healed, what is broken outside of it stays broken for ever (the dead stay dead, cut
links stay cut), and within a bound there must be a leader, everyone in the healed part caught up,
LAO at the end, and writes served.

Everything above time, network and disk is the shipped code. The same seed and config give the same
transcript, byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from broker.partition.settings import PartitionSettings
from controller.service.service import ControllerService
from controller.settings import ControllerSettings
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata import versions
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.storage.api import NO_NODE_ID
from raftlog.transport.api import TransportLimits
from simulation import (
    data_recovery,
    faults_data,
    faults_disks,
    faults_leases,
    faults_links,
    faults_nodes,
    faults_once,
    faults_operators,
    faults_snapshots,
    faults_twins,
    faults_voters,
    last_reads,
    recovered_quorum,
)
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.broker_ids import BROKER_IDS
from simulation.checks.suite import all_checkers
from simulation.hosts import CLUSTER_ID, BrokerHost, ControllerHost, broker_settings
from simulation.swarm.config import SwarmConfig, draw
from simulation.swarm.faults import FAULTS
from simulation.twins.bounds import MAX_REAL_S, MAX_STEPS, RunTooLongError, real_time
from simulation.twins.loop import host_context, run
from simulation.twins.network import NetworkParams, SimNetwork
from simulation.twins.network_faults import LinkFaults
from simulation.twins.partition_disk import SimPartitionDisk
from simulation.watching import Watch
from simulation.workload import Workload

SAMPLE_S = 0.05
TRANSCRIPT_LINES = 400
RESTART_S = 1.0
"""A process that ended by itself is started again after this long."""
OBSERVER_IDS = 101
DEFAULT_PART_BYTES = QuorumConfig("", 0, "", ()).fetch_snapshot_max_bytes
NEWCOMER_IDS = 900
OLD_SHARE = 0.5


@dataclass(slots=True)
class Outcome:
    """What a run was like."""

    seed: int
    config: SwarmConfig
    transcript: deque[str] = field(default_factory=lambda: deque(maxlen=TRANSCRIPT_LINES))
    """The last lines."""
    digest: str = ""
    """SHA-256 of the whole transcript."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault really happened."""
    operations: dict[str, int] = field(default_factory=dict)
    """By kind and outcome."""
    state_hash: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    """Of the loop."""
    looked_at: dict[str, int] = field(default_factory=dict)
    """How much each checker has found to check: ``Checker.what``."""
    failure: BaseException | None = None


class World:
    """The hosts and what is known about them. Make it on a running VirtualLoop."""

    def __init__(
        self, seed: int, config: SwarmConfig, checkers: Sequence[Checker], outcome: Outcome
    ) -> None:
        self.seed, self.config, self.outcome = seed, config, outcome
        self.loop = asyncio.get_running_loop()
        # One generator a purpose: a change in one does not reshuffle the others.
        params = NetworkParams(
            config.delay_min_ms,
            config.delay_mean_ms,
            TransportLimits(max_queued_messages=config.queue_messages).within(
                config.fetch_timeout_ms
            ),
        )
        self.network = SimNetwork(self.rng("network"), params)
        self.failed: asyncio.Future[None] = self.loop.create_future()
        self.watch = Watch(checkers, self._failure)
        self._digest = hashlib.sha256()
        self._seen: dict[str, str] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._newcomers = 0
        self.lasting = False
        """The liveness phase: what is broken stays broken, what is healed is not touched."""
        self._calm = ""
        """No fault begins anew; "controllers": but those of brokers."""
        self.core: dict[str, None] = {}
        """Names of the hosts that are healed in the liveness phase; before it, of none."""
        self.damaged: dict[str, None] = {}
        """Names of hosts whose copy is not sound any more."""
        self._disks = 0
        self._names: dict[str, None] = {}
        self._make_hosts()
        self.workload = Workload(self)
        self.operator = faults_voters.Operator(self)
        self.watch.begin(self)

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for a purpose."""
        return random.Random(f"{self.seed} {purpose}")

    # --- hosts -----------------------------------------------------------------------------------

    def _make_hosts(self) -> None:
        config = self.config
        voters = tuple(Voter(i, f"c{i}:9093") for i in range(1, config.voters + 1))
        self.voter_ids = [voter.node_id for voter in voters]
        self.endpoints = tuple(voter.endpoint for voter in voters)
        settings = ControllerSettings(broker_session_timeout_ms=config.session_timeout_ms)
        if config.snapshot_bytes:
            settings = replace(
                settings,
                metadata_log_max_record_bytes_between_snapshots=config.snapshot_bytes,
                metadata_max_retention_bytes=config.retention_bytes,
            )
        if config.reserve_bytes:
            settings = replace(settings, free_space_reserve_bytes=config.reserve_bytes)
        if config.lag_max_ms:
            settings = replace(settings, broker_metadata_lag_max_ms=config.lag_max_ms)
        if config.adopt_after_ms:
            settings = replace(settings, broker_id_adopt_after_ms=config.adopt_after_ms)
        if config.auto_join:
            settings = replace(settings, controller_quorum_auto_join_enable=True)
        if config.max_clients:
            settings = replace(settings, max_clients=config.max_clients)
        if config.balance_interval_s:
            settings = replace(
                settings,
                leader_imbalance_check_interval_seconds=config.balance_interval_s,
                unclean_leader_election_interval_ms=config.balance_interval_s * 1000,
            )
        if config.release_version:
            settings = replace(settings, bootstrap_metadata_version=config.release_version)
        observers = range(OBSERVER_IDS, OBSERVER_IDS + config.observers)
        self.controllers = [
            ControllerHost(
                self.network,
                QuorumConfig(
                    CLUSTER_ID,
                    node_id,
                    f"dir-{node_id}",
                    voters,
                    election_timeout_ms=config.election_timeout_ms,
                    election_jitter_max_ms=config.election_timeout_ms // 5,
                    fetch_timeout_ms=config.fetch_timeout_ms,
                    fetch_max_wait_ms=config.fetch_timeout_ms * 2 // 5,
                    request_timeout_ms=config.fetch_timeout_ms,
                    fetch_snapshot_max_bytes=config.snapshot_part_bytes or DEFAULT_PART_BYTES,
                    endpoint=f"c{node_id}:9093",
                    max_metadata_version=versions.LATEST_METADATA_VERSION,
                ),
                settings,
                self.rng(f"c{node_id}"),
                self.note,
                self.watch,
                failed=self._controller_stopped,
                disk_latency_s=(config.disk_min_ms / 1000, config.disk_max_ms / 1000),
            )
            for node_id in (*self.voter_ids, *observers)
        ]
        for host in self.controllers:
            host.on_death = self._died_writing
        self.members = [
            self.make_broker(BROKER_IDS + i, f"b{i}") for i in range(1, config.brokers + 1)
        ]
        self.brokers: list[BrokerHost] = list(self.members)
        """The members, and whoever else poses as one."""
        for controller in self.controllers:
            self._let_work_take_time(controller.name)
        if config.old_build:
            rng = self.rng("builds")
            for each in self.hosts():
                if rng.random() < OLD_SHARE:
                    each.be_of_build(config.old_build)
        if config.drift:
            rng = self.rng("drift")
            for each in self.hosts():
                self.network.loop.set_clock_rate(
                    each.name, 1 + rng.uniform(-config.drift, config.drift)
                )
                self.happened("drift")

    def _let_work_take_time(self, host: str) -> None:
        if mean_us := self.config.work_us:
            rng = self.rng(f"work of {host}")
            self.network.loop.set_cost(host, partial(rng.expovariate, 1e6 / mean_us))

    def make_broker(self, broker_id: int, name: str = "") -> BrokerHost:
        """A broker's host; ``name``: another one than its id says."""
        settings = broker_settings(
            broker_id, self.endpoints, name=name, session_timeout_ms=self.config.session_timeout_ms
        )
        if self.config.snapshot_part_bytes:
            follower = replace(
                settings.follower, fetch_snapshot_max_bytes=self.config.snapshot_part_bytes
            )
            settings = replace(settings, follower=follower)
        rng, disk = self.rng(name or f"b{broker_id}"), None
        if self.config.data_per_s:
            partitions = PartitionSettings(
                broker_id, CLUSTER_ID, replica_lag_time_max_ms=self.config.replica_lag_ms
            )
            settings = replace(settings, partitions=partitions)
            disk = SimPartitionDisk(
                f"{name or f'b{broker_id}'}-disk-0",
                random.Random(rng.getrandbits(64)),
                latency_min_s=self.config.disk_min_ms / 1000,
                latency_max_s=self.config.disk_max_ms / 1000,
            )
        host = BrokerHost(self.network, settings, rng, self.watch, disk=disk)
        self._let_work_take_time(host.name)
        return host

    def new_name(self, name: str) -> str:
        """This name, or one made of it if a host had it before: what is drawn for a host is drawn
        by its name.
        """
        while name in self._names:
            name += "x"
        self._names[name] = None
        return name

    def next_disk(self) -> int:
        """The number of one more disk."""
        self._disks += 1
        return self._disks

    @property
    def next_newcomer(self) -> str:
        """The host of the next broker that comes without an id."""
        return f"n{self._newcomers + 1}"

    def make_newcomer(self) -> BrokerHost:
        """A broker without an id, on a host that nobody knows."""
        name = self.next_newcomer
        self._newcomers += 1
        host = self.make_broker(NEWCOMER_IDS + self._newcomers, name)
        host.lose_disk()
        host.only_passing = True
        return host

    def replace_disk(self, host: ControllerHost, directory_id: str) -> None:
        """Give a host an empty disk; what has happened to the old one stays counted."""
        faults_disks.collect(host, self.outcome.faults)
        others = tuple(other.endpoint for other in self.controllers if other is not host)
        host.replace_disk(directory_id, others)

    def hosts(self) -> list[ControllerHost | BrokerHost]:
        """All that belong to the cluster."""
        return [*self.controllers, *self.members]

    def voters(self) -> list[ControllerHost]:
        """Hosts of the present voters."""
        return [host for host in self.controllers if host.id in self.voter_ids]

    def active(self) -> ControllerService | None:
        """The newest active controller that is up."""
        found = [
            host.service
            for host in self.controllers
            if host.service is not None and host.service.decider
        ]
        return max(found, key=lambda service: service.controller_epoch, default=None)

    def _controller_stopped(self, host: ControllerHost, error: FatalError) -> None:
        """A node has stopped itself. Only an error that its disk was made to raise is a reason."""
        if not host.disk.excuses(error):
            self._failure(CheckFailedError(f"{host.name} stopped without a reason: {error}"))
            return
        self._died(host)

    def _died_writing(self, host: ControllerHost) -> None:
        self.happened("kill_mid_write")
        self._died(host)

    def _died(self, host: ControllerHost) -> None:
        """Somebody starts it again, unless it is to stay dead."""
        if self.may_mend(host.name):
            self.loop.call_later(RESTART_S, self._restart, host, host.incarnation)

    def _restart(self, host: ControllerHost, incarnation: int) -> None:
        if host.service is None and host.incarnation == incarnation and self.may_mend(host.name):
            self.note(host.name, "started again")
            host.start()

    # --- what others tell ------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual seconds."""
        return self.network.loop.true_time()

    def note(self, who: str, what: str) -> None:
        """A line of the transcript."""
        line = f"{self.now():.6f} {who} {what}"
        self._digest.update(line.encode() + b"\n")
        self.outcome.transcript.append(line)

    def note_change(self, who: str, what: str) -> None:
        """A line, if it says something new about ``who``."""
        if self._seen.get(who) != what:
            self._seen[who] = what
            self.note(who, what)

    def may_mend(self, *names: str) -> bool:
        """Whether what is broken between or at these hosts may be mended: in the liveness phase
        only inside the healed part.
        """
        return not self.lasting or all(name in self.core for name in names)

    @property
    def voters_change(self) -> bool:
        """Whether this run changes the voter set: then who a majority is only the log knows."""
        return (
            self.config.auto_join
            or self.config.recovery
            or not faults_voters.VOTER_FAULTS.isdisjoint(self.config.faults)
        )

    def may_damage(self) -> bool:
        """Whether one more voter's copy may be lost: the others are a majority still."""
        return len(self.damaged) < (len(self.voter_ids) - 1) // 2

    def happened(self, fault: str, times: int = 1) -> None:
        """A fault has had an effect."""
        self.outcome.faults[fault] = self.outcome.faults.get(fault, 0) + times

    def _failure(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, host: str = "") -> asyncio.Task[Any]:
        """A task of the world, or of a client's host; when it fails, the run does."""
        task = self.loop.create_task(work, name=name, context=host_context(host))
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure(error)

    # --- watching --------------------------------------------------------------------------------

    async def _sampling(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(SAMPLE_S)

    def _sample(self) -> None:
        if self.network.handler_failures:
            raise CheckFailedError(f"a handler raised: {self.network.handler_failures[0]!r}")
        for host in self.controllers:
            service, core = host.service, host.core
            if service is None or core is None:
                self.note_change(host.name, "down")
                continue
            self.note_change(
                host.name,
                f"{core.role} epoch={core.epoch} leader={core.leader_id} end={core.log_end_offset}"
                f" hw={core.high_watermark} image={service.image.offset}"
                f" lao={service.lowest_acknowledged_offset}",
            )
        for broker in self.brokers:
            self._sample_broker(broker)
        self.watch.tell("sample")

    def _sample_broker(self, broker: BrokerHost) -> None:
        if broker.service is None:
            self.note_change(broker.name, "down")
            return
        if broker.fatal is not None:
            self._broker_stopped(broker, broker.fatal)
            return
        if (ended := broker.exit) is not None:
            self.note(broker.name, f"ended: {ended.reason}")
            broker.kill(ended.reason)
            if broker in self.members:
                self.loop.call_later(RESTART_S, self._restart_broker, broker)
            return
        view = broker.service.view
        registered = view.registration
        fenced = registered.fenced if registered is not None else None
        self.note_change(
            broker.name,
            f"epoch={view.controller_epoch} applied={view.applied} known_lao={view.known_lao}"
            f" fenced={fenced}",
        )

    def _broker_stopped(self, broker: BrokerHost, error: BaseException) -> None:
        """A broker has stopped itself.

        Only an error that its disk was made to raise is a reason.
        """
        if broker.disk is None or not broker.disk.excuses(error):
            raise CheckFailedError(f"{broker.name} met a fatal error: {error}")
        self.note(broker.name, f"stopped: {error}")
        broker.kill(str(error))
        if broker not in self.members:
            return
        if isinstance(error, CorruptLogError):
            self.loop.call_later(
                self.rng(f"operator {self._disks}").uniform(*faults_data.OPERATOR_S),
                self._replace_disk,
                broker,
            )
        else:
            self.loop.call_later(RESTART_S, self._restart_broker, broker)

    def _replace_disk(self, broker: BrokerHost) -> None:
        """What an operator does whose broker does not start with the disk that it has."""
        if broker.service is None and self.may_mend(broker.name):
            faults_data.replace(self, broker)
            broker.start()

    def _restart_broker(self, broker: BrokerHost) -> None:
        if broker.service is None and self.may_mend(broker.name):
            faults_operators.upgrade_if_behind(self, broker)
            broker.start()

    # --- life ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """From birth, through the faults, to rest.

        Raises CheckFailedError, or what any part raised.
        """
        work = self.loop.create_task(self._live(), name="life")
        await asyncio.wait({work, self.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            work.cancel()
            self.failed.result()
        work.result()

    async def _live(self) -> None:
        for host in self.hosts():
            host.start()
        self.spawn(self._sampling(), "sampling")
        await self.until(self._is_up, self.config.liveness_s, "the cluster comes up")
        self.workload.begin()
        self._begin_faults()
        await asyncio.sleep(self.config.safety_s)
        for name, fault in faults_once.RUN.items():
            if name in self.config.faults and (self.members or not FAULTS[name].needs_brokers):
                self._calm = "all" if FAULTS[name].needs_brokers else "controllers"
                await fault(self, self.config.faults[name])
        if self.config.recovery:
            # What the lost disks alone have is to be committed first.
            self._calm = "controllers"
        recovery = await recovered_quorum.lose_majority(self) if self.config.recovery else None
        await self._heal()
        if recovery is not None:
            await recovered_quorum.go_on(self, recovery, self.config.liveness_s)
        await self._recover()
        self.watch.tell("end")
        image = self.active_image()
        self.outcome.state_hash = f"{image.state_hash:032x}"
        self.note("end", f"{self.outcome.operations} state {self.outcome.state_hash}")

    def active_image(self) -> Any:
        """The committed image of the active controller.

        Raises CheckFailedError if there is none.
        """
        service = self.active()
        if service is None:
            raise CheckFailedError("there is no active controller")
        return service.image

    async def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for something that must happen. Raises CheckFailedError if it does not."""
        deadline = self.now() + within_s
        while not condition():
            if self.now() > deadline:
                raise CheckFailedError(f"within {within_s:g} s it did not happen: {what}")
            await asyncio.sleep(SAMPLE_S)

    def _is_up(self) -> bool:
        service = self.active()
        return service is not None and all(
            host.id in service.image.brokers and not service.image.brokers[host.id].fenced
            for host in self.members
        )

    def _begin_faults(self) -> None:
        chosen = self.config.faults
        self.network.faults = LinkFaults(
            self.happened,
            break_p=chosen.get("link_broken", 0.0),
            duplicate_p=chosen.get("request_repeated", 0.0),
            stall_p=chosen.get("message_late", 0.0),
            stall_mean_s=self.config.fetch_timeout_ms / 1000 * 2,
            refuse_p=chosen.get("connect_refused", 0.0),
            late_change_p=chosen.get("isr_change_late", 0.0),
            late_change_mean_s=self.config.session_timeout_ms / 1000,
            spares=lambda one, other: self.lasting and one in self.core and other in self.core,
        )
        for name, strength in sorted(chosen.items()):
            fault = FAULTS[name]
            if fault.needs_data and not self.config.data_per_s:
                continue
            if fault.kind == "every" and (self.members or not fault.needs_brokers):
                self.spawn(self._fault(name, strength), f"fault {name}")

    async def _fault(self, name: str, mean_s: float) -> None:
        """One kind of fault, again and again."""
        rng = self.rng(f"fault {name}")
        fault = {
            **faults_nodes.RUN,
            **faults_links.RUN,
            **faults_disks.RUN,
            **faults_voters.RUN,
            **faults_leases.RUN,
            **faults_data.RUN,
            **faults_operators.RUN,
            **faults_snapshots.RUN,
            **faults_twins.RUN,
        }[name]
        while not self.lasting:
            await asyncio.sleep(rng.expovariate(1 / mean_s))
            if not self.lasting and (
                not self._calm or (self._calm == "controllers" and FAULTS[name].needs_brokers)
            ):
                await fault(self, rng)

    # --- the liveness phase ----------------------------------------------------------------------

    async def _heal(self) -> None:
        """Heal a majority of the voters, some brokers and the clients; what is outside stays as it
        is.
        """
        rng = self.rng("heal")
        self.lasting = True
        if self.voters_change:
            # Who is a majority now only the log knows.
            chosen = list(self.controllers)
        else:
            sound = [host for host in self.voters() if host.name not in self.damaged]
            majority = len(self.voter_ids) // 2 + 1
            chosen = sorted(
                rng.sample(sound, rng.randint(majority, len(sound))), key=lambda host: host.id
            )
        sound_brokers = [host for host in self.members if not self._lost_its_id(host)]
        count = rng.randint(1, len(sound_brokers)) if sound_brokers else 0
        brokers = sorted(rng.sample(sound_brokers, count), key=lambda host: host.id)
        for twin in self.brokers[len(self.members) :]:
            twin.kill()
        self.core = dict.fromkeys([host.name for host in chosen] + [host.name for host in brokers])
        self.core.update(dict.fromkeys([*self.workload.hosts(), "operator"]))
        self.note("world", f"heals {' '.join(self.core)}; the rest stays as it is")
        healed: list[ControllerHost | BrokerHost] = [*chosen, *brokers]
        self.network.unblock_all(among=self.core)
        for host in healed:
            self.network.resume(host.name)
            if isinstance(host, ControllerHost):
                host.doom(-1)
                faults_disks.mend_disk(self, host)
                host.disk.forget_failures()
            else:
                faults_data.mend(self, host)
            if host.service is None:
                host.start()
        for host in self.controllers:
            if host.name not in self.core:
                host.doom(-1)
        self.workload.stop()
        self.watch.tell("healed")

    def _lost_its_id(self, host: BrokerHost) -> bool:
        """Whether another member has got its id, as this one was absent for long and the other had
        lost its disk.

        It is refused as long as the other runs: healing is not enough, somebody has to give it an
        empty disk.
        """
        rivals = [
            other.name
            for other in self.members
            if other is not host and other.broker_id == host.broker_id
        ]
        images = [one.service.image for one in self.controllers if one.service is not None]
        if not rivals or host.broker_id == NO_NODE_ID or not images:
            return False
        registration = max(images, key=lambda image: image.offset).brokers.get(host.broker_id)
        return registration is not None and registration.endpoint.rpartition(":")[0] in rivals

    def _core_controllers(self) -> list[ControllerHost]:
        return [
            host
            for host in self.controllers
            if host.name in self.core and self._reaches_leader(host.name)
        ]

    def core_brokers(self) -> list[BrokerHost]:
        """Healed brokers that reach the active controller."""
        return [
            host
            for host in self.members
            if host.name in self.core and self._reaches_leader(host.name)
        ]

    def _reaches_leader(self, name: str) -> bool:
        """A leader may live outside the healed part.

        As long as a majority follows it, who cannot reach it has to wait.
        """
        service = self.active()
        leader = f"c{service.quorum.node_id}" if service is not None else name
        return not (self.network.is_blocked(name, leader) or self.network.is_blocked(leader, name))

    async def _recover(self) -> None:
        """A leader, everyone caught up with it, LAO at the end, writes served: each within the
        bound.
        """
        bound = self.config.liveness_s
        await self.until(lambda: self.active() is not None, bound, "a majority elects a leader")
        if "roll_heartbeats" in self.config.faults and not any(
            t.get_name() == "end of the roll" for t in self._tasks
        ):
            self.spawn(faults_voters.end_roll(self), "end of the roll")
        await self.until(self._core_joined, bound, "the brokers of the healed part are unfenced")
        async with asyncio.timeout(bound * 2):
            written = await self.workload.last_write(bound)
        mark = written.offset
        await self.until(
            lambda: self._core_at(mark), bound, f"everyone is caught up with offset {mark}"
        )
        await last_reads.read_everywhere(self, written, bound)
        if self.config.data_per_s and self.members:
            await data_recovery.recover(self, bound)
        # A transfer that was asked for before the healing may come to its end only now.
        await self.until(
            lambda: self.active() is not None, bound, "a controller is active in the end"
        )

    def _core_joined(self) -> bool:
        service = self.active()
        if service is None:
            return False
        brokers = service.image.brokers
        return all(
            host.id in brokers and not brokers[host.id].fenced for host in self.core_brokers()
        )

    def _core_at(self, offset: int) -> bool:
        service = self.active()
        if service is None or service.image.offset < offset:
            return False
        if self.core_brokers() and service.lowest_acknowledged_offset < offset:
            return False
        everyone: list[ControllerHost | BrokerHost] = [
            *self._core_controllers(),
            *self.core_brokers(),
        ]
        return all(
            host.service is not None and host.service.image.offset >= offset for host in everyone
        )

    def finish(self) -> None:
        """Put down what there is to say."""
        for host in self.controllers:
            faults_disks.collect(host, self.outcome.faults)
        for broker in self.brokers:
            faults_data.collect(broker, self.outcome.faults)
        self.outcome.virtual_s = self.now()
        self.outcome.steps = self.network.loop.steps
        for checker in (*self.watch.retired, *self.watch.checkers):
            for what, count in checker.looked_at().items():
                name = f"{type(checker).__name__}.{what}"
                self.outcome.looked_at[name] = self.outcome.looked_at.get(name, 0) + count
        self.outcome.digest = self._digest.hexdigest()


def run_swarm(
    seed: int,
    config: SwarmConfig | None = None,
    checkers: Sequence[Checker] | None = None,
    *,
    until_s: float = 0.0,
    max_steps: int = MAX_STEPS,
    max_real_s: float = MAX_REAL_S,
) -> Outcome:
    """One run.

    ``checkers``: instead of the standard ones. A failure is in the outcome; nothing is raised.

    ``until_s``: stop there, at this virtual time. ``max_steps``, ``max_real_s``: a run that goes
    past one has failed.
    """
    config = config if config is not None else draw(seed)
    outcome = Outcome(seed, config)
    worlds: list[World] = []

    async def main() -> None:
        world = World(seed, config, all_checkers() if checkers is None else checkers, outcome)
        worlds.append(world)
        try:
            if until_s:
                async with asyncio.timeout(until_s):
                    await world.live()
            else:
                await world.live()
        finally:
            world.finish()

    try:
        with real_time(max_real_s):
            run(main(), max_steps=max_steps)
    except TimeoutError as error:
        outcome.failure = None if until_s else error
    except (Exception, RunTooLongError) as error:
        outcome.failure = error
        if worlds and worlds[0].watch.failure is not None:
            outcome.failure = worlds[0].watch.failure
    return outcome
