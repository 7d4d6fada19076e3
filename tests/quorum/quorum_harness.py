"""Quorum cores with a list of messages and simulated disks: deterministic, without a clock or I/O.
Nothing moves by itself: a test delivers, drops or repeats messages, completes disk work and
advances the time. ``settle`` and ``run`` do all that in order. Invariants are checked as events
happen, see ``quorum_oracle``.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quorum_oracle import Oracle

from raftlog.endpoint import VotersAt
from raftlog.errors import ErrorCode
from raftlog.node.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore

CLUSTER = "cluster-a"
TRAVEL_S = 0.0005
TIMING: dict[str, Any] = {"fetch_timeout_ms": 1000, "fetch_max_wait_ms": 400}
SENDS = (ev.Send, ev.SendFetch, ev.SendFetchSnapshot, ev.Reply, ev.ReplyFetch, ev.ReplySnapshot)
Record = tuple[int, int]  # (epoch, value); a negative value is a VotersRecord, see voters_value

PART_BYTES = 24
"""Bytes of a snapshot in one response: several parts to each snapshot."""

DISKS = ("", "a", "b", "c")
"""Suffixes of a node's disks: node 2 begins with dir2, then dir2b, dir2c."""


def voter(name: str) -> Voter:
    """Return the voter of a name: 2 is node 2 with its first disk, 2b with its second."""
    node_id = int(name.rstrip("abc"))
    return Voter(node_id, f"host{node_id}:1", f"dir{name}")


def voters_value(*names: str) -> int:
    """Return the value of a VotersRecord: two bits for each node name its disk."""
    return -1 - sum(
        max(1, DISKS.index(name.lstrip("0123456789"))) << 2 * int(name.rstrip("abc"))
        for name in names
    )


def voters_of(value: int) -> tuple[Voter, ...]:
    code, found = -1 - value, []
    for node_id in range(1, 10):
        disk = code >> 2 * node_id & 3
        if disk:
            found.append(voter(f"{node_id}{DISKS[disk] if disk > 1 else ''}"))
    return tuple(found)


@dataclass(slots=True)
class Message:
    """A message in flight. ``sender_life``: responses reach only the process that sent the request
    (its links die with it).
    """

    source: int
    target: int
    correlation_id: int
    body: Any
    is_request: bool
    asker_life: int
    span: ev.LogSpan | None = None


@dataclass(slots=True)
class Disk:
    """Content that survives a crash: the durable log, and a prefix of the unflushed operations."""

    vote: VoteState = field(default_factory=VoteState)
    log: list[Record] = field(default_factory=list)
    """The whole log, including records that a node has dropped: index = offset."""
    pending: list[tuple[str, Any]] = field(default_factory=list)
    start: int = 0
    snapshots: dict[SnapshotId, list[Record]] = field(default_factory=dict)

    def make_durable(self, operations: int) -> None:
        for kind, what in self.pending[:operations]:
            if kind == "append":
                self.log.extend(what)
            elif kind == "install":
                self.install(what)
            else:
                del self.log[what:]
        del self.pending[:operations]

    def install(self, snapshot_id: SnapshotId) -> None:
        self.log, self.start = list(self.snapshots[snapshot_id]), snapshot_id.end_offset
        self.snapshots = {snapshot_id: self.snapshots[snapshot_id]}

    def recovered_log(self) -> list[Record]:
        """Return the log that a crash now would leave: a snapshot that contradicts the log replaces
        it.
        """
        newest = max(self.snapshots, default=None)
        if newest is None:
            return self.log
        before_end = self.log[newest.end_offset - 1 : newest.end_offset]
        return (
            self.log if before_end and before_end[0][0] == newest.epoch else self.snapshots[newest]
        )

    def recover(self) -> RecoveredLog:
        newest = max(self.snapshots, default=None)
        voters: list[VotersAt] = []
        if newest is not None:
            content = self.snapshots[newest]
            if self.recovered_log() is not self.log:
                self.install(newest)
            assert self.log[: newest.end_offset] == content, (
                "a snapshot beside a log of another past"
            )
            sets = voters_in(content, 0)
            voters = [VotersAt(newest.end_offset, sets[-1].voters if sets else ())]
        behind = newest.end_offset if newest is not None else 0
        return RecoveredLog(
            self.vote,
            self.start,
            len(self.log),
            span_of(self.log[self.start :], self.start).epochs,
            start_epoch=self.log[self.start - 1][0] if self.start else 0,
            snapshots=tuple(sorted(self.snapshots)),
            voters=(*voters, *voters_in(self.log[behind:], behind)),
        )


def voters_in(records: list[Record], base: int) -> tuple[VotersAt, ...]:
    return tuple(
        VotersAt(base + i, voters_of(value)) for i, (_, value) in enumerate(records) if value < 0
    )


def span_of(records: list[Record], base: int) -> ev.LogSpan:
    runs: list[tuple[int, int]] = []
    for i, (epoch, _) in enumerate(records):
        if not runs or runs[-1][0] != epoch:
            runs.append((epoch, base + i))
    return ev.LogSpan(
        base, base + len(records), tuple(runs), encode(records), 0, voters_in(records, base)
    )


def encode(records: list[Record]) -> bytes:
    return b" ".join(b"%d:%d" % record for record in records)


def decode(data: bytes) -> list[Record]:
    pairs = (item.split(b":") for item in data.split())
    return [(int(epoch), int(value)) for epoch, value in pairs]


def records_of(span: ev.LogSpan) -> list[Record]:
    return decode(span.data)


class SimNode:
    """A minimal shell around a core: executes effects in order, and sends after a vote once it is
    durable.
    """

    def __init__(self, cluster: Cluster, config: QuorumConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.id = config.node_id
        self.disk = Disk()
        self.life = 0
        self.core: QuorumCore | None = None
        self.effects: list[ev.Effect] = []
        self.fatal = ""
        self.more_follows = False
        """True if its next proposal is followed by another."""

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def up(self) -> QuorumCore:
        assert self.core is not None
        return self.core

    @property
    def role(self) -> Any:
        return self.up._node.role

    def start(self) -> None:
        self.life += 1
        recovered = self.disk.recover()
        self.log, self.start_offset = list(self.disk.log), self.disk.start
        self.making: dict[SnapshotId, bytearray] = {}
        self.freezing: deque[SnapshotId] = deque()
        self.dialed: dict[int, Voter] = {}
        self.held: deque[Any] = deque()
        self.saving: VoteState | None = None
        self.armed = math.inf
        self.flushes: deque[tuple[int, int]] = deque()
        self.truncations = 0
        self.operations = 0
        self.done_operations = 0
        self.high_watermark = -1
        self.core = QuorumCore(self.config, recovered, self.cluster.rng_of(self), self.cluster.now)
        self.core.validate_each_step = True
        self.step(ev.Tick())

    def crash(self, keep: int = 0) -> None:
        """Lose the memory and everything unflushed except the first ``keep`` operations."""
        self.disk.make_durable(keep)
        self.disk.pending.clear()
        self.core = None

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Return the effects, with those that follow from executing them."""
        if self.core is None:
            return []
        at = len(self.effects)
        effects = self.core.step(event, self.cluster.now)
        self.arm(self.core, fired=isinstance(event, ev.Tick))
        self.note(effects)
        for effect in effects:
            self.carry_out(effect)
        return self.effects[at:]

    def receive(self, request: object, source: int = 2) -> list[ev.Effect]:
        return self.step(ev.RequestReceived(request, (source, 0, 0)))

    def answer(
        self, send: Any, response: object, span: ev.LogSpan | None = None
    ) -> list[ev.Effect]:
        """Receive the response to a request of this node."""
        return self.step(ev.ResponseReceived(send.peer_id, send.correlation_id, response, span))

    def after(self, seconds: float) -> list[ev.Effect]:
        """Advance the clock, and fire the timer."""
        self.cluster.now += seconds
        return self.step(ev.Tick())

    def wait_for_deadline(self) -> list[ev.Effect]:
        return self.after(max(0.0, self.up.next_deadline() - self.cluster.now))

    def last(self, kind: type) -> Any:
        return effects_of(self, kind)[-1]

    def arm(self, core: QuorumCore, *, fired: bool) -> None:
        """Set the timer as the shell does: it fires in time although the deadline is read only
        sometimes.
        """
        if fired:
            self.armed = math.inf
        if core.deadline_nearer:
            self.armed = min(self.armed, core.next_deadline())
        elif not core.halted:
            assert core.next_deadline() >= self.armed, "the timer would come late"

    def note(self, effects: list[ev.Effect]) -> None:
        self.effects.extend(effects)
        self.cluster.history.extend((self.id, effect) for effect in effects)

    def carry_out(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Send | ev.SendFetch | ev.SendFetchSnapshot):
            # Checked now: while a send is held the peers may change.
            assert effect.peer_id in self.dialed, "asks a peer that the shell was not told of"
        if isinstance(effect, ev.ReplyFetch) and effect.max_bytes > 0:
            assert effect.offset >= self.start_offset
        if isinstance(effect, ev.PersistVote | ev.SaveLeader):
            self.saving = effect.vote if isinstance(effect, ev.SaveLeader) else None
        if isinstance(effect, ev.PersistVote) or (self.held and isinstance(effect, SENDS)):
            self.held.append(effect)
        elif isinstance(effect, SENDS):
            self.send(effect)
        elif isinstance(effect, ev.Append):
            records = records_of(effect.span)
            assert effect.span.base_offset == len(self.log), "appends elsewhere than at its end"
            self.log.extend(records)
            self.write(("append", records))
            self.cluster.oracle.appended(self, effect.span.base_offset, records)
        elif isinstance(effect, ev.StoreSnapshot):
            if effect.position == 0:
                self.making[effect.snapshot_id] = bytearray()
            assert len(self.making[effect.snapshot_id]) == effect.position
            self.making[effect.snapshot_id] += effect.data
            if effect.last:
                self.freezing.append(effect.snapshot_id)
        elif isinstance(effect, ev.DropSnapshot):
            del self.making[effect.snapshot_id]
        elif isinstance(effect, ev.PeersChanged):
            self.dialed = {peer.node_id: peer for peer in effect.peers}
        elif isinstance(effect, ev.Truncate):
            assert effect.end_offset >= max(self.start_offset, self.high_watermark)
            del self.log[effect.end_offset :]
            self.write(("truncate", effect.end_offset))
            self.truncations += 1
        elif isinstance(effect, ev.Flush):
            self.flushes.append((self.operations, self.truncations))
        elif isinstance(effect, ev.BecameLeader):
            self.cluster.oracle.became_leader(self, effect.epoch)
            self.propose([self.cluster.new_value()])
        elif isinstance(effect, ev.HighWatermarkAdvanced):
            self.cluster.oracle.high_watermark(self, effect.offset)
        elif isinstance(effect, ev.ReadIndexStarted):
            self.cluster.oracle.read_index_started(self, effect.round)
        elif isinstance(effect, ev.ReadIndexConfirmed):
            self.cluster.oracle.read_index_confirmed(self, effect.round)
        elif isinstance(effect, ev.LostLeadership):
            self.cluster.oracle.lost_leadership(self)
        elif isinstance(effect, ev.Fatal):
            self.fatal = effect.reason
            if not self.cluster.fatal_allowed:
                raise AssertionError(f"node {self.id}: {effect.reason}")

    def write(self, operation: tuple[str, Any]) -> None:
        self.disk.pending.append(operation)
        self.operations += 1

    def propose(self, values: list[int]) -> None:
        core = self.up
        span = span_of([(core.epoch, value) for value in values], len(self.log))
        self.step(ev.Proposed(core.epoch, span, self.more_follows))

    def propose_voters(self, *names: str) -> None:
        self.propose([voters_value(*names)])

    def freeze(self, *, sound: bool = True) -> bool:
        """Make the oldest complete snapshot durable in place of the log; or report it as damaged."""
        if not self.freezing:
            return False
        snapshot_id = self.freezing.popleft()
        records = decode(bytes(self.making.pop(snapshot_id)))
        if not sound:
            self.step(ev.SnapshotStored(snapshot_id, error="a byte has changed"))
            return True
        assert len(records) == snapshot_id.end_offset
        self.cluster.oracle.installs(self, records)
        self.cluster.installed += 1
        self.disk.snapshots[snapshot_id] = records
        self.log, self.start_offset = list(records), snapshot_id.end_offset
        self.write(("install", snapshot_id))
        self.truncations += 1
        sets = voters_in(records, 0)
        self.step(ev.SnapshotStored(snapshot_id, sets[-1].voters if sets else ()))
        return True

    def snapshot(self, end_offset: int = -1) -> SnapshotId:
        """Take a snapshot of the committed records."""
        end_offset = self.high_watermark if end_offset == -1 else end_offset
        snapshot_id = SnapshotId(end_offset, self.log[end_offset - 1][0])
        self.disk.snapshots[snapshot_id] = self.log[:end_offset]
        self.step(ev.SnapshotFrozen(snapshot_id))
        return snapshot_id

    def advance_start(self, snapshot_id: SnapshotId) -> None:
        """Drop the log below a snapshot, and earlier snapshots; durable at once."""
        self.disk.make_durable(len(self.disk.pending))
        self.done_operations = self.operations
        self.start_offset = self.disk.start = snapshot_id.end_offset
        self.disk.snapshots = {
            key: what for key, what in self.disk.snapshots.items() if key >= snapshot_id
        }
        self.step(ev.LogStartAdvanced(snapshot_id))

    def compact(self) -> SnapshotId:
        """Take a snapshot of everything committed, and drop the log before it."""
        snapshot_id = self.snapshot()
        self.advance_start(snapshot_id)
        return snapshot_id

    def persist(self) -> bool:
        """Make the oldest vote durable, or if none waits, the leader's id."""
        if not self.held:
            saved, self.saving = self.saving, None
            if saved is None:
                return False
            self.disk.vote = saved
            self.step(ev.VotePersisted(saved))
            return True
        effect = self.held.popleft()
        self.disk.vote = effect.vote
        core = self.up
        more = core.step(ev.VotePersisted(effect.vote), self.cluster.now)
        self.arm(core, fired=False)
        self.note(more)
        while self.held and not isinstance(self.held[0], ev.PersistVote):
            self.send(self.held.popleft())
        for effect in more:
            self.carry_out(effect)
        return True

    def flush(self) -> bool:
        """Complete the oldest flush. A report from before a truncation is not stepped."""
        if not self.flushes:
            return False
        operations, truncations = self.flushes.popleft()
        self.disk.make_durable(operations - self.done_operations)
        self.done_operations = max(operations, self.done_operations)
        if truncations == self.truncations:
            self.step(ev.Flushed(len(self.disk.log)))
        return True

    def send(self, effect: ev.Effect) -> None:
        network = self.cluster.network
        self.cluster.oracle.leaves(self, effect)
        if isinstance(effect, ev.Send | ev.SendFetch | ev.SendFetchSnapshot):
            network.append(
                Message(
                    self.id, effect.peer_id, effect.correlation_id, effect.request, True, self.life
                )
            )
        elif isinstance(effect, ev.Reply):
            asker, correlation_id, life = effect.reply_to
            network.append(Message(self.id, asker, correlation_id, effect.response, False, life))
        elif isinstance(effect, ev.ReplyFetch):
            asker, correlation_id, life = effect.reply_to
            span = None
            if effect.max_bytes > 0:
                # One to five records of the log as it is when the reply leaves.
                records = self.log[effect.offset : effect.offset + 1 + effect.max_bytes % 5]
                span = span_of(records, effect.offset) if records else None
            network.append(
                Message(self.id, asker, correlation_id, effect.response, False, life, span)
            )
        elif isinstance(effect, ev.ReplySnapshot):
            asker, correlation_id, life = effect.reply_to
            response = effect.response
            found = SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)
            if found in self.disk.snapshots:
                data = encode(self.disk.snapshots[found])
                response.size = len(data)
                response.bytes = data[
                    effect.position : effect.position + min(PART_BYTES, effect.max_bytes)
                ]
            else:
                response.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
            network.append(Message(self.id, asker, correlation_id, response, False, life))


class Unchecked:
    """A stand-in for the oracle that checks nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Cluster:
    """Nodes 1..n vote; further ids observe."""

    def __init__(
        self,
        voters: int = 3,
        observers: int = 0,
        *,
        seed: int | str = 0,
        connected: bool = False,
        known_directories: bool = True,
        start: bool = True,
        checked: bool = True,
        **timing: Any,
    ) -> None:
        # Most tests want each piece of news in a message of its own, to see what it causes.
        timing = {"high_watermark_linger_ms": 0, **timing}
        self.seed = seed
        self.now = 100.0
        self.network: list[Message] = []
        self.history: list[tuple[int, ev.Effect]] = []
        # Where a test plays the other nodes itself there is nobody to check against.
        self.oracle: Any = Oracle(self) if checked else Unchecked()
        self.fatal_allowed = False
        self.blocked: Callable[[int, int], bool] = lambda source, target: False
        self._value = 0
        self.changes = 0
        """Number of proposed changes of the voter set."""
        self.installed = 0
        self.voters = tuple(
            Voter(i, f"host{i}:1", f"dir{i}" if known_directories else "")
            for i in range(1, voters + 1)
        )
        self.nodes = {
            i: SimNode(self, QuorumConfig(CLUSTER, i, f"dir{i}", self.voters, **(TIMING | timing)))
            for i in range(1, voters + observers + 1)
        }
        if start:
            for node in self.nodes.values():
                node.start()
            if connected:
                self.connect_all()

    def __getitem__(self, node_id: int) -> SimNode:
        return self.nodes[node_id]

    def new_value(self) -> int:
        self._value += 1
        return self._value

    def rng_of(self, node: SimNode) -> random.Random:
        """Return the random stream of a starting node, which differs for each process."""
        return random.Random(f"{self.seed}-{node.id}-{node.life}")

    @property
    def alive(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.alive]

    def others(self, *nodes: SimNode) -> list[SimNode]:
        return [node for node in self.alive if node not in nodes]

    def leaders(self) -> list[SimNode]:
        return [node for node in self.alive if node.up.role == "leader"]

    def leader(self) -> SimNode:
        """Return the only leader of the highest epoch."""
        return max(self.leaders(), key=lambda node: node.up.epoch)

    # --- links and processes ---------------------------------------------------------------------

    def connect_all(self) -> None:
        for node in self.alive:
            for other in self.alive:
                if other.id in node.dialed:
                    node.step(ev.PeerConnected(other.id))

    def crash(self, node_id: int, *, keep: int = 0, noticed: bool = True) -> None:
        self[node_id].crash(keep)
        if noticed:
            for message in [m for m in self.network if m.target == node_id and m.is_request]:
                self.network.remove(message)
                self.step_all_of(
                    message.source,
                    message.asker_life,
                    ev.RequestFailed(node_id, message.correlation_id),
                )
            for node in self.alive:
                node.step(ev.PeerLost(node_id))

    def restart(self, node_id: int) -> None:
        self[node_id].start()
        for node in self.alive:
            if node.id != node_id:
                if node_id in node.dialed:
                    node.step(ev.PeerConnected(node_id))
                if node.id in self[node_id].dialed:
                    self[node_id].step(ev.PeerConnected(node.id))

    def step_all_of(self, node_id: int, life: int, event: ev.Event) -> None:
        if self[node_id].life == life:
            self[node_id].step(event)

    def isolate(self, *node_ids: int) -> None:
        """Cut these nodes off from the rest, silently, in both directions."""
        self.blocked = lambda source, target: (source in node_ids) != (target in node_ids)

    def heal(self) -> None:
        self.blocked = lambda source, target: False

    # --- moves -----------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """Deliver one message, if its receiver is alive."""
        target = self[message.target]
        if self.blocked(message.source, message.target):
            return
        if message.is_request and not target.alive:
            event = ev.RequestFailed(message.target, message.correlation_id)
            self.step_all_of(message.source, message.asker_life, event)
        elif message.is_request:
            reply_to = (message.source, message.correlation_id, message.asker_life)
            target.step(ev.RequestReceived(message.body, reply_to))
        elif target.life == message.asker_life:
            event_ = ev.ResponseReceived(
                message.source, message.correlation_id, message.body, message.span
            )
            target.step(event_)

    def settle(self, limit: int = 20_000) -> None:
        """Deliver all messages and complete all disk work, in order, until nothing is left."""
        for _ in range(limit):
            if not self.move():
                return
        raise AssertionError("the cluster does not come to rest")

    def move(self) -> bool:
        for node in self.alive:
            if node.persist() or node.flush() or node.freeze():
                return True
        if self.network:
            self.now += TRAVEL_S
            self.deliver(self.network.pop(0))
            return True
        return False

    def tick_due(self) -> None:
        for node in self.alive:
            if node.up.next_deadline() <= self.now:
                node.step(ev.Tick())

    def run(self, seconds: float) -> None:
        """Let everything happen for this time."""
        end = self.now + seconds
        while self.now < end:
            self.settle_until(end)
            deadlines = [node.up.next_deadline() for node in self.alive]
            next_at = min([end, *deadlines])
            self.now = max(self.now, next_at)
            self.tick_due()

    def settle_until(self, end: float) -> None:
        while self.now < end and self.move():
            self.tick_due()

    def run_until(
        self, condition: Callable[[], bool], seconds: float = 20.0, step: float = 0.005
    ) -> float:
        """Run until the condition holds; return how long that took."""
        begun = self.now
        while not condition():
            assert self.now - begun < seconds, f"not within {seconds} s: {self.picture()}"
            self.run(step)
        return self.now - begun

    def elect(self) -> SimNode:
        """Run until one leader has committed its own epoch and all others follow it."""
        self.run_until(self.calm)
        return self.leader()

    def calm(self) -> bool:
        if not self.leaders():
            return False
        leader = self.leader()
        ends = {node.up.log_end_offset for node in self.alive}
        marks = {node.up.high_watermark for node in self.alive}
        leaders = {node.up.leader_id for node in self.alive}
        return leaders == {leader.id} and len(ends) == 1 and marks == ends

    def propose(self, count: int = 1) -> None:
        self.leader().propose([self.new_value() for _ in range(count)])

    def request_read_index(self) -> int:
        leader = self.leader()
        at = len(leader.effects)
        leader.step(ev.ReadIndexRequested())
        return next(e.round for e in leader.effects[at:] if isinstance(e, ev.ReadIndexStarted))

    def resign(self, reason: str = "asked to") -> None:
        self.leader().step(ev.ResignRequested(reason))

    def picture(self) -> str:
        return "; ".join(
            f"{n.id}: {n.up.role} e{n.up.epoch} l{n.up.leader_id}"
            f" [{n.up.flushed_end_offset}/{n.up.log_end_offset}] hw{n.up.high_watermark}"
            for n in self.alive
        )


def requests_of(node: SimNode, kind: type) -> Iterator[Any]:
    """Return the requests of that kind that this node has sent, in order."""
    return (
        e.request
        for e in node.effects
        if isinstance(e, ev.Send | ev.SendFetch | ev.SendFetchSnapshot)
        and isinstance(e.request, kind)
    )


def effects_of(source: SimNode | list[ev.Effect], kind: type) -> list[Any]:
    effects = source.effects if isinstance(source, SimNode) else source
    return [effect for effect in effects if isinstance(effect, kind)]


def elected(
    voters: int = 3, observers: int = 0, *, seed: int | str = 0, **options: Any
) -> tuple[Cluster, SimNode]:
    """Return a cluster with a leader, and that leader."""
    cluster = Cluster(voters, observers, seed=seed, connected=True, **options)
    return cluster, cluster.elect()
