"""Work of a node without a request: the tick, ten times a second, with its chores (free space, the
voter set, the preferred leader, …), and probes of brokers whose connection broke.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from controller.decider import Decider
from controller.decisions.quorum.autopilot import CHECK_EVERY_S, Key
from controller.decisions.quorum.preference import LeaderPreference
from controller.disk.snapshot_generator import SnapshotGenerator
from controller.disk.space import FINE
from controller.service.status import log_stall
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import controller_request, require_success
from raftlog.errors import ApiError, ConfigError, FatalError
from raftlog.metadata.entities import Broker
from raftlog.node.observability.journal import Journal
from raftlog.node.storage.api import LogStore
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumDescription
from raftlog.transport.api import Probe, Transport
from raftlog.transport.unary import Caller, UnaryLink
from raftlog.wire.controller.v1 import controller_pb2 as rpc

if TYPE_CHECKING:
    from controller.service.intake import Intake, Reception
    from controller.service.node import ControllerNode
    from controller.service.observers import Observers
    from controller.service.replies import Refusals
    from controller.service.transfer import LeadershipTransfer
    from raftlog.transport.api import Transport

log = structlog.get_logger(__name__)


class Timer(Protocol):
    """A scheduled call of the event loop."""

    def cancel(self) -> None:
        """Cancel the call."""


PROBE_TIMEOUT_S = 0.5
PROBE_AGAIN_S = 0.1
REFUSALS = 2
"""Number of consecutive refused connects, PROBE_AGAIN_S apart, that count as evidence."""
MAX_PROBES = 32
"""Maximum number of probes at a time; other brokers are fenced only when their session expires."""


class BrokerProbes:
    """Probes of brokers by the active controller.

    ``decider``: returns None unless this node is the active controller. ``wake``: run a turn soon.
    """

    def __init__(
        self,
        transport: Transport,
        decider: Callable[[], Decider | None],
        wake: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._active = decider
        self._wake = wake
        self._links: dict[int, int] = {}
        """id(link) -> the broker whose newest heartbeat arrived on the link."""
        self._newest: dict[int, int] = {}
        """Broker id -> id(link)."""
        self._accepted: dict[int, int] = {}
        """Broker id -> the registration's epoch if its listener has accepted a connect, or -1 -
        epoch if a connect was tried and not yet accepted.
        """
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def heard(self, link: Any, broker_id: int, broker_epoch: int) -> None:
        """Process a registered broker's heartbeat on a link."""
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
        """Probe the broker of a closed link, if the link carried its newest heartbeat."""
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
            self._begin(broker_id, self._probe_until_refused(broker_id, broker.epoch))

    def reset(self) -> None:
        """Cancel all probes, as the leadership is lost or the node stops.

        Links are remembered: their brokers may send heartbeats under the next leadership.
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

    async def _probe_until_refused(self, broker_id: int, epoch: int) -> None:
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
                decider.found_gone(broker_id, epoch, asyncio.get_running_loop().time())
                self._wake()
                return
            await asyncio.sleep(PROBE_AGAIN_S)

    async def _probe(self, broker: Broker) -> Probe:
        try:
            return await self._transport.probe(broker.endpoint, PROBE_TIMEOUT_S)
        except (
            ConfigError,
            ValueError,
        ):  # the endpoint is not an address: its name cannot be encoded
            return Probe.SILENT


class FreeSpace:
    """Measures the free space of one node's disk; ``SpaceWatch`` judges it."""

    def __init__(
        self,
        node: ControllerNode,
        store: LogStore,
        transfer: LeadershipTransfer,
        wake: Callable[[], None],
    ) -> None:
        self._node, self._store, self._transfer, self._wake = node, store, transfer, wake

    def tick(self, now: float) -> None:
        """Measure the free space, if due.

        Raises FatalError.
        """
        node, space = self._node, self._node.space
        if not space.due(now):
            return
        free_bytes = self._store.free_bytes()
        if space.measured(free_bytes):
            log.warning(
                "disk below the free-space reserve" if space.low else "disk has space again",
                free_bytes=free_bytes,
            )
            node.replica.space_changed(low=space.low)
        if node.leadership is None:
            space.verdict = FINE
            return
        before = space.verdict.refusal
        verdict = space.judge(node.replica.describe(now), node.quorum.node_id, now)
        if verdict.refusal != before:
            log.error(
                "writes are refused" if verdict.refusal else "writes are accepted again",
                reason=verdict.refusal,
            )
            self._wake()
        if verdict.transfer_to >= 0 and node.leadership.decider is not None:
            self._transfer.begin(verdict.transfer_to, "the disk is below its free-space reserve")


class PreferredLeader:
    """Transfers the leadership to the preferred leader, while this node leads."""

    def __init__(self, node: ControllerNode, transfer: LeadershipTransfer) -> None:
        self._node, self._transfer = node, transfer
        self._preference = LeaderPreference(node.quorum.node_id)
        self._next_check = 0.0

    def tick(self, now: float) -> None:
        """Observe which node leads, and begin a transfer if one is due."""
        node, preference = self._node, self._preference
        preference.observe(node.leader_id, node.controller_epoch, now)
        if node.decider is None or self._transfer.is_busy or now < self._next_check:
            return
        self._next_check = now + CHECK_EVERY_S
        target_id = preference.successor(node.replica.describe(now), now)
        if target_id < 0:
            return

        def ended(error: ApiError | None) -> None:
            preference.transferred(target_id, succeeded=error is None, now=node.now())

        self._transfer.begin(target_id, "it has a higher controller.quorum.leader.priority", ended)


SPARES_TRIED_EVERY_S = 2.0


class SpareProbes:
    """Probes of spares while this node leads: a voter that no other node can reach could not be
    asked for its vote.
    """

    def __init__(self, node: ControllerNode, transport: Transport) -> None:
        self._node, self._transport = node, transport
        self._next_try = 0.0
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Probe the spares, if due and if the last probes have ended."""
        decider = self._node.decider
        if decider is None or now < self._next_try or self._task is not None:
            return
        self._next_try = now + SPARES_TRIED_EVERY_S
        if spares := decider.autopilot.spares(now):
            self._task = asyncio.get_running_loop().create_task(
                self._try_all(decider, spares), name="probes of spares"
            )
            self._task.add_done_callback(self._done)

    def _done(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _try_all(self, decider: Decider, spares: list[tuple[Key, str]]) -> None:
        for key, endpoint in spares:
            try:
                found = await self._transport.probe(endpoint, PROBE_TIMEOUT_S)
            except (ConfigError, ValueError):
                found = Probe.SILENT
            decider.autopilot.probed(key, endpoint, accepted=found is Probe.ACCEPTED)

    def close(self) -> None:
        """Cancel the probes."""
        if self._task is not None:
            self._task.cancel()


ASK_TIMEOUT_S = 5.0

VoterChange = rpc.AddRaftVoterRequest | rpc.RemoveRaftVoterRequest | rpc.UpdateRaftVoterRequest


def requested_change(
    seen: QuorumDescription, quorum: QuorumConfig, *, auto_join: bool
) -> VoterChange | None:
    """Return the change to the voter set that this node should request now according to its own
    log, or None.

    A node with a replaced disk is a new replica; the voter that it replaces is removed first. Only
    a node that has caught up asks to vote.
    """
    if seen.voters_offset < 0 or not quorum.endpoint:
        return None
    me = next((voter for voter in seen.voter_set if voter.node_id == quorum.node_id), None)
    if me is not None and me.directory_id == quorum.directory_id:
        served = seen.role == "leader" or seen.hears_leader
        if me.endpoint == quorum.endpoint or not served:
            # No leader serves a copy of the directory at another address.
            return None
        return rpc.UpdateRaftVoterRequest(
            voter_id=me.node_id, voter_directory_id=me.directory_id, endpoint=quorum.endpoint
        )
    caught_up = 0 <= seen.high_watermark <= seen.log_end_offset
    if not auto_join or not caught_up or seen.role != "observer" or seen.leader_id < 0:
        return None
    if me is not None:
        return rpc.RemoveRaftVoterRequest(voter_id=me.node_id, voter_directory_id=me.directory_id)
    return rpc.AddRaftVoterRequest(
        voter_id=quorum.node_id,
        voter_directory_id=quorum.directory_id,
        endpoint=quorum.endpoint,
        # The commit may need this node's own acknowledgement, so the request must not wait for it.
        ack_when_appended=True,
    )


async def ask_leader(
    wanted: VoterChange,
    transport: Transport,
    addresses: Sequence[str],
    *,
    rng: random.Random,
    cluster_id: str,
    node_id: int,
) -> None:
    """Request a change to the voter set from the active controller, which is one of ``addresses``.

    Raises ApiError.
    """
    client = ControllerClient(transport, addresses, rng=rng, cluster_id=cluster_id)
    try:
        # Without a principal: a leader that requires certificates adds it.
        request = controller_request(wanted, cluster_id=cluster_id)
        request.client.node_id = node_id
        await client.call(request, timeout_s=ASK_TIMEOUT_S)
    finally:
        client.close()


class Joining:
    """The node's requests to join or leave the voter set: one at a time, repeated after twice the
    fetch timeout (as in Kafka).

    ``receive``: receives requests on a link, if this node is the active controller itself.
    """

    def __init__(
        self,
        node: ControllerNode,
        receive: Callable[[Any, list[Any]], None],
        transport: Transport,
        rng: random.Random,
        *,
        auto_join: bool,
    ) -> None:
        self._node = node
        self._receive = receive
        self._transport = transport
        self._rng = rng
        self._auto_join = auto_join
        self._interval_s = 2 * node.quorum.fetch_timeout_ms / 1000
        self._next_check = 0.0
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Send a request, if due and if a change is needed."""
        if now < self._next_check or self._task is not None:
            return
        self._next_check = now + self._interval_s
        node = self._node
        seen = node.replica.describe(now)
        wanted = requested_change(seen, node.quorum, auto_join=self._auto_join)
        if wanted is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._ask(wanted, seen), name="joining"
            )
            self._task.add_done_callback(self._done)

    def _done(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _ask(self, wanted: VoterChange, seen: QuorumDescription) -> None:
        kind = type(wanted).__name__.removesuffix("Request")
        try:
            await (
                self._ask_here(wanted)
                if self._node.decider is not None
                else self._ask_leader(wanted, seen)
            )
        except ApiError as error:
            log.info("the voter set is unchanged for now", request=kind, why=str(error))
        else:
            log.info("the voter set was changed", request=kind, node=wanted.voter_id)

    async def _ask_here(self, wanted: VoterChange) -> None:
        link = UnaryLink(Caller("this node"))
        request = controller_request(wanted, cluster_id=self._node.cluster_id)
        request.client.node_id = self._node.quorum.node_id
        self._receive(link, [request])
        async with asyncio.timeout(ASK_TIMEOUT_S):
            response = await link.response
        require_success(response)

    async def _ask_leader(self, wanted: VoterChange, seen: QuorumDescription) -> None:
        own = self._node.quorum
        voters = (*seen.voter_set, *own.configured_voters)
        known = [voter.endpoint for voter in voters if voter.endpoint != own.endpoint]
        addresses = list(dict.fromkeys((*known, *own.bootstrap_servers)))
        if not addresses:
            return
        await ask_leader(
            wanted,
            self._transport,
            addresses,
            rng=self._rng,
            cluster_id=own.cluster_id,
            node_id=own.node_id,
        )

    def close(self) -> None:
        """Stop ticking, and cancel the request to join."""
        self._next_check = float("inf")
        if self._task is not None:
            self._task.cancel()


TICK_S = 0.1
GAP_S = 0.1
"""Pause of the event loop, in seconds, above which all sessions are extended: during the pause (a
stopped process, garbage collection, swapping) no heartbeat is received.
"""


class Chore(Protocol):
    """Work that each tick may do."""

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises FatalError.
        """


class Housekeeping:
    """The tick of one node.

    ``chores``: done on every node, in this order. ``failed``: called with a fatal error. ``wake``:
    run a turn soon.
    """

    def __init__(
        self,
        node: ControllerNode,
        snapshots: SnapshotGenerator,
        chores: tuple[Chore, ...],
        *,
        reception: Reception,
        intake: Intake,
        refusals: Refusals,
        observers: Observers,
        journal: Journal,
        failed: Callable[[FatalError], None],
        wake: Callable[[], None],
        call_at: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._node, self._snapshots, self._chores = node, snapshots, chores
        self._reception, self._intake = reception, intake
        self._refusals, self._observers, self._journal = refusals, observers, journal
        self._failed, self._wake, self._call_at = failed, wake, call_at
        self._timer: Timer | None = None
        self.next_tick_at = 0.0
        """Time of the next tick by the loop's clock; if it is long past, the event loop is
        blocked.
        """

    def start(self) -> None:
        """Tick until ``close``."""
        self._arm(self._node.now())

    def _arm(self, now: float) -> None:
        self.next_tick_at = now + TICK_S
        self._timer = self._call_at(self.next_tick_at, self._tick)

    def _tick(self) -> None:
        now = self._node.now()
        gap_s = now - self.next_tick_at
        self._arm(now)
        if gap_s > GAP_S:
            # Logged on every node: if this node led before a long pause, the line explains why it
            # no longer leads.
            log.warning("the event loop was paused", gap_ms=round(gap_s * 1000))
        try:
            self._do_chores(now)
        except FatalError as error:
            self._failed(error)
        if not self._node.closed:
            self._reception.forget_gone()
            if self._node.leadership is not None:
                self._lead(now, gap_s)

    def _do_chores(self, now: float) -> None:
        node = self._node
        if not node.loading:
            committed = node.committed
            self._snapshots.tick(
                now,
                committed.applied_bytes,
                committed.state_bytes,
                lambda: committed.image,
                committed.log_hash,
                low_on_space=node.space.low,
            )
        for chore in self._chores:
            if not node.closed:
                chore.tick(now)

    def _lead(self, now: float, gap_s: float) -> None:
        """Do the work of a leader."""
        self._refusals.answer_due()
        self._observers.release(expired_only=True)
        decider = self._node.decider
        if decider is None:
            return
        log_stall(decider, now, self._journal)
        if gap_s > GAP_S:
            decider.extend_for_pause(gap_s, now)
        elif self._intake.wake(now) or decider.due.next_deadline() <= now:
            self._wake()

    def close(self) -> None:
        """Cancel the tick."""
        if self._timer is not None:
            self._timer.cancel()
