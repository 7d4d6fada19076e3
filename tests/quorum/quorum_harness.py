"""N cores, a list of messages, simulated disks: deterministic, no clock of its own, no I/O.

Nothing moves by itself: a test delivers, drops or repeats messages, completes disk work and moves the time. ``settle`` and ``run``
do all that in order. What must always hold is checked as it happens, see ``quorum_oracle``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

from quorum_oracle import Oracle

from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.events import (
    Append,
    BecameLeader,
    Effect,
    Event,
    Fatal,
    Flush,
    Flushed,
    HighWatermarkAdvanced,
    LogSpan,
    LostLeadership,
    PeerConnected,
    PeerLost,
    PersistVote,
    Proposed,
    Reply,
    ReplyFetch,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    RoundConfirmed,
    RoundRequested,
    RoundStarted,
    Send,
    SendFetch,
    Tick,
    Truncate,
    VotePersisted,
)
from raftlog.storage.api import RecoveredLog, VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

CLUSTER = "cluster-a"
TRAVEL_S = 0.0005
SENDS = (Send, SendFetch, Reply, ReplyFetch)
Record = tuple[int, int]  # (epoch, value)


@dataclass(slots=True)
class Message:
    """On its way. ``sender_life``: answers find only the life of a node that asked (its links die with it)."""

    source: int
    target: int
    correlation_id: int
    body: Any
    is_request: bool
    asker_life: int
    span: LogSpan | None = None

    def copy(self) -> Message:
        return Message(
            self.source, self.target, self.correlation_id, self.body, self.is_request, self.asker_life, self.span
        )


@dataclass(slots=True)
class Disk:
    """What survives: the durable log, then a prefix of the operations that were not flushed."""

    vote: VoteState = field(default_factory=VoteState)
    log: list[Record] = field(default_factory=list)
    pending: list[tuple[str, Any]] = field(default_factory=list)

    def make_durable(self, operations: int) -> None:
        for kind, what in self.pending[:operations]:
            if kind == "append":
                self.log.extend(what)
            else:
                del self.log[what:]
        del self.pending[:operations]


def span_of(records: list[Record], base: int) -> LogSpan:
    runs: list[tuple[int, int]] = []
    for i, (epoch, _) in enumerate(records):
        if not runs or runs[-1][0] != epoch:
            runs.append((epoch, base + i))
    data = b" ".join(b"%d:%d" % record for record in records)
    return LogSpan(base, base + len(records), tuple(runs), data)


def records_of(span: LogSpan) -> list[Record]:
    pairs = (item.split(b":") for item in span.data.split())
    return [(int(epoch), int(value)) for epoch, value in pairs]


class SimNode:
    """The smallest shell around a core: carries out effects in order, sends behind a vote when the vote is durable."""

    def __init__(self, cluster: Cluster, config: QuorumConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.id = config.node_id
        self.disk = Disk()
        self.life = 0
        self.core: QuorumCore | None = None
        self.effects: list[Effect] = []
        self.fatal = ""

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def up(self) -> QuorumCore:
        assert self.core is not None
        return self.core

    def start(self) -> None:
        self.life += 1
        self.log = list(self.disk.log)
        runs = span_of(self.log, 0).epochs
        recovered = RecoveredLog(self.disk.vote, 0, len(self.log), runs)
        self.held: deque[Any] = deque()
        self.flushes: deque[tuple[int, int]] = deque()
        self.truncations = 0
        self.operations = 0
        self.done_operations = 0
        self.high_watermark = -1
        self.ahead: list[Record] = []
        rng = random.Random(f"{self.cluster.seed}-{self.id}-{self.life}")
        self.core = QuorumCore(self.config, recovered, rng, self.cluster.now)
        self.core.validate_each_step = True
        self.step(Tick())

    def crash(self, keep: int = 0) -> None:
        """Lose the memory and what was not flushed, but for the first ``keep`` operations."""
        self.disk.make_durable(keep)
        self.disk.pending.clear()
        self.core = None

    def step(self, event: Event) -> None:
        if self.core is None:
            return
        effects = self.core.step(event, self.cluster.now)
        self.note(effects)
        self.ahead = [record for e in effects if isinstance(e, Append) for record in records_of(e.span)]
        for effect in effects:
            self.carry_out(effect)

    def note(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        self.cluster.history.extend((self.id, effect) for effect in effects)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, PersistVote) or (self.held and isinstance(effect, SENDS)):
            self.held.append(effect)
        elif isinstance(effect, SENDS):
            self.send(effect)
        elif isinstance(effect, Append):
            records = records_of(effect.span)
            assert effect.span.base_offset == len(self.log)
            self.log.extend(records)
            self.ahead = []
            self.write(("append", records))
            self.cluster.oracle.appended(self, effect.span.base_offset, records)
        elif isinstance(effect, Truncate):
            del self.log[effect.end_offset :]
            self.write(("truncate", effect.end_offset))
            self.truncations += 1
        elif isinstance(effect, Flush):
            self.flushes.append((self.operations, self.truncations))
        elif isinstance(effect, BecameLeader):
            self.cluster.oracle.became_leader(self, effect.epoch)
            self.propose([self.cluster.new_value()])
        elif isinstance(effect, HighWatermarkAdvanced):
            self.cluster.oracle.high_watermark(self, effect.offset)
        elif isinstance(effect, RoundStarted):
            self.cluster.oracle.round_started(self, effect.round)
        elif isinstance(effect, RoundConfirmed):
            self.cluster.oracle.round_confirmed(self, effect.round)
        elif isinstance(effect, LostLeadership):
            self.cluster.oracle.lost_leadership(self)
        elif isinstance(effect, Fatal):
            self.fatal = effect.reason
            if not self.cluster.fatal_allowed:
                raise AssertionError(f"node {self.id}: {effect.reason}")

    def write(self, operation: tuple[str, Any]) -> None:
        self.disk.pending.append(operation)
        self.operations += 1

    def propose(self, values: list[int]) -> None:
        core = self.up
        self.step(Proposed(core.epoch, span_of([(core.epoch, value) for value in values], len(self.log))))

    def persist(self) -> bool:
        """The oldest vote becomes durable."""
        if not self.held:
            return False
        effect = self.held.popleft()
        self.disk.vote = effect.vote
        core = self.up
        more = core.step(VotePersisted(effect.vote), self.cluster.now)
        self.note(more)
        while self.held and not isinstance(self.held[0], PersistVote):
            self.send(self.held.popleft())
        for effect in more:
            self.carry_out(effect)
        return True

    def flush(self) -> bool:
        """The oldest flush completes. A report from before a truncation is not stepped."""
        if not self.flushes:
            return False
        operations, truncations = self.flushes.popleft()
        self.disk.make_durable(operations - self.done_operations)
        self.done_operations = max(operations, self.done_operations)
        if truncations == self.truncations:
            self.step(Flushed(len(self.disk.log)))
        return True

    def send(self, effect: Effect) -> None:
        network = self.cluster.network
        self.cluster.oracle.leaves(self, effect)
        if isinstance(effect, Send | SendFetch):
            network.append(Message(self.id, effect.peer_id, effect.correlation_id, effect.request, True, self.life))
        elif isinstance(effect, Reply):
            asker, correlation_id, life = effect.reply_to
            network.append(Message(self.id, asker, correlation_id, effect.response, False, life))
        elif isinstance(effect, ReplyFetch):
            asker, correlation_id, life = effect.reply_to
            span = None
            if effect.max_bytes > 0:
                # One to five records of the log as it is when the reply leaves; what is appended behind it is in memory.
                records = (self.log + self.ahead)[effect.offset : effect.offset + 1 + effect.max_bytes % 5]
                span = span_of(records, effect.offset) if records else None
            network.append(Message(self.id, asker, correlation_id, effect.response, False, life, span))


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
        **timing: int,
    ) -> None:
        # Most tests want each piece of news in a message of its own, to see what it causes.
        timing = {"high_watermark_linger_ms": 0, **timing}
        self.seed = seed
        self.now = 100.0
        self.network: list[Message] = []
        self.history: list[tuple[int, Effect]] = []
        # Where a test plays the other nodes itself there is nobody to check against.
        self.oracle: Any = Oracle(self) if checked else Mock()
        self.fatal_allowed = False
        self.blocked: Callable[[int, int], bool] = lambda source, target: False
        self._value = 0
        self.voters = tuple(
            Voter(i, f"host{i}:1", f"dir{i}" if known_directories else "") for i in range(1, voters + 1)
        )
        self.nodes = {
            i: SimNode(self, QuorumConfig(CLUSTER, i, f"dir{i}", self.voters, **timing))
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

    @property
    def alive(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.alive]

    def leaders(self) -> list[SimNode]:
        return [node for node in self.alive if node.up.role == "leader"]

    def leader(self) -> SimNode:
        """The one leader of the highest epoch."""
        return max(self.leaders(), key=lambda node: node.up.epoch)

    # --- links and processes --------------------------------------------------------------------------------------

    def connect_all(self) -> None:
        for node in self.alive:
            for other in self.alive:
                if other is not node and other.id <= len(self.voters):
                    node.step(PeerConnected(other.id))

    def crash(self, node_id: int, *, keep: int = 0, noticed: bool = True) -> None:
        self[node_id].crash(keep)
        if noticed:
            for message in [m for m in self.network if m.target == node_id and m.is_request]:
                self.network.remove(message)
                self.step_all_of(message.source, message.asker_life, RequestFailed(node_id, message.correlation_id))
            for node in self.alive:
                node.step(PeerLost(node_id))

    def restart(self, node_id: int) -> None:
        self[node_id].start()
        for node in self.alive:
            if node.id != node_id:
                if node_id <= len(self.voters):
                    node.step(PeerConnected(node_id))
                if node.id <= len(self.voters):
                    self[node_id].step(PeerConnected(node.id))

    def step_all_of(self, node_id: int, life: int, event: Event) -> None:
        if self[node_id].life == life:
            self[node_id].step(event)

    def isolate(self, *node_ids: int) -> None:
        """Cut these off from the rest, silently, both ways."""
        self.blocked = lambda source, target: (source in node_ids) != (target in node_ids)

    def heal(self) -> None:
        self.blocked = lambda source, target: False

    # --- moves ----------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """Hand over one message, if there is anybody to take it."""
        target = self[message.target]
        if self.blocked(message.source, message.target):
            return
        if message.is_request and not target.alive:
            event = RequestFailed(message.target, message.correlation_id)
            self.step_all_of(message.source, message.asker_life, event)
        elif message.is_request:
            reply_to = (message.source, message.correlation_id, message.asker_life)
            target.step(RequestReceived(message.body, reply_to))
        elif target.life == message.asker_life:
            event_ = ResponseReceived(message.source, message.correlation_id, message.body, message.span)
            target.step(event_)

    def settle(self, limit: int = 20_000) -> None:
        """Deliver all messages and complete all disk work, in order, until nothing is left."""
        for _ in range(limit):
            if not self.move():
                return
        raise AssertionError("the cluster does not come to rest")

    def move(self) -> bool:
        for node in self.alive:
            if node.persist() or node.flush():
                return True
        if self.network:
            self.now += TRAVEL_S
            self.deliver(self.network.pop(0))
            return True
        return False

    def tick_due(self) -> None:
        for node in self.alive:
            if node.up.next_deadline() <= self.now:
                node.step(Tick())

    def run(self, seconds: float) -> None:
        """Let everything happen for so long."""
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

    def run_until(self, condition: Callable[[], bool], seconds: float = 20.0, step: float = 0.005) -> float:
        """Run until it holds; returns how long that took."""
        begun = self.now
        while not condition():
            assert self.now - begun < seconds, f"not within {seconds} s: {self.picture()}"
            self.run(step)
        return self.now - begun

    def elect(self) -> SimNode:
        """Run until one leader has committed its own epoch and all others follow it."""
        self.run_until(lambda: bool(self.leaders()) and self.calm())
        return self.leader()

    def calm(self) -> bool:
        leader = self.leader()
        ends = {node.up.log_end_offset for node in self.alive}
        marks = {node.up.high_watermark for node in self.alive}
        leaders = {node.up.leader_id for node in self.alive}
        return leaders == {leader.id} and len(ends) == 1 and marks == ends

    def propose(self, count: int = 1) -> None:
        self.leader().propose([self.new_value() for _ in range(count)])

    def request_round(self) -> int:
        leader = self.leader()
        at = len(leader.effects)
        leader.step(RoundRequested())
        return next(e.round for e in leader.effects[at:] if isinstance(e, RoundStarted))

    def resign(self, reason: str = "asked to") -> None:
        self.leader().step(ResignRequested(reason))

    def picture(self) -> str:
        return "; ".join(
            f"{n.id}: {n.up.role} e{n.up.epoch} l{n.up.leader_id} [{n.up.flushed_end_offset}/{n.up.log_end_offset}] hw{n.up.high_watermark}"
            for n in self.alive
        )


def requests_of(node: SimNode, kind: type) -> Iterator[Any]:
    """What this node has asked of that kind, in order."""
    return (e.request for e in node.effects if isinstance(e, Send | SendFetch) and isinstance(e.request, kind))


def effects_of(node: SimNode, kind: type) -> list[Any]:
    return [effect for effect in node.effects if isinstance(effect, kind)]


FetchRequest = pb.FetchRequest
