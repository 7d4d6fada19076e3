"""The simulated hosts of controllers and brokers. A host has a disk and runs one process at a time,
with settings from the config of the run.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from broker.partition.host import PartitionSettings
from broker.registration.broker_id import seek_id
from broker.registration.directory import NO_EPOCH
from broker.registration.lifecycle import Exit
from broker.service.service import BrokerService, Serving
from broker.settings import SUPPORTED_FEATURES, BrokerSettings, LifecycleSettings, WatchSettings
from controller.service.service import ControllerService
from controller.settings import ControllerSettings
from raftlog.errors import FatalError, fatal
from raftlog.metadata import versions
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Process
from raftlog.node.config.settings import Settings
from raftlog.node.security.authorization import authorization_of
from raftlog.node.security.configured import authentication_of, client_rules_of
from raftlog.node.security.guard import Duties, LogReaders, guarded
from raftlog.node.storage.api import NO_NODE_ID, LogStore, NodeIdentity
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from simulation.swarm.config import SwarmConfig
from simulation.swarm.identities import ROOT, security_settings
from simulation.twins.disk import SimDisk
from simulation.twins.disk_hardware import DiskHardware
from simulation.twins.loop import START_OF_TIME_MS, HostDiedError, host_context
from simulation.twins.network import SimNetwork
from simulation.twins.partition_disk import SimPartitionDisk
from simulation.watching import BrokerTap, ControllerTap, Watch

CLUSTER_ID = "simulated"
SUPERVISOR_S = 1.0
FENCES_ITSELF_AFTER_MS = 3000
"""A broker's fencing timeout is longer than its session timeout by this, in ms."""

Note = Callable[[str, str], None]
Failed = Callable[["ControllerHost", FatalError], None]

_IN_STEPS = frozenset(("install_snapshot", "advance_log_start"))
_WRITES = _IN_STEPS | frozenset(
    ("append", "flush", "truncate", "write_vote", "store_snapshot", "freeze_snapshot")
)
_DISK_FAULTS = {"enospc": "disk_full", "eio_": "disk_error", "bit_flip_": "bit_flip"}
_BROKER_FAULTS = {
    "enospc": "broker_disk_full",
    "disk_hang": "broker_disk_hang",
    "bit_flip_partition": "broker_bit_flip",
    "eio_": "broker_disk_error",
}


def _move_counts(
    disk: DiskHardware, prefix: str, groups: dict[str, str], into: Counter[str]
) -> None:
    """Count a disk's faults under their own names with a prefix and under the names in
    ``swarm/faults.py``; then reset the disk's counts.
    """
    for name, count in disk.faults.items():
        group = next((to for start, to in groups.items() if name.startswith(start)), "")
        for each in {prefix + name, group} - {""}:
            into[each] += count
    disk.faults.clear()


class _MortalStore:
    """A log store in whose calls the process may crash: before or after a write, or halfway."""

    def __init__(self, store: LogStore, host: ControllerHost) -> None:
        self._store = store
        self._host = host

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        return self._watched(member, in_steps=name in _IN_STEPS) if name in _WRITES else member

    def _watched(self, call: Callable[..., Any], *, in_steps: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            after = self._host.death_due()
            if after is False:
                self._host.die("killed before a write")
            if in_steps:
                self._host.begin_steps()
            result = call(*arguments, **options)
            if after is True:
                self._host.die("killed after a write")
            if in_steps:
                self._host.end_steps()
            return result

        return called


class _Host:
    """What the hosts of controllers and brokers have in common."""

    name: str

    def __init__(self, network: SimNetwork, rng: random.Random, watch: Watch) -> None:
        self.network, self._rng, self._watch = network, rng, watch
        self.incarnation = 0
        self.wall_offset_ms = 0
        """Error of the host's wall clock, in ms."""
        self._tap = watch.sender(self)  # type: ignore[arg-type]

    def _wall_clock_ms(self) -> int:
        return START_OF_TIME_MS + self.wall_offset_ms + round(self.network.loop.true_time() * 1000)

    def _stopwatch(self) -> float:
        return self.network.loop.stopwatch(self.name)

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        asyncio.get_running_loop().create_task(work, name=f"{self.name} {what}")


class ControllerHost(_Host):
    """The host of a controller, which runs the shipped code on a simulated disk and network."""

    def __init__(
        self, network: SimNetwork, quorum: QuorumConfig, settings: ControllerSettings,
        rng: random.Random, note: Note, watch: Watch, *, failed: Failed | None = None,
        disk_latency_s: tuple[float, float] = (0.0001, 0.002),
    ) -> None:  # fmt: skip
        self.id, self.name = quorum.node_id, f"c{quorum.node_id}"
        self.quorum, self.settings, self._note = quorum, settings, note
        self._rng, self._disk_latency_s = rng, disk_latency_s
        self.disk = self._new_disk()
        super().__init__(network, rng, watch)
        self.service: ControllerService | None = None
        self.on_stopped = failed
        self._writes_to_live = -1
        self._steps_to_live = 0
        self.on_death: Callable[[ControllerHost], None] = lambda _: None
        self.held_down = False
        """True if ``start`` is to do nothing."""
        self.ports = [9093]
        """Ports at which the next process listens; it advertises the last one."""

    @property
    def endpoint(self) -> str:
        return f"{self.name}:{self.ports[-1]}"

    @property
    def highest_level(self) -> int:
        return self.quorum.max_metadata_version

    def be_of_build(self, highest_level: int) -> None:
        """Let later processes be of a build that supports metadata.version up to this level."""
        self.quorum = replace(self.quorum, max_metadata_version=highest_level)

    @property
    def core(self) -> QuorumCore | None:
        """The quorum's state machine; None while the process is down or recovers its log."""
        return getattr(self.service.replica, "core", None) if self.service is not None else None

    def _new_disk(self) -> SimDisk:
        identity = NodeIdentity(CLUSTER_ID, self.id, self.quorum.directory_id)
        return SimDisk(identity, self._new_rng(), latency_s=self._disk_latency_s)

    def collect_faults(self, into: Counter[str]) -> None:
        """Move the counts of the disk's faults into the counts of the run."""
        _move_counts(self.disk, "", _DISK_FAULTS, into)

    def replace_disk(self, directory_id: str, bootstrap_servers: tuple[str, ...]) -> None:
        self.quorum = replace(
            self.quorum, directory_id=directory_id, voters=(), bootstrap_servers=bootstrap_servers
        )
        self.disk = self._new_disk()

    def start(self) -> None:
        if self.held_down:
            return
        self.incarnation += 1
        self._writes_to_live = -1
        self.network.tap(self.name, self._tap)
        self.network.tap_arrivals(self.name, self._watch.receiver(self))
        # In the host's context, so that all of the process uses the host's own clock.
        host_context(self.name).run(self._start)

    def _start(self) -> None:
        transport = self.network.transport_for(self.name)
        store: Any = _MortalStore(self.disk.open(), self)
        ports = tuple(self.ports)
        service = self.service = ControllerService(
            self.settings,
            replace(self.quorum, endpoint=self.endpoint),
            store,
            transport,
            rng=self._new_rng(),
            wall_clock_ms=self._wall_clock_ms,
            on_failure=self._failed,
            stopwatch=self._stopwatch,
            tracer=ControllerTap(self, self._watch) if self._watch.checkers else None,
        )

        async def up() -> None:
            # Like the shipped program: it listens only after the log is recovered.
            try:
                service.recover()
            except Exception as error:
                self._failed(fatal(error))
                return
            service.replica.core.validate_each_step = True
            self._watch.tell("controller_started", self)
            authorization = authorization_of(self.settings)
            duties = Duties(
                None if authorization is None else LogReaders(authorization, service.known_image)
            )
            authentication = authentication_of(self.settings)
            for port in ports:
                acceptors = guarded(service.acceptors(), authentication, duties)
                await transport.listen(f"{self.name}:{port}", acceptors)
            service.start()

        self._spawn(up(), "up")

    def _failed(self, error: FatalError) -> None:
        self._note(self.name, f"stopped: {error}")
        self.kill(f"stopped: {error}")
        if self.on_stopped is not None:
            self.on_stopped(self, error)

    def kill(self, reason: str = "killed") -> None:
        """Crash the process and its disk: unflushed writes are lost from a random one on."""
        self.disk.between_steps, self._steps_to_live = lambda: None, 0
        service, self.service = self.service, None
        if service is not None:
            service.close()
            self.network.crash(self.name)
            self.disk.crash(self._rng)
            self._watch.tell("controller_stopped", self, reason)

    def doom(self, writes: int) -> None:
        """Schedule a crash in a disk write, after ``writes`` more. A negative number cancels it."""
        self._writes_to_live = writes
        if writes < 0:
            self._steps_to_live = 0

    def death_due(self) -> bool | None:
        """Count a write. Return True to crash after it, False to crash before it, else None."""
        if self._writes_to_live < 0:
            return None
        self._writes_to_live -= 1
        return None if self._writes_to_live >= 0 else self._rng.random() < 0.5

    def doom_between_steps(self, steps: int) -> None:
        """Schedule a crash in the next disk call of several steps, after this many of them."""
        self._steps_to_live = steps

    def begin_steps(self) -> None:
        if self._steps_to_live:
            self.disk.between_steps = self._between_steps

    def end_steps(self) -> None:
        """End a call of several steps: a crash that was scheduled within it happens now."""
        if self._steps_to_live:
            self._die_between_steps()

    def _between_steps(self) -> None:
        self._steps_to_live -= 1
        if not self._steps_to_live:
            self._die_between_steps()

    def _die_between_steps(self) -> None:
        self.disk.happened("kill_between_steps")
        self.die("killed between the steps of a write")

    def die(self, reason: str) -> None:
        """Crash the process from within its own code. Raises HostDiedError to unwind that code."""
        self._note(self.name, reason)
        self.kill(reason)
        self.on_death(self)
        raise HostDiedError(self.name)


def broker_settings(
    broker_id: int, controllers: tuple[str, ...], *, name: str = "", session_timeout_ms: int = 9000
) -> BrokerSettings:
    """Return a broker's settings. ``controllers``: their endpoints. ``name``: the broker's host, by
    default named by its id.
    """
    host = name or f"b{broker_id}"
    return BrokerSettings(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        controllers=controllers,
        listen=f"{host}:9092",
        advertised_host=host,
        features=(
            (versions.METADATA_VERSION, 1, versions.LATEST_METADATA_VERSION),
            ("lao.version", 0, 1),
        ),
        lifecycle=LifecycleSettings(
            heartbeat_interval_ms=min(2000, session_timeout_ms // 3),
            session_timeout_ms=session_timeout_ms,
            fencing_timeout_ms=session_timeout_ms + FENCES_ITSELF_AFTER_MS,
        ),
    )


class BrokerHost(_Host):
    """The host of a broker, which runs the shipped code on a simulated network. ``disk``: of its
    partition replicas; None in runs without partitions.

    The lock file stays the same, so a registration proves that the previous process has ended.
    """

    def __init__(
        self, network: SimNetwork, settings: BrokerSettings, rng: random.Random, watch: Watch,
        *, disk: SimPartitionDisk | None = None, security: Settings | None = None,
    ) -> None:  # fmt: skip
        self.id, self.name = settings.broker_id, settings.listen.rpartition(":")[0]
        self._settings, self.disk, self._security = settings, disk, security or Settings()
        super().__init__(network, rng, watch)
        self.service: BrokerService | None = None
        self.broker_id = settings.broker_id
        """The id in the host's directory; NO_NODE_ID if it has none."""
        self._disks = 0
        self._generation = NO_GENERATION
        self._seeking = False
        self._closed_epoch = NO_EPOCH
        """Broker epoch under which the last process shut down cleanly; NO_EPOCH if it did not."""
        self.only_passing = False
        """True if a process without an id ends as soon as it gets one."""

    @property
    def endpoint(self) -> str:
        return self._settings.listen

    @property
    def highest_level(self) -> int:
        return next(
            high for name, _, high in self._settings.features if name == versions.METADATA_VERSION
        )

    def be_of_build(self, highest_level: int) -> None:
        name = versions.METADATA_VERSION
        others = [feature for feature in self._settings.features if feature[0] != name]
        features = ((name, versions.MIN_METADATA_VERSION, highest_level), *others)
        self._settings = replace(self._settings, features=features)

    @property
    def exit(self) -> Exit | None:
        """Reason of the process for exiting; None if it has not exited by itself."""
        return self.service.exit if self.service is not None else None

    @property
    def fatal(self) -> BaseException | None:
        return self.service.fatal if self.service is not None else None

    def start(self) -> None:
        if self._seeking:
            return
        self.incarnation += 1
        self.network.tap(self.name, self._tap)
        host_context(self.name).run(self._start)

    def lose_disk(self) -> None:
        """Let the next process start with an empty directory, which has no broker id."""
        self._disks += 1
        self._generation = NO_GENERATION
        self.broker_id = NO_NODE_ID
        self._closed_epoch = NO_EPOCH

    def replace_disk(self, directory_id: str) -> None:
        assert self.disk is not None
        self.disk.replace(directory_id)
        self._closed_epoch = NO_EPOCH

    def collect_faults(self, into: Counter[str]) -> None:
        if self.disk is not None:
            _move_counts(self.disk, "broker:", _BROKER_FAULTS, into)

    def _start(self) -> None:
        incarnation_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        if self.broker_id == NO_NODE_ID:
            self._seeking = True
            self._spawn(self._seek(incarnation_id), "seeks its id")
        else:
            self._serve(incarnation_id)

    def _process(self) -> Process:
        directory_id = f"dir-{self.name}" + f"-{self._disks}" * (self._disks > 0)
        if self.disk:
            directory_id = self.disk.directory_id
        return Process("boot", directory_id, 1, self.id + 1000 * self._disks)

    async def _seek(self, incarnation_id: str) -> None:
        found = await seek_id(
            replace(self._settings, broker_id=NO_NODE_ID),
            self.network.transport_for(self.name),
            process=self._process(),
            incarnation_id=incarnation_id,
            rng=self._new_rng(),
            stopping=asyncio.Event(),
        )
        self._seeking = False
        if isinstance(found, Exit):
            # As a supervisor would: another process's session may have to end first.
            asyncio.get_running_loop().call_later(SUPERVISOR_S, self.start)
            return
        self.broker_id = self.id = found.broker_id
        if not self.only_passing:
            self._serve(incarnation_id)

    def _serve(self, incarnation_id: str) -> None:
        closed_epoch, self._closed_epoch = self._closed_epoch, NO_EPOCH
        service = self.service = BrokerService(
            replace(self._settings, broker_id=self.broker_id),
            self.network.transport_for(self.name),
            process=self._process(),
            incarnation_id=incarnation_id,
            rng=self._new_rng(),
            store=self.disk.open() if self.disk is not None else None,
            wall_clock_ms=self._wall_clock_ms,
            stopwatch=self._stopwatch,
            tracer=BrokerTap(self, self._watch),
            client_rules=client_rules_of(self._security),
            generation=self._generation,
            bind_generation=self._bind_generation,
            previous_broker_epoch=closed_epoch,
        )
        authentication = authentication_of(self._security)
        self._watch.tell("broker_started", self)

        async def up() -> None:
            # Not ``BrokerService.run``: in a process that crashes its task would wait forever.
            try:
                await service.start(
                    serving=lambda _, acceptors: Serving(guarded(acceptors, authentication))
                )
            except Exception as error:
                service.fail(fatal(error))

        self._spawn(up(), "up")

    def _bind_generation(self, generation: int) -> None:
        self._generation = generation

    def kill(self, reason: str = "killed") -> None:
        if self._seeking:
            self._seeking = False
            self.network.crash(self.name)
        if self.service is not None:
            if self.service.exit is not None and self.service.fatal is None:
                self._closed_epoch = self.service.last_broker_epoch
            self.service = None
            self.network.crash(self.name)
            if self.disk is not None:
                self.disk.crash(self._rng)
            self._watch.tell("broker_stopped", self, reason)


AnyHost = ControllerHost | BrokerHost
_DEFAULT_PART_BYTES = QuorumConfig("", 0, "", ()).fetch_snapshot_max_bytes


def settings_of_controllers(config: SwarmConfig) -> ControllerSettings:
    """Return the controllers' settings: a value of 0 in the config means the default."""
    given: dict[str, Any] = {
        "metadata_log_max_record_bytes_between_snapshots": config.snapshot_bytes,
        "metadata_max_retention_bytes": config.snapshot_bytes and config.retention_bytes,
        "metadata_export_cursor_max_bytes": config.held_bytes,
        "free_space_reserve_bytes": config.reserve_bytes,
        "broker_metadata_lag_max_ms": config.lag_max_ms,
        "broker_id_adopt_after_ms": config.adopt_after_ms,
        # Short enough that leases end while a deposed leader still believes that it leads.
        "lease_ttl_min_ms": 100 if config.keepers or config.lockers else 0,
        "controller_quorum_auto_join_enable": config.auto_join,
        "controller_quorum_voter_replace_after_ms": config.replace_after_ms,
        "max_clients": config.max_clients,
        "leader_imbalance_check_interval_seconds": config.balance_interval_s,
        "unclean_leader_election_interval_ms": config.balance_interval_s * 1000,
        "bootstrap_metadata_version": config.release_version,
    }
    if config.authorizer:
        given |= {"bootstrap_super_users": (ROOT,), **security_settings(config)}
    return ControllerSettings(
        broker_session_timeout_ms=config.session_timeout_ms,
        **{name: value for name, value in given.items() if value},
    )


def quorum_of(config: SwarmConfig, node_id: int, voters: tuple[Voter, ...]) -> QuorumConfig:
    """Return a controller's quorum config. ``voters``: the initial voters."""
    return QuorumConfig(
        CLUSTER_ID,
        node_id,
        f"dir-{node_id}",
        voters,
        election_timeout_ms=config.election_timeout_ms,
        election_jitter_max_ms=config.election_timeout_ms // 5,
        fetch_timeout_ms=config.fetch_timeout_ms,
        fetch_max_wait_ms=config.fetch_timeout_ms * 2 // 5,
        request_timeout_ms=config.fetch_timeout_ms,
        fetch_snapshot_max_bytes=config.snapshot_part_bytes or _DEFAULT_PART_BYTES,
        endpoint=f"c{node_id}:9093",
        max_metadata_version=versions.LATEST_METADATA_VERSION,
        is_spare=config.replace_after_ms > 0,
        leader_priority=int(node_id == config.preferred),
    )


def settings_of_broker(
    config: SwarmConfig, broker_id: int, name: str, controllers: Sequence[str]
) -> BrokerSettings:
    """Return a broker's settings by the run's config. Other arguments as of ``broker_settings``."""
    settings = broker_settings(
        broker_id, tuple(controllers), name=name, session_timeout_ms=config.session_timeout_ms
    )
    if config.all_features:
        settings = replace(settings, features=SUPPORTED_FEATURES)
    if config.snapshot_part_bytes:
        follower = replace(settings.follower, fetch_snapshot_max_bytes=config.snapshot_part_bytes)
        settings = replace(settings, follower=follower)
    if config.watchers:
        # Small enough that both limits are sometimes exceeded.
        watch = WatchSettings(watch_history_max_bytes=40_000, watch_max_unsent_bytes=2_000)
        settings = replace(settings, watch=watch)
    if config.data_per_s:
        partitions = PartitionSettings(
            broker_id,
            CLUSTER_ID,
            replica_lag_time_max_ms=config.replica_lag_ms,
            log_segment_delete_delay_ms=500,
        )
        settings = replace(settings, partitions=partitions)
    replication = replace(
        settings.replication,
        broker_disk_hang_timeout_ms=config.session_timeout_ms,
        free_space_reserve_bytes=config.broker_reserve_bytes,
    )
    if config.data_kept_bytes:
        replication = replace(replication, log_retention_check_interval_ms=300)
    return replace(settings, replication=replication)
