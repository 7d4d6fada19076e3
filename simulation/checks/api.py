"""The interface by which checkers observe a simulated cluster.

A checker derives from :class:`Checker` and overrides the hooks it needs; others cost nothing. It
raises :class:`CheckFailedError` (or any AssertionError) as soon as a promise is broken, which ends
the run. A checker changes nothing, draws no random numbers, schedules nothing, and does no full
scan in a hook.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from broker.partition.events import Effect as DataEffect
from broker.partition.events import Event as DataEvent
from broker.service.service import BrokerService
from controller.service.service import ControllerService
from raftlog.client.consumer import Record
from raftlog.client.watch import Change
from raftlog.errors import ApiError
from raftlog.outcome import Token
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.events import Effect, Event
from raftlog.recipes import AsyncLock
from simulation.swarm.config import SwarmConfig
from simulation.twins.disk import SimDisk
from simulation.twins.partition_disk import SimPartitionDisk

T = TypeVar("T")
OperationKind = Literal[
    "write_config",
    "read_config",
    "create_topic",
    "delete_topic",
    "ask_topic",
    "read_topics",
    "alter_partition",
    "admin",
    "access",
    "compare",
    "produce",
    "other",
]
OperationOutcome = Literal["pending", "ok", "failed", "unknown"]


class CheckFailedError(AssertionError):
    """A promise was broken. The message says which, where and when."""


def fail(what: str) -> NoReturn:
    raise CheckFailedError(what)


def present(value: T | None) -> T:
    """Return the value, which must not be None: a part of a running process."""
    assert value is not None
    return value


class ControllerView(Protocol):
    """A controller host. ``service`` and ``core`` are None while the process is down."""

    name: str
    id: int
    disk: SimDisk
    service: ControllerService | None
    wall_offset_ms: int

    @property
    def core(self) -> QuorumCore | None:
        """The running process's state machine, or None before the end of its recovery."""

    @property
    def incarnation(self) -> int:
        """Number that grows with each process on this host, and with each new disk."""


class BrokerView(Protocol):
    """A broker host, as checkers see it. ``service`` is None while the process is down."""

    name: str
    id: int
    service: BrokerService | None
    disk: SimPartitionDisk | None

    @property
    def incarnation(self) -> int:
        """Number that grows with each process on this host."""


class World(Protocol):
    """The cluster, as checkers see it. The lists are live: hosts may be added."""

    @property
    def config(self) -> SwarmConfig:
        """Config of the run."""

    @property
    def controllers(self) -> Sequence[ControllerView]:
        """All controller hosts, voters or not."""

    @property
    def brokers(self) -> Sequence[BrokerView]:
        """All broker hosts."""

    def now(self) -> float:
        """Return the virtual time, in seconds."""

    def note(self, who: str, what: str) -> None:
        """Add a line to the transcript."""


def deciding(world: World) -> tuple[ControllerView | None, int]:
    """Return the active controller with the highest epoch, or None, and the epoch."""
    services = [(host, host.service) for host in world.controllers]
    found = [(host, of.node.controller_epoch) for host, of in services if of and of.node.decider]
    return max(found, key=lambda one: one[1], default=(None, 0))


@dataclass(slots=True, eq=False)
class Operation:
    """A client's operation, pending or returned. ``outcome``: *failed* means that nothing was
    written; *unknown*, that the operation may be executed at any later time, or never.
    """

    number: int
    client: str
    kind: OperationKind
    key: str
    value: str = ""
    acks: int = 0
    timeout_s: float = 0.0
    """Time in seconds for which a write waits for ``acks`` at any controllers; 0 if at only one."""
    mode: int = 0
    at_least: int = -1
    """Offset of the request's token: the image that answers must not be older."""
    client_id: int = -1
    """Client id of an exactly-once write; ``sequence``: its sequence number."""
    sequence: int = -1
    invoked_at: float = 0.0
    returned_at: float = math.inf
    outcome: OperationOutcome = "pending"
    error: str = ""
    broker: str = ""
    offset: int = -1
    """Offset of a write's last record, or of the image that answered a read."""
    record_offset: int = -1
    generation: int = 0
    reached: int = 0
    expected: str | int | None = None
    """``compare``: the value of a config, or the offset of a key, on which it is conditional."""
    found: str | tuple[str, ...] | None = None
    """Result of a read; None if nothing is set. ``read_topics``: the sorted names.
    ``ask_topic``: the name if the topic exists.
    """
    response: Any = None

    def wrote(self, write: Any) -> None:
        self.offset, self.generation = write.token.offset, write.token.generation
        self.reached = write.reached

    def refused(self, error: ApiError) -> None:
        """Record an error as the outcome: definitely failed, or unknown."""
        self.outcome, self.error = "unknown" if error.outcome_unknown else "failed", error.code.name


class Checker:
    """Base of all checkers. Create one for each run."""

    def begin(self, world: World) -> None:
        self.world = world

    def looked_at(self) -> dict[str, int]:
        """Return what this checker has counted; if all counts are 0, it has checked nothing."""
        return {
            name: value
            for name, value in vars(self).items()
            if type(value) is int and not name.startswith("_")
        }

    def controller_started(self, host: ControllerView) -> None:
        """A controller has recovered its log. ``host.core`` exists and has not taken a step yet."""

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        """The process is down (``host.service`` is None) and unsynced data lost, for ``reason``."""

    def clock_set(self, host: ControllerView) -> None:
        """Handle a new setting of the wall clock of a controller's host."""

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        """Check a step of a controller's core before its effects. Do not change ``effects``."""

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        """A node sends a message on a link. ``peer``: name of the peer's host."""

    def message_arrived(self, host: ControllerView, peer: str, message: Any) -> None:
        """A request arrives at a controller; its service has not received it yet. ``peer``: its
        sender.
        """

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        """A controller sends this LAO for the first time in this epoch."""

    def broker_started(self, host: BrokerView) -> None:
        """A broker process has started, and has applied nothing yet."""

    def broker_stopped(self, host: BrokerView, reason: str) -> None:
        """The broker process has ended, for ``reason``."""

    def broker_moved(self, host: BrokerView) -> None:
        """Check a broker after its view applied records, LAO or an epoch, or was emptied."""

    def connects_refused(self, hosts: Sequence[str]) -> None:
        """A firewall resets these hosts' connections to others, and refuses new ones."""

    def broker_asked(self, host: BrokerView, why_fenced: str) -> None:
        """A broker has checked whether it may accept a request: yes if ``why_fenced`` is empty."""

    def data_recovered(self, host: BrokerView) -> None:
        """A broker has recovered its replicas; ``host.disk.live`` is what it found, all durable."""

    def data_step(
        self, host: BrokerView, event: DataEvent, effects: Sequence[DataEffect], now: float
    ) -> None:
        """Check a step of a broker's replicas before its effects. ``now``: by the host's clock."""

    def broker_disk_lost(self, host: BrokerView, directory_id: str) -> None:
        """A broker's disk is lost, or damaged permanently: its records no longer count."""

    def consumed(self, client: str, topic_id: bytes, record: Record) -> None:
        """A consumer has received a record."""

    def consumer_out_of_range(self, client: str) -> None:
        """A consumer that continued to read was told that its position is out of range."""

    def watch_begun(self, host: str, since: Token | None) -> None:
        """A client begins a watch, after a token or with the current state."""

    def watch_told(self, host: str, change: Change) -> None:
        """A client receives a change from its watch."""

    def watch_ended(self, host: str, token: Token) -> None:
        """A client ends its watch, which it will resume after the token."""

    def lease_confirmed(self, host: str, lease_id: int, sent_at: float, ttl_ms: int) -> None:
        """A client's lease was confirmed; the request was sent at the true time ``sent_at``."""

    def lock_taken(self, host: str, lock: AsyncLock) -> None:
        """A client has acquired a lock."""

    def lock_used(self, host: str, lock: AsyncLock) -> None:
        """A client that relies on its lock uses the resource that the lock guards."""

    def group_entered(self, host: str, key: str) -> None:
        """A client has entered a double barrier: its group begins. ``key``: the member's key."""

    def client_invoked(self, operation: Operation) -> None:
        """A client begins an operation."""

    def client_returned(self, operation: Operation) -> None:
        """An operation has an outcome. One that never has any stays *pending*, which is unknown."""

    def sample(self) -> None:
        """Called a few dozen times per virtual second, for expensive checks."""

    def healed(self) -> None:
        """The safety phase is over: no new fault begins from here on."""

    def end(self) -> None:
        """The run is over, the cluster has converged."""
