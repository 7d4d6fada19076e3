"""Producers and consumers of partitions, end to end (I26).

* A record acknowledged by all is committed at that offset with that content, once.
* A refused or unsent record is never committed.
* A consumer receives each offset once, in order, without a gap; no offset ever has two records, and
  no shown record disappears.
* Its position is never out of range, except through retention.

After a partition was void (I24) earlier answers and shown records do not count.
"""

from dataclasses import dataclass, field

from raftlog import batch
from raftlog.client.consumer import Record, records_from
from raftlog.node.storage.partition_api import PartitionKey
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.committed_data import Committed, CommittedData
from simulation.checks.replica_logs import name_of


@dataclass(slots=True)
class _Sent:
    """A sent value. ``again``: its producer retries a write that may have been executed."""

    operation: Operation
    eras: dict[PartitionKey, int]
    places: list[tuple[PartitionKey, int, int]] = field(default_factory=list)


class DataClients(Checker):
    """Checker of I26."""

    def __init__(self, committed: CommittedData) -> None:
        self._committed = committed
        self.sent: dict[bytes, _Sent] = {}
        self.due: dict[tuple[str, PartitionKey], tuple[int, int]] = {}
        """(client, partition) -> (era, offset that the client must receive next)."""
        self.read = self.acknowledged = 0
        committed.listeners.append(self._is_committed)

    def _is_committed(self, key: PartitionKey, data: bytes) -> None:
        era = self._committed.partitions[key].era
        for record in records_from("", key[1], data, 0):
            sent = self.sent.get(record.value or b"")
            if sent is None:
                fail(f"I26: {name_of(key)} has {record.value!r} at {record.offset}, nobody sent it")
            operation = sent.operation
            if operation.outcome == "failed":
                fail(f"I26: {record.value!r}, refused with {operation.error}, is committed")
            if sent.places and not operation.mode and sent.places[-1][:2] == (key, era):
                fail(f"I26: {record.value!r}, sent once, is also at {sent.places[-1]}")
            sent.places.append((key, era, record.offset))

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "produce":
            eras = {key: committed.era for key, committed in self._committed.partitions.items()}
            self.sent[operation.value.encode()] = _Sent(operation, eras)

    def client_returned(self, operation: Operation) -> None:
        if operation.kind != "produce" or operation.response is None:
            if operation.kind == "produce" and operation.outcome == "failed":
                self._refused(operation)
            return
        key: PartitionKey = operation.response
        sent, committed = self.sent[operation.value.encode()], self._committed.partitions.get(key)
        if operation.acks != -1 or committed is None or committed.era != sent.eras.get(key, 0):
            return
        if any(base <= operation.record_offset < end for base, end in committed.excused):
            return
        self.acknowledged += 1
        if (key, committed.era, operation.record_offset) not in sent.places:
            fail(
                f"I26: {operation.client} was told that {operation.value} (number"
                f" {operation.number}) is at {operation.record_offset} of {name_of(key)}; it is"
                f" committed at {sent.places}"
            )

    def _refused(self, operation: Operation) -> None:
        sent = self.sent[operation.value.encode()]
        if sent.places:
            fail(f"I26: {operation.value}, refused with {operation.error}, is at {sent.places}")

    def consumed(self, client: str, topic_id: bytes, record: Record) -> None:
        key = topic_id, record.partition
        committed = self._committed.partitions[key]
        if committed.gone or record.leader_epoch < committed.floor_epoch:
            return
        self.read += 1
        era, wanted = self.due.get((client, key), (committed.era, record.offset))
        was_dropped = wanted < record.offset and wanted < committed.dropped
        if era == committed.era and wanted != record.offset and not was_dropped:
            fail(f"I26: {client} is given {record.offset} of {name_of(key)}, {wanted} is next")
        self.due[client, key] = committed.era, record.offset + 1
        found = _value_at(committed, record.offset)
        if found != (record.leader_epoch, record.value):
            fail(
                f"I26: {client} is given {record.value!r}, leader epoch {record.leader_epoch}, at"
                f" {record.offset} of {name_of(key)}; committed is {found}"
            )

    def consumer_out_of_range(self, client: str) -> None:
        # Where it has not read anything it has asked where to begin, before that was dropped.
        was_dropped = any(
            committed.dropped > self.due.get((client, key), (0, 0))[1]
            for key, committed in self._committed.partitions.items()
        )
        if not self._committed.voided and not was_dropped:
            fail(f"I26: {client} reads on, and its position is out of range")


def _value_at(committed: Committed, offset: int) -> tuple[int, bytes | None] | None:
    index = committed.log.index_of(offset)
    if index < 0:
        return None
    data = committed.log.batches[index]
    header = next(batch.headers(data, verify=False))
    # A batch cut out of its chunk says where it begins itself.
    return next(
        (header.epoch, r.value) for r in records_from("", 0, data, offset) if r.offset == offset
    )
