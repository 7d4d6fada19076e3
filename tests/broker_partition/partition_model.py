"""A small world around the replicas of three brokers: disks that lose what was not flushed, links
that break and reorder, brokers that crash, come back and are given new disks, metadata that arrives
late, and a controller that decides with the real rules.

One random schedule a seed. What must hold is checked as it happens; then everything is healed, and
must recover.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replica_kit import CLUSTER_ID

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
    """A promise of the replicas was broken."""


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
        """Log start offsets of visible (False) and of durable (True) records."""
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
    """Brokers, their disks and links, and a controller: carries out what cores ask for, and checks each
    promise when something moves. A driver says what happens.
    """

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
        """True if all records are, for the leader that looks now."""
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

    def _some(self) -> Node | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

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
        if (leader := self.leader_of(node, key)) is not None:
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
        holders = [
            node.id,
            *(m for m in self.isr_of(written.key) if self._kept_disk(written.key, m)),
        ]
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

    def _end(self, wire: Wire) -> None:
        self.late.remove(wire)
        leader = self.nodes[wire.leader]
        if leader.core is not None:
            self.step(leader, ev.SessionClosed(wire))

    def _apply(self, node: Node) -> None:
        node.applied += 1
        image, changes = self.controller.log[node.applied]
        self.step(node, ev.ImageMoved(image, changes if node.applied else None))
        self._stand(node)

    def _disk(self) -> Disk:
        self.disks += 1
        return Disk(self.disks)

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

    def _register(self, node: Node) -> None:
        self.numbers += 1
        node.epoch = self.controller.register(
            node.id, f"{node.id}-{node.incarnation}-{self.numbers}"
        )
        self.disk_of[node.epoch] = node.disk.number
        self.trace.append(f"{self.now:.3f} broker {node.id} registers: {node.epoch}")
        self._isr_moved()
        self._stand(node)

    def _partition(self, key: PartitionKey) -> Partition:
        found = self.controller.image.partitions[key]
        return found

    def isr_of(self, key: PartitionKey) -> tuple[int, ...]:
        return self._partition(key).isr

    def leader_of(self, node: Node, key: PartitionKey) -> Leader | None:
        replica = node.core._host.replicas.get(key) if node.core is not None else None
        return replica.role if replica is not None and isinstance(replica.role, Leader) else None

    def _isr_moved(self) -> None:
        for key in self.keys:
            isr = self.isr_of(key)
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
        """Note that no member of the ISR still has the disk with which it joined: acknowledged
        records may be gone, and nothing promised otherwise.
        """
        for key in self.keys:
            if not any(self._kept_disk(key, member) for member in self.isr_of(key)):
                for written in self.written.values():
                    written.excused = written.excused or (
                        written.key == key and written.acked_at >= 0
                    )

    def _check_leader(self, node: Node, key: PartitionKey, epoch: int) -> None:
        """Check that the leader of the newest epoch has every acknowledged record."""
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
            leader = self.leader_of(node, key)
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
        for member in self.isr_of(key):
            if member != node.id and self._kept_disk(key, member):
                other = self.nodes[member].disk.content(key, high_watermark, durable=True)
                if not same_batches(mine, other):
                    raise BrokenPromiseError(
                        f"the high watermark of {key[1]} at broker {node.id} is {high_watermark};"
                        f" broker {member}, in the ISR, has durably"
                        f" {[entry[:2] for entry in other]}, the leader"
                        f" {[entry[:2] for entry in mine]}"
                    )


def same_batches(one: list[tuple[int, int, bytes]], other: list[tuple[int, int, bytes]]) -> bool:
    """Return whether two logs have the same batches, where both have not dropped them: to their
    ends.
    """
    begin = max((log[0][0] for log in (one, other) if log), default=0)
    return [entry for entry in one if entry[0] >= begin] == [
        entry for entry in other if entry[0] >= begin
    ]


def _first_value(bytes_: bytes) -> str:
    (header,) = batch.headers(bytes_)
    return pb.DataRecord.FromString(batch.records(bytes_, header)[0].body).value.decode()
