"""A small world around the replicas of three brokers: disks that lose what was not flushed, links
that break and reorder, brokers that crash, come back and are given new disks, metadata that arrives
late, and a controller that decides with the real rules.

One random schedule a seed. What must hold is checked as it happens; then everything is healed, and
must recover.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replica_kit import CLUSTER_ID, data

from broker.partition import events as ev
from broker.partition.host import PartitionSettings
from broker.partition.leader import Leader
from broker.partition.manager import Partitions
from controller.decision import Write
from controller.decisions.partitions.alter_partition import alter_partitions
from controller.rules.fencing import fence, unfence
from controller.rules.partition_change import removals
from controller.settings import ControllerSettings
from raftlog import batch
from raftlog.errors import ErrorCode
from raftlog.metadata import versions
from raftlog.metadata.entities import Cause, Partition
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, record
from raftlog.node.storage.partition_api import LogRuns, PartitionKey, RecoveredPartition
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

BROKERS = (1, 2, 3)
TOPIC_ID = b"M" * 16
SERVE_S = 1e6
KEPT_MS, KEPT_BYTES = 1_000, 400


class BrokenPromiseError(AssertionError):
    """What the replicas must never do."""


# --- the disk -----------------------------------------------------------------------------------


class Disk:
    """Writes are visible at once and durable when flushed; a crash keeps what was flushed and any
    first part of the rest.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.visible: dict[PartitionKey, list[tuple[int, int, bytes]]] = {}
        self.durable: dict[PartitionKey, list[tuple[int, int, bytes]]] = {}
        self.starts: dict[bool, dict[PartitionKey, int]] = {False: {}, True: {}}
        """Of what is visible, and (True) durable."""
        self.unflushed: deque[ev.Effect] = deque()

    def write(self, effect: ev.Effect) -> None:
        self.unflushed.append(effect)
        self._apply(effect, durable=False)

    def _apply(self, effect: Any, *, durable: bool) -> None:
        state, starts = self.durable if durable else self.visible, self.starts[durable]
        if isinstance(effect, ev.Append):
            log = state.setdefault(effect.key, [])
            end = log[-1][1] if log else starts.get(effect.key, 0)
            if effect.base_offset != end:
                raise BrokenPromiseError(
                    f"an append at {effect.base_offset}, the log ends at {end}"
                )
            for header in batch.headers(effect.chunk):
                bytes_ = effect.chunk[header.position : header.position + header.size]
                log.append((header.base_offset, header.end_offset, bytes_))
        elif isinstance(effect, ev.Truncate):
            log = state.setdefault(effect.key, [])
            if effect.end_offset not in {
                starts.get(effect.key, 0),
                *(end for _, end, _ in log),
            }:
                raise BrokenPromiseError(f"a truncation to {effect.end_offset}, inside of a batch")
            state[effect.key] = [entry for entry in log if entry[1] <= effect.end_offset]
        elif isinstance(effect, ev.AdvanceStart):
            log = state.get(effect.key, [])
            if effect.start_offset not in {base for base, _, _ in log}:
                raise BrokenPromiseError(f"a log start at {effect.start_offset}, of no batch")
            state[effect.key] = [entry for entry in log if entry[0] >= effect.start_offset]
            starts[effect.key] = effect.start_offset
        elif isinstance(effect, ev.Reset):
            state[effect.key], starts[effect.key] = [], effect.start_offset
        elif isinstance(effect, ev.Delete):
            state.pop(effect.key, None)
            starts.pop(effect.key, None)

    def flush(self) -> int | None:
        """Complete the oldest flush asked for; its token."""
        if not any(isinstance(effect, ev.Flush) for effect in self.unflushed):
            return None
        while True:
            effect = self.unflushed.popleft()
            if isinstance(effect, ev.Flush):
                return effect.token
            self._apply(effect, durable=True)

    def crash(self, rng: random.Random) -> None:
        writes = [effect for effect in self.unflushed if not isinstance(effect, ev.Flush)]
        for effect in writes[: rng.randint(0, len(writes))]:
            self._apply(effect, durable=True)
        self.unflushed.clear()
        self.visible = {key: list(log) for key, log in self.durable.items()}
        self.starts[False] = dict(self.starts[True])

    def recover(self) -> tuple[RecoveredPartition, ...]:
        found = []
        for key, log in sorted(self.durable.items()):
            epochs: list[tuple[int, int]] = []
            runs, start = LogRuns(), self.start(key, durable=True)
            for base, end, bytes_ in log:
                (header,) = batch.headers(bytes_)
                runs.append(base, end, header.timestamp_ms, len(bytes_))
                if not epochs or epochs[-1][0] != header.epoch:
                    epochs.append((header.epoch, base))
            end = log[-1][1] if log else start
            found.append(RecoveredPartition(key, start, end, tuple(epochs), runs))
        return tuple(found)

    def read(self, read: ev.Read) -> bytes:
        found = b""
        if read.offset < self.start(read.key, durable=False):
            raise BrokenPromiseError(f"a read at {read.offset}, below the log start")
        for _, end, bytes_ in self.visible.get(read.key, []):
            if end > read.offset and end <= read.until:
                if found and len(found) + len(bytes_) > read.max_bytes:
                    break
                found += bytes_
        return found

    def end(self, key: PartitionKey, *, durable: bool) -> int:
        log = (self.durable if durable else self.visible).get(key)
        return log[-1][1] if log else self.start(key, durable=durable)

    def start(self, key: PartitionKey, *, durable: bool) -> int:
        return self.starts[durable].get(key, 0)

    def content(
        self, key: PartitionKey, until: int, *, durable: bool, begin: int = 0
    ) -> list[tuple[int, int, bytes]]:
        log = (self.durable if durable else self.visible).get(key) or []
        return [entry for entry in log if begin <= entry[0] < until]


# --- the controller -----------------------------------------------------------------------------


class Controller:
    """Decides with the rules of the real one; what it decides is committed at once, and reaches the
    brokers one by one.
    """

    def __init__(self, level: int) -> None:
        self.builder = ImageBuilder(Image())
        self.settings = ControllerSettings()
        self.log: list[tuple[Image, ev.Changes]] = []
        self.commit(
            [
                record(
                    records_pb2.FeatureLevelRecord(
                        name=versions.METADATA_VERSION, feature_level=level
                    )
                )
            ]
        )

    @property
    def image(self) -> Image:
        return self.log[-1][0]

    def commit(self, records: list[Record]) -> None:
        if not records:
            return
        self.builder.apply_batch(
            records, base_offset=self.builder.offset + 1, epoch=1, timestamp_ms=0
        )
        partitions = [
            (r.message.topic_id, r.message.partition_id)
            for r in records
            if r.type in (RecordType.PARTITION, RecordType.PARTITION_CHANGE)
        ]
        brokers = [
            r.message.broker_id
            for r in records
            if r.type
            in (
                RecordType.REGISTER_BROKER,
                RecordType.UNREGISTER_BROKER,
                RecordType.BROKER_REGISTRATION_CHANGE,
            )
        ]
        self.log.append(
            (self.builder.snapshot(), ev.Changes(tuple(partitions), (), tuple(brokers)))
        )

    def register(self, broker_id: int, incarnation: str) -> int:
        epoch = self.builder.offset + 1
        registration = records_pb2.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=incarnation,
            broker_epoch=epoch,
            end_points=[records_pb2.Listener(name="P", host="h", port=9000 + broker_id)],
            fenced=True,
            registration_version=1,
        )
        old = self.builder.brokers.get(broker_id)
        self.commit(
            [
                record(registration),
                *(removals(self.builder, broker_id, on_purpose=True) if old else []),
            ]
        )
        return epoch

    def fence(self, broker_id: int) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            self.commit(fence(self.builder, broker, Cause.SESSION_TIMED_OUT))

    def unfence(self, broker_id: int) -> None:
        self.commit(unfence(self.builder, self.image.brokers[broker_id]))

    def alter(self, request: rpc.AlterPartitionRequest) -> rpc.AlterPartitionResponse | ErrorCode:
        broker = self.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        decision = alter_partitions(self.builder, self.settings, request)
        self.commit(decision.records if isinstance(decision, Write) else [])
        return decision.body


# --- brokers and links --------------------------------------------------------------------------


@dataclass(eq=False)
class Wire:
    """A replica fetch link.

    A follower that has lost it may have sent what the leader still reads.
    """

    follower: int
    leader: int
    number: int
    open: bool = False
    requests: deque[pb.ReplicaFetchRequest] = field(default_factory=deque)
    responses: deque[pb.ReplicaFetchResponse] = field(default_factory=deque)


@dataclass(eq=False)
class Node:
    """One broker: its disk outlives its process, ``core``."""

    id: int
    disk: Disk
    core: Partitions | None = None
    epoch: int = -1
    incarnation: int = 0
    applied: int = -1
    """Index into the controller's log."""
    contact: bool = True
    serving: bool = False
    wires: dict[int, Wire] = field(default_factory=dict)
    altering: int | None = None
    high_watermarks: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)


@dataclass(eq=False)
class Alter:
    """An AlterPartition request on its way; ``number`` of the attempt that its sender waits for."""

    sender: int
    number: int
    request: rpc.AlterPartitionRequest


@dataclass(eq=False)
class Written:
    key: PartitionKey
    value: str
    acked_at: int = -1
    """The offset it was acknowledged at."""
    excused: bool = False


class World:
    """One schedule."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int = 600,
        level: int = versions.LATEST_METADATA_VERSION,
        retains: bool = False,
    ) -> None:
        self.seed, self.steps = seed, steps
        self.rng = random.Random(seed)
        self.min_isr = self.rng.choice((1, 1, 2))
        self.partitions = 2
        self.kept_bytes = KEPT_BYTES if retains else -1
        self.dropped: dict[PartitionKey, int] = {}
        """Up to where a leader has dropped what the topic does not keep."""
        self.too_old = False
        """Whether all records are, for the leader that looks now."""
        self.drops = self.resets = 0
        self.now = 1000.0
        self.controller = Controller(level)
        self.disks = 0
        self.nodes = {id_: Node(id_, self._disk()) for id_ in BROKERS}
        self.late: list[Wire] = []
        """Wires that their follower has lost; the leader does not know yet."""
        self.alters: list[Alter] = []
        self.answers: list[tuple[int, int, ev.Event]] = []
        self.numbers = 0
        self.keys: list[PartitionKey] = []
        self.written: dict[str, Written] = {}
        self.waiting: dict[Any, Written] = {}
        self.contents: dict[tuple[PartitionKey, int, int], bytes] = {}
        """(partition, leader epoch, offset) -> the batch: one, for ever."""
        self.writers: dict[tuple[PartitionKey, int], tuple[int, int]] = {}
        self.joined: dict[tuple[PartitionKey, int], int] = {}
        """The disk of the incarnation that was registered when a member came into an ISR."""
        self.disk_of: dict[int, int] = {}
        """Broker epoch -> the disk it was registered with."""
        self.acked = self.advanced = self.led = 0
        self.replaced = 0.0
        self.hold_alters = False
        self.behind: set[int] = set()
        """Brokers that no news of the metadata reaches while it is calm."""
        self.cut: set[int] = set()
        """Brokers whose links carry nothing."""
        self.trace: list[str] = []
        self.handlers: dict[type, Callable[[Node, Any], None]] = {
            ev.Append: self._append,
            ev.Truncate: lambda node, effect: node.disk.write(effect),
            ev.AdvanceStart: self._advance_start,
            ev.Reset: self._reset,
            ev.Delete: lambda node, effect: node.disk.write(effect),
            ev.Flush: lambda node, effect: node.disk.write(effect),
            ev.AnswerProduce: self._answer_produce,
            ev.AnswerFetch: lambda node, effect: None,
            ev.AnswerReplicaFetch: self._answer_replica_fetch,
            ev.WantLink: self._want_link,
            ev.DropLink: lambda node, effect: self._lose(node, effect.leader_id, tell=False),
            ev.SendReplicaFetch: self._send_replica_fetch,
            ev.SendAlterPartition: self._send_alter,
            ev.Note: self._noted,
        }

    # --- the whole of it -------------------------------------------------------------------------

    def run(self) -> None:
        """Set up, let everything go wrong, heal, and look."""
        self.begin()
        actions = self._actions()
        weights = list(itertools.accumulate(weight for weight, _ in actions))
        for _ in range(self.steps):
            self.now += self.rng.choice((0.0, 0.0, 0.001, 0.03))
            self.rng.choices(actions, cum_weights=weights)[0][1]()
        self.heal()

    def begin(self) -> None:
        """Three brokers, registered and unfenced, and a topic of two partitions."""
        for id_ in BROKERS:
            self._start(self.nodes[id_])
        for id_ in BROKERS:
            self._register(self.nodes[id_])
            self.controller.unfence(id_)
        self._create()
        for node in self.nodes.values():
            while node.applied < len(self.controller.log) - 1:
                self._apply(node)

    def turns(self, count: int = 20) -> None:
        """Let everything that is up, and is not held back, go on for a while."""
        for _ in range(count):
            self._turn(-1)

    def produce(self, key: PartitionKey, node: Node) -> Written:
        """Send a record to a leader; what becomes of it is checked from here on."""
        return self._send(key, node, [f"v{self._number()}"], 20_000)

    def restart(self, node: Node) -> None:
        """A dead broker comes back."""
        self._start(node)

    def catch_up(self, *nodes: Node) -> None:
        """These register, hear all of the metadata, flush, and are unfenced; nothing else moves."""
        for node in nodes:
            if node.epoch < 0:
                self._register(node)
        for node in nodes:
            while node.applied < len(self.controller.log) - 1:
                self._apply(node)
            while (token := node.disk.flush()) is not None:
                self.step(node, ev.Flushed(token))
            if self._may_unfence(node):
                self.controller.unfence(node.id)
                self._isr_moved()

    def carry_alters(self) -> None:
        """All proposals on their way arrive, and their answers."""
        self.hold_alters = False
        while self.alters:
            self._carry_alter()
        for sender, number, event in self.answers:
            if self.nodes[sender].altering == number:
                self.nodes[sender].altering = None
                self.step(self.nodes[sender], event)
        self.answers.clear()

    def give_up_alter(self, node: Node) -> None:
        """The patience of a proposer ends, and it asks again."""
        node.altering = None
        self.step(node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True))
        self.now += 0.1
        self.step(node, ev.Tick())

    def fence(self, id_: int) -> None:
        """By the controller."""
        self.controller.fence(id_)
        self._isr_moved()

    def _create(self) -> None:
        name = "t"
        records = [record(records_pb2.TopicRecord(name=name, topic_id=TOPIC_ID))]
        for index in range(self.partitions):
            replicas = [BROKERS[(index + shift) % len(BROKERS)] for shift in range(len(BROKERS))]
            records.append(
                record(
                    records_pb2.PartitionRecord(
                        partition_id=index,
                        topic_id=TOPIC_ID,
                        replicas=replicas,
                        isr=replicas,
                        leader=replicas[0],
                    )
                )
            )
        config = records_pb2.ConfigRecord(
            resource_type=2,
            resource_name=name,
            name="min.insync.replicas",
            value=str(self.min_isr),
        )
        records.append(record(config))
        if self.kept_bytes >= 0:
            for key, value in (("retention.bytes", self.kept_bytes), ("retention.ms", KEPT_MS)):
                records.append(
                    record(
                        records_pb2.ConfigRecord(
                            resource_type=2, resource_name=name, name=key, value=str(value)
                        )
                    )
                )
        self.controller.commit(records)
        self.keys = [(TOPIC_ID, index) for index in range(self.partitions)]
        self._isr_moved()

    def _actions(self) -> list[tuple[float, Callable[[], None]]]:
        """Each schedule has a temper of its own: what is frequent in one is rare in another."""
        some = self.rng.choice
        self.replaced = some((0.1, 0.4, 0.8))
        return [
            (80, self._deliver),
            (some((1, 4)), self._calm),
            (some((0.2, 1.5)), self._hold_alters),
            (some((1, 3, 8)), self._produce),
            (some((10, 30)), self._flush),
            (some((8, 25)), self._apply_image),
            (6, self._tick),
            (15, self._open_link),
            (some((0.5, 3, 12)), self._carry_alter),
            (some((3, 12)), self._answer_alter),
            (some((0.2, 1.0)), self._lose_alter),
            (some((0.0, 0.5)), self._alter_refused),
            (some((0.1, 1.0)), self._break_link),
            (some((0.3, 2.0)), self._late_message),
            (some((0.1, 0.3, 0.6)), self._crash),
            (some((4, 12)), self._restart),
            (some((6, 15)), self._register_some),
            (some((0.1, 0.3, 1.0)), self._fence),
            (some((6, 15)), self._unfence),
            (some((0.0, 0.3)), self._lose_contact),
            (4, self._regain_contact),
            (some((0.1, 0.5)), self._skip_image),
            (some((0.0, 0.3)), self._reassign),
            (some((0.0, 0.4)), self._long_pause),
            *(((some((0.5, 3)), self._retain),) if self.kept_bytes >= 0 else ()),
        ]

    # --- stepping --------------------------------------------------------------------------------

    def step(self, node: Node, event: ev.Event) -> None:
        core = node.core
        assert core is not None
        for effect in core.step(event, self.now):
            self.handlers[type(effect)](node, effect)
        self._look(node)

    def _stand(self, node: Node) -> None:
        if node.core is None:
            return
        image = self.controller.log[node.applied][0] if node.applied >= 0 else Image()
        mine = image.brokers.get(node.id)
        node.serving = (
            node.contact and mine is not None and mine.epoch == node.epoch and not mine.fenced
        )
        self.step(
            node,
            ev.BrokerStatusChanged(
                node.epoch, self.now + SERVE_S if node.serving else float("-inf")
            ),
        )

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

    def _some(self) -> Node | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    # --- what brokers do -------------------------------------------------------------------------

    def _append(self, node: Node, effect: ev.Append) -> None:
        for header in batch.headers(effect.chunk):
            bytes_ = effect.chunk[header.position : header.position + header.size]
            known = self.contents.setdefault((effect.key, header.epoch, header.base_offset), bytes_)
            if known != bytes_:
                raise BrokenPromiseError(
                    f"two batches at {header.base_offset} of epoch {header.epoch}"
                )
        node.disk.write(effect)

    def _retain(self) -> None:
        """A leader looks at what it need not keep: all is too old, or nothing is."""
        node = self._some()
        if node is not None:
            now_ms = self.rng.choice((1, 1, 1, 2 + KEPT_MS))
            self.too_old = now_ms > KEPT_MS
            self.step(node, ev.RetentionDue(tuple(self.keys), now_ms))

    def _advance_start(self, node: Node, effect: ev.AdvanceStart) -> None:
        key, start = effect.key, effect.start_offset
        if (leader := self._leader(node, key)) is not None:
            self.drops += 1
            if start >= leader.high_watermark:
                raise BrokenPromiseError(
                    f"broker {node.id} drops up to {start}, {leader.high_watermark} is committed"
                )
            left = node.disk.content(key, 1 << 60, durable=False, begin=start)
            if not left or (not self.too_old and sum(len(one[2]) for one in left) < KEPT_BYTES):
                raise BrokenPromiseError(f"broker {node.id} drops up to {start}, too much")
            self.dropped[key] = max(start, self.dropped.get(key, 0))
        elif start > self.dropped.get(key, 0):
            raise BrokenPromiseError(f"follower {node.id} drops up to {start} of its own accord")
        node.disk.write(effect)

    def _reset(self, node: Node, effect: ev.Reset) -> None:
        self.resets += 1
        key, start = effect.key, effect.start_offset
        if start > self.dropped.get(key, 0):
            raise BrokenPromiseError(f"follower {node.id} begins at {start}, nobody dropped that")
        if node.disk.content(key, 1 << 60, durable=False, begin=start):
            raise BrokenPromiseError(f"follower {node.id} drops what is not below {start}")
        node.disk.write(effect)

    def _answer_produce(self, node: Node, effect: ev.AnswerProduce) -> None:
        written = self.waiting.pop(effect.reply_to)
        (result,) = effect.response.partitions
        if result.error_code == 0 and written.acked_at < 0:
            written.acked_at = result.base_offset
            self.acked += 1
            self._check_acked(node, written)

    def _check_acked(self, node: Node, written: Written) -> None:
        """Durable on the leader, and on each member of the ISR that the controller knows, unless
        its disk was exchanged meanwhile.
        """
        holders = [node.id, *(m for m in self._isr(written.key) if self._kept_disk(written.key, m))]
        for member in holders:
            if self.nodes[member].disk.end(written.key, durable=True) <= written.acked_at:
                raise BrokenPromiseError(
                    f"{written} was acknowledged, broker {member} does not have it durably"
                )

    def _answer_replica_fetch(self, node: Node, effect: ev.AnswerReplicaFetch) -> None:
        response = effect.response
        for read in effect.reads:
            response.partitions[read.index].records = node.disk.read(read)
        wire = effect.session
        assert isinstance(wire, Wire)
        if self.nodes[wire.follower].wires.get(wire.leader) is wire and wire.open:
            wire.responses.append(response)

    def _want_link(self, node: Node, effect: ev.WantLink) -> None:
        self._lose(node, effect.leader_id, tell=False)
        self.numbers += 1
        node.wires[effect.leader_id] = Wire(node.id, effect.leader_id, self.numbers)

    def _lose(self, node: Node, leader_id: int, *, tell: bool, again: bool = False) -> None:
        """The follower's end of a link is gone.

        What it has sent may still arrive, then the leader hears of it.
        """
        wire = node.wires.pop(leader_id, None)
        if wire is None:
            return
        if again:
            self.numbers += 1
            node.wires[leader_id] = Wire(node.id, leader_id, self.numbers)
        if wire.open:
            self.late.append(wire)
            if tell:
                self.step(node, ev.LinkLost(leader_id))

    def _send_replica_fetch(self, node: Node, effect: ev.SendReplicaFetch) -> None:
        wire = node.wires.get(effect.leader_id)
        if wire is not None and wire.open:
            wire.requests.append(effect.request)

    def _send_alter(self, node: Node, effect: ev.SendAlterPartition) -> None:
        if node.altering is not None:
            raise BrokenPromiseError("two AlterPartitions of one broker under way")
        self.numbers += 1
        node.altering = self.numbers
        self.alters.append(Alter(node.id, self.numbers, effect.request))

    def _noted(self, node: Node, effect: ev.Note) -> None:
        self.trace.append(
            f"{self.now:.3f} broker {node.id} epoch {node.epoch}: {effect.event} {effect.fields}"
        )
        if effect.event == "leads":
            self.led += 1
            self._check_leader(node, (TOPIC_ID, effect.fields["index"]), effect.fields["epoch"])

    # --- actions ---------------------------------------------------------------------------------

    def _deliver(self) -> None:
        wires = [
            w
            for node in self._alive()
            for w in node.wires.values()
            if w.open and (w.requests or w.responses) and not self.cut & {w.leader, w.follower}
        ]
        if not wires:
            return
        wire = self.rng.choice(wires)
        if wire.responses and (not wire.requests or self.rng.random() < 0.5):
            self.step(
                self.nodes[wire.follower],
                ev.ReplicaFetchAnswered(wire.leader, wire.responses.popleft()),
            )
        else:
            self._deliver_request(wire)

    def _deliver_request(self, wire: Wire) -> None:
        leader = self.nodes[wire.leader]
        if leader.core is not None:
            self.step(leader, ev.ReplicaFetchReceived(wire, wire.requests.popleft()))

    def _late_message(self) -> None:
        if self.late:
            wire = self.rng.choice(self.late)
            if wire.requests and self.rng.random() < 0.8:
                self._deliver_request(wire)
            else:
                self._end(wire)

    def _end(self, wire: Wire) -> None:
        self.late.remove(wire)
        leader = self.nodes[wire.leader]
        if leader.core is not None:
            self.step(leader, ev.SessionClosed(wire))

    def _open_link(self) -> None:
        closed = [
            w
            for node in self._alive()
            for w in node.wires.values()
            if not w.open
            and self.nodes[w.leader].core is not None
            and not self.cut & {w.leader, w.follower}
        ]
        if closed:
            wire = self.rng.choice(closed)
            wire.open = True
            self.step(self.nodes[wire.follower], ev.LinkOpened(wire.leader))

    def _break_link(self) -> None:
        opened = [w for node in self._alive() for w in node.wires.values() if w.open]
        if opened:
            wire = self.rng.choice(opened)
            self._lose(self.nodes[wire.follower], wire.leader, tell=True, again=True)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _produce(self) -> None:
        key = (TOPIC_ID, self.rng.randrange(self.partitions))
        leaders = [node for node in self._alive() if self._leader(node, key) is not None]
        if leaders:
            number = self._number()
            more = [f"v{number}+{more}" for more in range(self.rng.choice((0, 0, 1, 3)))]
            self._send(
                key,
                self.rng.choice(leaders),
                [f"v{number}", *more],
                self.rng.choice((50, 2000, 20_000)),
            )

    def _send(self, key: PartitionKey, node: Node, values: list[str], timeout_ms: int) -> Written:
        leader = self._leader(node, key)
        assert leader is not None
        reply_to = self._number()
        written = self.written[values[0]] = self.waiting[reply_to] = Written(key, values[0])
        end = node.disk.end(key, durable=False)
        one = pb.ProducePartition(
            topic_id=key[0], partition_index=key[1], current_leader_epoch=-1, records=data(*values)
        )
        request = pb.ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=[one])
        self.step(node, ev.ProduceReceived(request, 1, reply_to))
        if node.disk.end(key, durable=False) > end:
            if not node.serving:
                raise BrokenPromiseError(f"broker {node.id} is fenced and took records")
            writer = self.writers.setdefault((key, leader.epoch), (node.id, node.incarnation))
            if writer != (node.id, node.incarnation):
                raise BrokenPromiseError(
                    f"epoch {leader.epoch} of {key[1]} was led by {writer} and by {node.id}"
                )
        return written

    def _flush(self) -> None:
        """One flush, or all that were asked for with one report."""
        node = self._some()
        token = node.disk.flush() if node is not None else None
        if node is not None and token is not None:
            while self.rng.random() < 0.8 and (later := node.disk.flush()) is not None:
                token = later
            self.step(node, ev.Flushed(token))

    def _apply_image(self) -> None:
        behind = [node for node in self._alive() if node.applied < len(self.controller.log) - 1]
        if behind:
            self._apply(self.rng.choice(behind))

    def _apply(self, node: Node) -> None:
        node.applied += 1
        image, changes = self.controller.log[node.applied]
        self.step(node, ev.ImageMoved(image, changes if node.applied else None))
        self._stand(node)

    def _skip_image(self) -> None:
        """A snapshot: all at once."""
        node = self._some()
        if node is not None and node.applied < len(self.controller.log) - 1:
            node.applied = len(self.controller.log) - 1
            self.step(node, ev.ImageMoved(self.controller.log[node.applied][0], None))
            self._stand(node)

    def _tick(self) -> None:
        node = self._some()
        if node is not None:
            self.now = max(self.now, min(node.core.next_deadline(), self.now + 1.0))
            self.step(node, ev.Tick())

    def _long_pause(self) -> None:
        """Beyond replica.lag.time.max.ms."""
        for _ in range(8):
            self.now += 0.3
            for node in self._alive():
                self.step(node, ev.Tick())
                if node.contact:
                    self._stand(node)

    # --- AlterPartition --------------------------------------------------------------------------

    def _hold_alters(self) -> None:
        """The way to the controller is slow for a while."""
        self.hold_alters = not self.hold_alters

    def _carry_alter(self) -> None:
        """Any of those on their way arrives, however old."""
        if self.alters and not self.hold_alters:
            alter = self.alters.pop(self.rng.randrange(len(self.alters)))
            before = self.controller.image
            answer = self.controller.alter(alter.request)
            event: ev.Event = (
                ev.AlterPartitionFailed(answer, outcome_unknown=False)
                if isinstance(answer, ErrorCode)
                else ev.AlterPartitionAnswered(answer)
            )
            self.trace.append(
                f"{self.now:.3f} alter of {alter.sender}: {_short(alter.request)} ->"
                f" {_short(answer)}"
            )
            if before is not self.controller.image:
                self._isr_moved()
            self.answers.append((alter.sender, alter.number, event))

    def _answer_alter(self) -> None:
        if self.answers:
            sender, number, event = self.answers.pop(self.rng.randrange(len(self.answers)))
            node = self.nodes[sender]
            if node.core is not None and node.altering == number:
                node.altering = None
                if self.rng.random() < 0.15:
                    event = ev.AlterPartitionFailed(
                        ErrorCode.NETWORK_EXCEPTION, outcome_unknown=True
                    )
                self.step(node, event)

    def _lose_alter(self) -> None:
        """The sender's patience ends; the request is still on its way."""
        waiting = [node for node in self._alive() if node.altering is not None]
        if waiting:
            node = self.rng.choice(waiting)
            node.altering = None
            self.step(
                node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True)
            )

    def _alter_refused(self) -> None:
        """By somebody who is not the controller: it was certainly not executed."""
        for alter in self.alters:
            node = self.nodes[alter.sender]
            if node.core is not None and node.altering == alter.number:
                self.alters.remove(alter)
                node.altering = None
                self.step(
                    node, ev.AlterPartitionFailed(ErrorCode.NOT_CONTROLLER, outcome_unknown=False)
                )
                return

    # --- lives of brokers ------------------------------------------------------------------------

    def _disk(self) -> Disk:
        self.disks += 1
        return Disk(self.disks)

    def _crash(self) -> None:
        """Anybody; but rather somebody who is about to come into an ISR."""
        node = self._some()
        if node is None or len(self._alive()) < 2:
            return
        named = [
            self.nodes[member.broker_id]
            for alter in self.alters
            for topic in alter.request.topics
            for partition in topic.partitions
            for member in partition.new_isr_with_epochs
            if member.broker_id not in self._isr((TOPIC_ID, partition.partition_index))
            and self.nodes[member.broker_id].core is not None
        ]
        if named and self.rng.random() < 0.6:
            node = self.rng.choice(named)
        self.kill(node, replace_disk=self.rng.random() < self.replaced)

    def kill(self, node: Node, *, replace_disk: bool) -> None:
        self.trace.append(
            f"{self.now:.3f} broker {node.id}"
            f" crashes{', its disk is replaced' if replace_disk else ''}"
        )
        node.core, node.altering, node.serving = None, None, False
        for leader_id in list(node.wires):
            self._lose(node, leader_id, tell=False)
        node.wires.clear()
        self.late = [wire for wire in self.late if wire.leader != node.id]
        for other in self._alive():
            wire = other.wires.get(node.id)
            if wire is not None and wire.open:
                self._lose(other, node.id, tell=True, again=True)
        self.late = [wire for wire in self.late if wire.leader != node.id]
        if replace_disk:
            node.disk = self._disk()
            self._disk_replaced()
        else:
            node.disk.crash(self.rng)

    def _restart(self) -> None:
        dead = [node for node in self.nodes.values() if node.core is None]
        if dead:
            self._start(self.rng.choice(dead))

    def _start(self, node: Node) -> None:
        node.epoch, node.contact, node.high_watermarks = -1, True, {}
        node.incarnation += 1
        # It begins anywhere in the log of the metadata.
        node.applied = (
            self.rng.randint(-1, len(self.controller.log) - 2)
            if len(self.controller.log) > 1
            else -1
        )
        settings = PartitionSettings(
            node.id,
            CLUSTER_ID,
            replica_lag_time_max_ms=2000,
            max_partitions_per_message=self.rng.choice((1, 100)),
            log_segment_delete_delay_ms=0,
        )
        node.core = Partitions(settings, node.disk.recover(), self.now)

    def _register_some(self) -> None:
        unregistered = [node for node in self._alive() if node.epoch < 0]
        if unregistered:
            self._register(self.rng.choice(unregistered))
        elif self.rng.random() < 0.01:
            node = self._some()
            if node is not None:
                self._register(node)

    def _register(self, node: Node) -> None:
        self.numbers += 1
        node.epoch = self.controller.register(
            node.id, f"{node.id}-{node.incarnation}-{self.numbers}"
        )
        self.disk_of[node.epoch] = node.disk.number
        self.trace.append(f"{self.now:.3f} broker {node.id} registers: {node.epoch}")
        self._isr_moved()
        self._stand(node)

    def _fence(self) -> None:
        dead = [node.id for node in self.nodes.values() if node.core is None]
        id_ = self.rng.choice(dead if dead and self.rng.random() < 0.7 else BROKERS)
        broker = self.controller.image.brokers[id_]
        active = [b for b in BROKERS if self.controller.image.brokers[b].active]
        if not broker.fenced and (len(active) > 1 or self.nodes[id_].core is None):
            self.controller.fence(id_)
            self.trace.append(f"{self.now:.3f} broker {id_} is fenced")
            self._isr_moved()

    def _unfence(self) -> None:
        fenced = [node for node in self._alive() if self._may_unfence(node)]
        if fenced:
            node = self.rng.choice(fenced)
            self.controller.unfence(node.id)
            self.trace.append(f"{self.now:.3f} broker {node.id} is unfenced")
            self._isr_moved()

    def _may_unfence(self, node: Node) -> bool:
        broker = self.controller.image.brokers[node.id]
        reached = node.applied >= 0 and self.controller.log[node.applied][0].offset >= node.epoch
        return broker.fenced and broker.epoch == node.epoch and reached and node.contact

    def _lose_contact(self) -> None:
        """With the controllers: the broker takes itself for fenced."""
        node = self._some()
        if node is not None:
            node.contact = False
            self._stand(node)

    def _regain_contact(self) -> None:
        away = [node for node in self._alive() if not node.contact]
        if away:
            node = self.rng.choice(away)
            node.contact = True
            self._stand(node)

    def _reassign(self) -> None:
        """A replica that neither leads nor is in sync goes, or one comes."""
        key = (TOPIC_ID, self.rng.randrange(self.partitions))
        partition = self._partition(key)
        gone = [b for b in BROKERS if b not in partition.replicas]
        spare = [b for b in partition.replicas if b not in partition.isr]
        if gone:
            replicas = [*partition.replicas, *gone]
        elif spare:
            replicas = [b for b in partition.replicas if b != spare[0]]
        else:
            return
        change = records_pb2.PartitionChangeRecord(
            partition_id=key[1], topic_id=key[0], replicas=records_pb2.IdList(ids=replicas)
        )
        self.controller.commit([record(change)])
        self.trace.append(f"{self.now:.3f} replicas of {key[1]}: {replicas}")
        self._isr_moved()

    # --- what must hold --------------------------------------------------------------------------

    def _partition(self, key: PartitionKey) -> Partition:
        found = self.controller.image.partitions[key]
        return found

    def _isr(self, key: PartitionKey) -> tuple[int, ...]:
        return self._partition(key).isr

    def _leader(self, node: Node, key: PartitionKey) -> Leader | None:
        replica = node.core._host.replicas.get(key) if node.core is not None else None
        return replica.role if replica is not None and isinstance(replica.role, Leader) else None

    def _isr_moved(self) -> None:
        for key in self.keys:
            isr = self._isr(key)
            for member in BROKERS:
                if member not in isr:
                    self.joined.pop((key, member), None)
                else:
                    registered = self.controller.image.brokers[member].epoch
                    self.joined.setdefault((key, member), self.disk_of[registered])
        self._disk_replaced()

    def _kept_disk(self, key: PartitionKey, member: int) -> bool:
        return self.joined.get((key, member)) == self.nodes[member].disk.number

    def _disk_replaced(self) -> None:
        """Where no member of the ISR has the disk that it came in with, what was acknowledged is
        gone: nobody promised otherwise.
        """
        for key in self.keys:
            if not any(self._kept_disk(key, member) for member in self._isr(key)):
                for written in self.written.values():
                    written.excused = written.excused or (
                        written.key == key and written.acked_at >= 0
                    )

    def _check_leader(self, node: Node, key: PartitionKey, epoch: int) -> None:
        """Who begins to lead the newest epoch has all that was acknowledged."""
        partition = self._partition(key)
        if (partition.leader, partition.leader_epoch) == (node.id, epoch):
            self._check_has_all(node, key)

    def _check_has_all(self, node: Node, key: PartitionKey) -> None:
        log = {base: bytes_ for base, _, bytes_ in node.disk.visible.get(key, [])}
        for written in self.written.values():
            is_kept = written.acked_at >= node.disk.start(key, durable=False)
            if written.key == key and is_kept and not written.excused:
                found = log.get(written.acked_at)
                if found is None or _first_value(found) != written.value:
                    raise BrokenPromiseError(
                        f"broker {node.id} leads or is in sync without {written}, which was"
                        " acknowledged"
                    )

    def _look(self, node: Node) -> None:
        """Each high watermark of a leader, when it moves."""
        for key in self.keys:
            leader = self._leader(node, key)
            if leader is None:
                continue
            before = node.high_watermarks.get((key, leader.epoch), -1)
            if leader.high_watermark < before:
                raise BrokenPromiseError(
                    f"the high watermark of {key[1]} goes from {before} to {leader.high_watermark}"
                )
            if leader.high_watermark > before:
                self.advanced += 1
                node.high_watermarks[key, leader.epoch] = leader.high_watermark
                self._check_high_watermark(node, key, leader.high_watermark)

    def _check_high_watermark(self, node: Node, key: PartitionKey, high_watermark: int) -> None:
        mine = node.disk.content(key, high_watermark, durable=True)
        if (mine[-1][1] if mine else 0) < high_watermark:
            raise BrokenPromiseError(
                f"broker {node.id} counts {high_watermark} of {key[1]} and has it not durably"
            )
        for member in self._isr(key):
            if member != node.id and self._kept_disk(key, member):
                other = self.nodes[member].disk.content(key, high_watermark, durable=True)
                if not _same(mine, other):
                    raise BrokenPromiseError(
                        f"the high watermark of {key[1]} at broker {node.id} is {high_watermark};"
                        f" broker {member}, in the ISR, has durably"
                        f" {[entry[:2] for entry in other]}, the leader"
                        f" {[entry[:2] for entry in mine]}"
                    )

    # --- in the end ------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Everything that is up goes well for a little while."""
        for _ in range(self.rng.randint(1, 12)):
            self._turn(-1)
        if self.rng.random() < 0.5:
            self._produce()

    def heal(self) -> None:
        """Everybody is back, nothing is lost any more: all of it must be there, and work."""
        self.hold_alters = False
        self.behind.clear()
        self.cut.clear()
        while self.alters:
            self._carry_alter()
        for node in self.nodes.values():
            if node.core is None:
                self._start(node)
            node.contact = True
        for key in self.keys:
            replicas = self._partition(key).replicas
            if len(replicas) < len(BROKERS):
                self._add_all(key)
        for turn in range(600):
            self._turn(turn)
            if turn > 50 and self._settled():
                break
        else:
            raise BrokenPromiseError(f"nothing settles: {self._describe()}")
        for key in self.keys:
            leader = self.nodes[self._partition(key).leader]
            self._check_has_all(leader, key)
            end = leader.disk.end(key, durable=True)
            for node in self.nodes.values():
                self._check_has_all(node, key)
                if not _same(
                    node.disk.content(key, end, durable=True),
                    leader.disk.content(key, end, durable=True),
                ):
                    raise BrokenPromiseError(
                        f"broker {node.id} has another log of {key[1]} than its leader"
                    )

    def _add_all(self, key: PartitionKey) -> None:
        replicas = self._partition(key).replicas
        more = [b for b in BROKERS if b not in replicas]
        change = records_pb2.PartitionChangeRecord(
            partition_id=key[1],
            topic_id=key[0],
            replicas=records_pb2.IdList(ids=[*replicas, *more]),
        )
        self.controller.commit([record(change)])
        self._isr_moved()

    def _turn(self, turn: int) -> None:
        self.now += 0.05
        for wire in list(self.late):
            if not self.cut & {wire.leader, wire.follower}:
                self._end(wire)
        for node in self._alive():
            if node.epoch < 0:
                self._register(node)
            while node.applied < len(self.controller.log) - 1 and node.id not in self.behind:
                self._apply(node)
            if self._may_unfence(node):
                self.controller.unfence(node.id)
                self._isr_moved()
            self._stand(node)
            self.step(node, ev.Tick())
            while (token := node.disk.flush()) is not None:
                self.step(node, ev.Flushed(token))
        for _ in range(12):
            self._deliver()
            self._open_link()
        while self.alters and not self.hold_alters:
            self._carry_alter()
        while self.answers:
            sender, number, event = self.answers.pop(0)
            node = self.nodes[sender]
            if node.core is not None and node.altering == number:
                node.altering = None
                self.step(node, event)
        for node in self._alive():
            if node.altering is not None and not any(
                a.number == node.altering for a in self.alters
            ):
                node.altering = None
                self.step(
                    node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True)
                )
        if turn in (20, 40):
            for _ in range(4):
                self._produce()

    def _settled(self) -> bool:
        for key in self.keys:
            partition = self._partition(key)
            if partition.leader < 0 or len(partition.isr) < len(BROKERS):
                return False
            leader = self._leader(self.nodes[partition.leader], key)
            if leader is None or leader.high_watermark < leader.replica.log.end:
                return False
        return not self.waiting or all(node.core is not None for node in self.nodes.values())

    def _describe(self) -> str:
        said = []
        for key in self.keys:
            partition = self._partition(key)
            leader = (
                self._leader(self.nodes[partition.leader], key) if partition.leader > 0 else None
            )
            said.append(
                f"{key[1]}: {partition.isr} of {partition.replicas}, led by {partition.leader},"
                f" {leader and leader.high_watermark}"
            )
            if leader is not None:
                proposal = leader.isr.state.proposal
                ends = {id_: f.end_offset for id_, f in leader.isr.followers.items()}
                said.append(
                    f"proposal {proposal}, over {leader.isr.over}, followers at {ends} of"
                    f" {leader.replica.log.end}"
                )
        return "; ".join(said)


def _same(one: list[tuple[int, int, bytes]], other: list[tuple[int, int, bytes]]) -> bool:
    """Whether two logs have the same batches, where both have not dropped them: to their ends."""
    begin = max((log[0][0] for log in (one, other) if log), default=0)
    return [entry for entry in one if entry[0] >= begin] == [
        entry for entry in other if entry[0] >= begin
    ]


def _first_value(bytes_: bytes) -> str:
    (header,) = batch.headers(bytes_)
    return pb.DataRecord.FromString(batch.records(bytes_, header)[0].body).value.decode()


def _short(message: Any) -> str:
    return " ".join(str(message).split())[:300]


def run(seed: int, **options: Any) -> World:
    """One schedule; what it breaks is raised with the seed."""
    world = World(seed, **options)
    try:
        world.run()
    except BrokenPromiseError as error:
        raise BrokenPromiseError(f"seed {seed}: {error}") from None
    return world
