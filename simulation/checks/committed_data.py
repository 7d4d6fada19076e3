"""Committed records of partitions (I24): nothing acknowledged is lost while one member of the ISR,
or an eligible leader replica (KIP-966), keeps its disk.

A record is *committed* when its leader says so: in an answer with acks=all, or as the high
watermark. From then on

* it is on the disk of every *holder* (ISR members and eligible leader replicas as committed by the
  controllers; without any, the last known leader), also when one is added;
* it never changes: all leaders have it, the next leader has all of them, no replica truncates them;
* with acks=all it is on ``min.insync.replicas`` disks, with acks=1 on the leader's.

A holder is *sound* while the disk that it was registered with is there and undamaged. When the last
sound holder goes, or another leader is elected, all records committed by then are *void*: they may
be lost, and the partition begins anew with the next leader epoch. That is counted.
"""

from dataclasses import dataclass, field
from typing import Any

from broker.partition import events as ev
from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.metadata.records import Record, RecordType
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2
from simulation.checks.api import BrokerView, Checker, fail, present
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.checks.replica_logs import ReplicaLog, ReplicaLogs, name_of
from simulation.twins.partition_disk import SimPartitionDisk

ALL, LEADER = -1, 1
RECOVERING = 1
TOPIC = 2
MIN_ISR = "min.insync.replicas"


@dataclass(slots=True)
class Committed:
    """Committed records of one partition. ``era`` counts how often they became void."""

    log: ReplicaLog = field(default_factory=ReplicaLog)
    floor_epoch: int = 0
    """Lowest leader epoch that counts; answers of leaders of lower ones are ignored."""
    era: int = 0
    holders: tuple[int, ...] = ()
    """The ISR and the eligible leader replicas, else the last known leader."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> broker id, as the controllers have committed it."""
    ends: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> the end of the records that its leader was the first to call committed."""
    gone: bool = False
    dropped: int = 0
    excused: list[tuple[int, int]] = field(default_factory=list)
    """Offset ranges acknowledged under leader epochs below ``floor_epoch``."""


class CommittedData(Checker):
    """Checker of I24."""

    def __init__(self, ledger: Ledger, logs: ReplicaLogs) -> None:
        self._golden = ledger.golden
        self._logs = logs
        self.partitions: dict[PartitionKey, Committed] = {}
        self.listeners: list[Any] = []
        """Called with (key, batch) for each batch that becomes committed."""
        self._directories: dict[int, str] = {}
        self.lost_disks: dict[str, None] = {}
        self.asked: dict[str, dict[int, tuple[Any, Any]]] = {}
        """Broker's host -> requests of producers, by the identity of the object for the
        response.
        """
        self.claims = self.acknowledged = self.voided = 0
        ledger.golden.listeners.append(self._committed)

    def soundness(self, broker_id: int) -> SimPartitionDisk | None:
        """Return the disk of a broker's newest registration, if it is there and undamaged."""
        directory = self._directories.get(broker_id, "")
        if directory in self.lost_disks:
            return None
        disks = (host.disk for host in self.world.brokers if host.disk is not None)
        return next((disk for disk in disks if disk.directory_id == directory), None)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        touched: dict[PartitionKey, None] = {}
        moved: dict[int, None] = {}
        for record in records:
            message = record.message
            if record.type in (RecordType.PARTITION, RecordType.PARTITION_CHANGE):
                touched[message.topic_id, message.partition_id] = None
            elif record.type == RecordType.REGISTER_BROKER:
                directory = message.process.directory_id
                if self._directories.get(message.broker_id) != directory:
                    self._directories[message.broker_id] = directory
                    moved[message.broker_id] = None
            elif record.type == RecordType.REMOVE_TOPIC:
                for key in [key for key in self.partitions if key[0] == message.topic_id]:
                    self.partitions[key].gone = True
        for key in touched:
            self._changed(key)
        if moved:
            for key, committed in self.partitions.items():
                # Of a log that was taken back: with another disk it has nothing.
                if committed.gone or moved.keys().isdisjoint(committed.holders):
                    continue
                if set(committed.holders) <= moved.keys():
                    self._void(key, committed)
                else:
                    self._check_holders(key, committed)

    def _changed(self, key: PartitionKey) -> None:
        partition = self._golden.partition(key)
        if partition is None:
            return
        committed = self.partitions.setdefault(key, Committed())
        before = committed.holders
        committed.holders = (*partition.isr, *partition.elr) or partition.last_known_elr
        committed.leaders[partition.leader_epoch] = partition.leader
        unclean = partition.leader_recovery_state == RECOVERING and partition.leader not in before
        if before and unclean:
            # An unclean leader: what the holders before it had says nothing about its log.
            self._void(key, committed, partition.leader_epoch)
        elif committed.holders != before:
            self._check_holders(key, committed)

    def _check_holders(self, key: PartitionKey, committed: Committed) -> None:
        members = [(member, self.soundness(member)) for member in committed.holders]
        if not any(disk is not None for _, disk in members):
            self._void(key, committed)
            return
        self._check_durable(key, committed, committed.log.end, "is a holder")

    def _void(
        self, key: PartitionKey, committed: Committed, floor_epoch: int | None = None
    ) -> None:
        partition = self._golden.partition(key)
        committed.floor_epoch = floor_epoch if floor_epoch is not None else (
            partition.leader_epoch + 1 if partition is not None else committed.floor_epoch
        )  # fmt: skip
        committed.log = ReplicaLog()
        committed.ends = {}
        committed.era += 1
        self.voided += 1

    def broker_disk_lost(self, host: BrokerView, directory_id: str) -> None:
        self.lost_disks[directory_id] = None
        for key, committed in self.partitions.items():
            if not committed.gone and not any(
                self.soundness(member) for member in committed.holders
            ):
                self._void(key, committed)

    def _check_durable(self, key: PartitionKey, committed: Committed, end: int, why: str) -> None:
        """Require that every sound holder has all records below ``end`` on its disk."""
        index = committed.log.index_at(end)
        if index < 0:
            return  # Nothing, or nothing that is known.
        epoch = committed.log.epochs[index]
        for member in committed.holders:
            disk = self.soundness(member)
            if disk is not None and (found := epoch_on(disk, key, end)) != epoch:
                fail(
                    f"I24: {name_of(key)} is committed up to {end}, there of leader epoch {epoch};"
                    f" broker {member} {why}, and on its disk {disk.directory_id} that is"
                    f" {'missing' if found is None else f'of leader epoch {found}'}"
                )

    def broker_started(self, host: BrokerView) -> None:
        self.asked[host.name] = {}

    def data_step(self, host: BrokerView, event: ev.Event, effects: Any, now: float) -> None:
        if type(event) is ev.ProduceReceived:
            self.asked[host.name][id(event.reply_to)] = event.reply_to, event.request
        for effect in effects:
            kind = type(effect)
            if kind is ev.AnswerProduce:
                _, request = self.asked[host.name].pop(id(effect.reply_to))
                if request.acks in (ALL, LEADER):
                    self._acknowledged(host, request, effect.response)
            elif kind is ev.AnswerFetch or kind is ev.AnswerReplicaFetch:
                for result in effect.response.partitions:
                    failed = result.error_code or result_diverges(result)
                    if not failed and result.high_watermark >= 0:
                        key = result.topic_id, result.partition_index
                        self.claim(host, key, leader_epoch(host, key), result.high_watermark)
            elif kind is ev.Note and effect.event == "leads":
                fields = effect.fields
                key = bytes.fromhex(fields["partition"]), fields["index"]
                self._leads(host, key, fields["epoch"])
            elif kind is ev.SendReplicaFetch:
                self._acknowledges(host, effect.request)
            elif kind is ev.Delete:
                self._deleted(host, effect.key)
            elif kind is ev.Truncate:
                self._truncated(host, effect.key, effect.end_offset)
            elif kind is ev.AdvanceStart:
                self._start_moves(host, effect.key, effect.start_offset)
            elif kind is ev.Reset:
                self._begins_anew(host, effect.key, effect.start_offset)

    def _acknowledges(self, host: BrokerView, request: Any) -> None:
        """Require that a follower has all records below its fetch offset on its disk."""
        disk = present(host.disk)
        if disk.directory_id in self.lost_disks:
            return  # Damaged since it was written: what it holds can't be told from here.
        for named in request.partitions:
            key, end = (named.topic_id, named.partition_index), named.fetch_offset
            if named.last_fetched_epoch < 0 and start_on(disk, key) == end:
                continue  # It has nothing, and begins there.
            if end and epoch_on(disk, key, end) != named.last_fetched_epoch:
                fail(f"I24: {host.name} fetches {name_of(key)} from {end}: not on its disk")

    def _acknowledged(self, host: BrokerView, request: Any, response: Any) -> None:
        for asked, result in zip(request.partitions, response.partitions, strict=True):
            if result.error_code:
                continue
            self.acknowledged += 1
            key = asked.topic_id, asked.partition_index
            end = result.base_offset + len(asked.records)
            log = self._logs.log(host, key)
            index = log.index_at(end)
            if (index < 0 or log.bases[index] != result.base_offset) and self._was_so(
                host, request, key, end
            ):
                continue
            if index < 0 or log.bases[index] != result.base_offset:
                fail(f"I24: {host.name} acknowledges {name_of(key)} up to {end}: not there")
            epoch = log.epochs[index]
            if self._was_dropped(host, request, key, end):
                continue
            damaged = host.disk is not None and host.disk.directory_id in self.lost_disks
            if host.disk is None or (not damaged and epoch_on(host.disk, key, end) != epoch):
                fail(f"I24: {host.name} acknowledges {name_of(key)} up to {end}: not on its disk")
            committed = self.partitions.get(key)
            if committed is not None and epoch < committed.floor_epoch:
                committed.excused.append((result.base_offset, end))
            elif request.acks == ALL:
                self.claim(host, key, epoch, end)
                self._check_copies(host, key, end, epoch)

    def _was_so(self, host: BrokerView, request: Any, key: PartitionKey, end: int) -> bool:
        """Return whether a result may be outdated because it waited for other partitions of the
        request. Records that only followers have count as committed by them.
        """
        committed = self.partitions.get(key)
        if len(request.partitions) == 1 or committed is None:
            return False
        if request.acks == LEADER or committed.gone or committed.log.index_at(end) >= 0:
            return True
        # Followers had it, and the replica went before it told anybody that it was committed.
        for other in self.world.brokers:
            log = self._logs.log(other, key)
            if other is not host and (index := log.index_at(end)) >= 0:
                self.claim(other, key, log.epochs[index], end)
                return True
        return False

    def _was_dropped(self, host: BrokerView, request: Any, key: PartitionKey, end: int) -> bool:
        """Return whether retention has dropped the records of a result that waited for other
        partitions.
        """
        durable = host.disk.durable.get(key) if host.disk is not None else None
        return len(request.partitions) > 1 and durable is not None and end <= durable.start

    def _check_copies(self, host: BrokerView, key: PartitionKey, end: int, epoch: int) -> None:
        """Require the record on as many disks as min.insync.replicas demands."""
        # The broker goes by its own image: replicas that are being added since are none to it.
        partition = present(host.service).image.partitions.get(key)
        committed = self.partitions[key]
        if partition is None or committed.gone or epoch < committed.floor_epoch:
            return
        topic = self._golden.topic_name(key[0])
        replicas = len(partition.replicas) - len(partition.adding_replicas)
        wanted = min(
            int(self._golden.config(TOPIC, topic, MIN_ISR, self._golden.end) or 1), replicas
        )
        found = [other.disk for other in self.world.brokers if other.disk is not None]
        disks = [disk for disk in found if disk.directory_id not in self.lost_disks]
        copies = sum(epoch_on(disk, key, end) == epoch for disk in disks)
        if copies + len(self.lost_disks) < wanted:
            fail(f"I24: {host.name} acknowledges {name_of(key)} {end}: {copies} of {wanted} copies")

    def claim(self, host: BrokerView, key: PartitionKey, epoch: int, end: int) -> None:
        """Note that a leader reports everything below ``end`` as committed. Raises
        CheckFailedError.
        """
        committed = self.partitions.get(key)
        if committed is None or committed.gone or epoch < committed.floor_epoch:
            return
        self.claims += 1
        own, log = self._logs.log(host, key), committed.log
        if not log.bases and own.begin > log.begin:
            # Nothing counts from before; what this leader has dropped is not known.
            log = committed.log = ReplicaLog(own.begin, own.before)
        what = f"I24: {host.name} of epoch {epoch} says that {name_of(key)} is committed to {end}"
        below = min(end, log.end)
        if own.chain_at(end) is None:
            fail(f"{what}: its own log ends at {own.end}, or there inside a batch")
        if own.chain_at(below) != log.chain_at(below):
            fail(f"{what}: what was committed before below {below} was something else")
        if end <= log.end:
            return
        columns: tuple[list[Any], ...] = own.bases, own.ends, own.epochs, own.batches, own.chains
        for index in range(own.index_at(log.end) + 1, own.index_at(end) + 1):
            log.append(*(column[index] for column in columns))
            for listener in self.listeners:
                listener(key, own.batches[index])
        committed.ends[epoch] = end
        self._check_durable(
            key, committed, end, f"is in the ISR {committed.holders}, as {host.name} says so"
        )

    def _leads(self, host: BrokerView, key: PartitionKey, epoch: int) -> None:
        committed = self.partitions.get(key)
        if committed is None or committed.gone:
            return
        if committed.leaders.get(epoch) != host.id:
            fail(f"I24: {host.name} leads {name_of(key)} in {epoch}, which is not its own")
        # What a later leader has committed who comes late to an epoch need not have: a broker that
        # slept over its whole epoch begins it.
        end = max((end for of, end in committed.ends.items() if of <= epoch), default=0)
        if epoch >= committed.floor_epoch and self._logs.log(host, key).chain_at(
            end
        ) != committed.log.chain_at(end):
            fail(f"I24: {host.name} leads {name_of(key)} in {epoch} without committed {end}")

    def _start_moves(self, host: BrokerView, key: PartitionKey, start: int) -> None:
        committed = self.partitions.get(key)
        if committed is None or committed.gone:
            return
        replica = present(present(host.service).data).replicas.describe(key)
        if replica is None or replica.leader_epoch < 0:
            if start > committed.dropped:
                fail(f"I24: {host.name} drops {name_of(key)} to {start}, above its leaders")
            return
        if start >= replica.high_watermark:
            fail(f"I24: {host.name} drops {name_of(key)} to {start} of {replica.high_watermark}")
        self.claim(host, key, replica.leader_epoch, replica.high_watermark)
        committed.dropped = max(committed.dropped, start)

    def _begins_anew(self, host: BrokerView, key: PartitionKey, start: int) -> None:
        """Require that a follower that empties its log has nothing from its leader's start on."""
        committed = self.partitions.get(key)
        if committed is None or committed.gone:
            return
        if start > committed.dropped:
            fail(f"I24: {host.name} empties {name_of(key)} at {start}, above {committed.dropped}")
        chunks = present(host.disk).live.get(key)
        for _, chunk in chunks.scan(start) if chunks is not None else ():
            if any(header.end_offset > start for header in _headers(chunk)):
                fail(f"I24: {host.name} empties {name_of(key)}, with records behind {start}")

    def _deleted(self, host: BrokerView, key: PartitionKey) -> None:
        committed = self.partitions.get(key)
        partition = self._golden.partition(key)
        if committed is None or committed.gone or partition is None or host.id not in partition.isr:
            return
        disk = self.soundness(host.id)
        # Elected uncleanly, it may first do what was decided before, as it lags behind. Nothing is
        # committed then, and nothing is lost.
        if disk is host.disk and committed.log.end:
            fail(f"I24: {host.name} deletes {name_of(key)}, and is in its ISR {committed.holders}")

    def _truncated(self, host: BrokerView, key: PartitionKey, end: int) -> None:
        """Require that a truncation removes no committed record. The disk still has the old
        contents.
        """
        committed = self.partitions.get(key)
        if committed is None or committed.gone or host.disk is None:
            return
        # What a leader has dropped is nobody's: a log that ends where its begins may be cut there.
        end = max(end, committed.dropped)
        if end >= committed.log.end:
            return
        index = committed.log.index_of(end)
        if index < 0:
            return
        chunks = host.disk.live.get(key)
        for base, chunk in chunks.scan(end) if chunks is not None else ():
            if any(
                header.base_offset == committed.log.bases[index] == end
                and header.epoch == committed.log.epochs[index]
                for header in _headers(chunk)
            ):
                fail(f"I24: {host.name} cuts {name_of(key)}, committed there, at {end}")
            if base > end:
                break


def _headers(chunk: bytes) -> list[batch.BatchHeader]:
    """Return a chunk's batch headers; none if a bit is flipped, which the broker detects."""
    try:
        return list(batch.headers(chunk, verify=False))
    except CorruptLogError:
        return []


def result_diverges(result: Any) -> bool:
    return isinstance(result, data_pb2.ReplicaFetchPartitionResult) and result.HasField(
        "diverging_epoch"
    )


def leader_epoch(host: BrokerView, key: PartitionKey) -> int:
    """Return the leader epoch in which a broker leads a partition; -1 if it does not."""
    replica = present(present(host.service).data).replicas.describe(key)
    return replica.leader_epoch if replica is not None else -1


def start_on(disk: SimPartitionDisk, key: PartitionKey) -> int:
    """Return the start offset of a replica without durable records; -1 if it has records."""
    chunks = disk.durable.get(key)
    if chunks is None:
        return 0
    return -1 if chunks.bases else chunks.start


def epoch_on(disk: SimPartitionDisk, key: PartitionKey, end: int) -> int | None:
    """Return the leader epoch of the durable batch with the record before ``end``; else None."""
    chunks = disk.durable.get(key)
    if chunks is None:
        return None
    for _, chunk in chunks.scan(end - 1):
        for header in batch.headers(chunk, verify=False):
            if header.base_offset <= end - 1 < header.end_offset:
                return header.epoch
        break
    return None
