"""Conversion of Kafka's batches to raftlog's: same offsets, epochs and times, in raftlog's
encoding.

A metadata transaction (KIP-868) becomes one batch: images exist only at the ends of batches, so no
reader sees half of it. Records of an aborted transaction keep their offsets but have no effect. A
transaction that outlived its controller becomes several batches, because the record of the next
election, which is not part of it, lies in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from raftlog import batch
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.kafka.log_format import KafkaBatch, KafkaLogError, MalformedRecordError
from replay.kafka.mapping import Mapping, is_unknown, plain
from replay.kafka.records import KafkaRecord, control_record, metadata_record

_VOTERS = {"LeaderChangeMessage", "VotersRecord"}
_ENDS = {"EndTransactionRecord", "AbortTransactionRecord"}
MAX_TRANSACTION_RECORDS = 1_000_000
"""Maximum number of records kept of an open transaction. Kafka allows 10,000 records per request.
"""


class Counts:
    """Counters of the conversion, for its report."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()
        """Type name -> number of records."""
        self.unknown: Counter[str] = Counter()
        """Records and tagged fields from a newer Kafka."""
        self.aborted = 0
        """Number of records of aborted transactions."""
        self.later_ms = 0
        """Largest time in ms by which a leader's clock was behind its predecessor's. The affected
        batches get the time of the previous batch.
        """
        self.reordered = 0
        """Number of records of new partitions that were not sorted by partition number."""


class Converted(NamedTuple):
    """A batch in raftlog's encoding, with its header and records."""

    chunk: bytes
    header: batch.BatchHeader
    records: list[Record]


class _Run(NamedTuple):
    """Records that become one batch. ``source``: the last of Kafka's batches that they come
    from.
    """

    base_offset: int
    records: list[KafkaRecord]
    source: KafkaBatch
    aborted: bool = False


class _Open:
    """A transaction that is still open."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._runs: list[_Run] = []
        self._records = 0

    def add(self, one: KafkaRecord, offset: int, source: KafkaBatch) -> None:
        """Add the next record. Raises KafkaLogError if there are too many."""
        self._records += 1
        if self._records > MAX_TRANSACTION_RECORDS:
            raise KafkaLogError(
                f"the transaction that begins at offset {self.base_offset} exceeds"
                f" {MAX_TRANSACTION_RECORDS} records"
            )
        last = self._runs[-1] if self._runs else None
        if last is None or source.control or last.source.control:
            self._runs.append(_Run(offset, [one], source))
        else:
            last.records.append(one)
            self._runs[-1] = last._replace(source=source)

    def ended(self, *, aborted: bool) -> Iterator[_Run]:
        """Yield the ended transaction, as one batch if it had a single controller."""
        for run in self._runs:
            yield run._replace(aborted=aborted and not run.source.control)


class StateHeader(NamedTuple):
    """Position of a checkpoint's state: ``end_offset`` (exclusive), and the last record's epoch and
    time.
    """

    end_offset: int
    epoch: int
    timestamp_ms: int


class Conversion:
    """Converts batches in log order."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.mapping = Mapping()
        self.voters: list[int] = []
        """The latest voters in the log."""
        self._open: _Open | None = None
        self._last_ms = self._last_epoch = 0

    @property
    def open_transaction(self) -> int | None:
        """Base offset of the open transaction, or None."""
        return None if self._open is None else self._open.base_offset

    def convert(self, source: KafkaBatch) -> Iterator[Converted]:
        """Yield the batches that this one completes: none if it belongs to an open transaction.

        Raises KafkaLogError with the offset; the conversion is then unchanged.
        """
        return self._converted(source, decoded(source))

    def _converted(self, source: KafkaBatch, records: Sequence[KafkaRecord]) -> Iterator[Converted]:
        for run in self._runs(source, records):
            messages = [
                plain(one, aborted=True) if run.aborted else self.mapping.message(one)
                for one in run.records
            ]
            yield self._encode(run.base_offset, messages, run.source)

    def state(self, records: Iterable[KafkaRecord], header: StateHeader) -> Converted:
        """Return a checkpoint's records as one batch that ends at the checkpoint's offset. The
        batch of an empty state contains a NoOp record.

        Raises KafkaLogError if there are more records than offsets.
        """
        messages = _in_order([self.mapping.message(one) for one in records]) or [pb.NoOpRecord()]
        base_offset = header.end_offset - len(messages)
        if base_offset < 0:
            raise KafkaLogError(
                f"a snapshot that ends at offset {header.end_offset} has {len(messages)} records:"
                " more than there are offsets below it"
            )
        self._last_ms, self._last_epoch = header.timestamp_ms, header.epoch
        return _batch_of(messages, base_offset, header.epoch, header.timestamp_ms)

    def _runs(self, source: KafkaBatch, records: Sequence[KafkaRecord]) -> Iterator[_Run]:
        """Yield the runs of records that become one batch each."""
        run: list[KafkaRecord] = []
        first = offset = source.base_offset
        for one in records:
            self._count(one)
            if one.name == "BeginTransactionRecord" and self._open is None:
                if run:
                    yield _Run(first, run, source)
                run, self._open = [], _Open(offset)
            offset += 1
            if self._open is not None:
                self._open.add(one, offset - 1, source)
                if one.name in _ENDS:
                    yield from self._ended(one.name)
                    first = offset
                continue
            run.append(one)
            if source.control:
                # Each control record is a batch of its own, as in raftlog.
                yield _Run(first, run, source)
                run, first = [], offset
        if run:
            yield _Run(first, run, source)

    def _count(self, one: KafkaRecord) -> None:
        self.counts.records[one.name] += 1
        if one.name in _VOTERS:
            self.voters = sorted(each["voter_id"] for each in one.fields["voters"])
        unknown = is_unknown(one)
        if unknown:
            self.counts.unknown[unknown] += 1

    def _ended(self, by: str) -> Iterator[_Run]:
        assert self._open is not None
        ended, self._open = self._open, None
        for run in ended.ended(aborted=by != "EndTransactionRecord"):
            self.counts.aborted += len(run.records) if run.aborted else 0
            yield run

    def _encode(self, base_offset: int, messages: list[Any], source: KafkaBatch) -> Converted:
        if source.epoch < self._last_epoch:
            raise KafkaLogError(
                f"the batch at offset {source.base_offset} has epoch {source.epoch}, below the"
                f" previous epoch {self._last_epoch}"
            )
        self._last_epoch = source.epoch
        ordered = messages
        if len(messages) > 1:
            ordered = _in_order(messages)
            self.counts.reordered += sum(
                one is not other for one, other in zip(messages, ordered, strict=True)
            )
        timestamp_ms = max(source.max_timestamp_ms, self._last_ms)
        self.counts.later_ms = max(self.counts.later_ms, timestamp_ms - source.max_timestamp_ms)
        self._last_ms = timestamp_ms
        return _batch_of(ordered, base_offset, source.epoch, timestamp_ms, control=source.control)


def _batch_of(
    messages: list[Any], base_offset: int, epoch: int, timestamp_ms: int, *, control: bool = False
) -> Converted:
    records = [record(message) for message in messages]
    chunk = batch.encode(
        records, base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms, control=control
    )
    return Converted(chunk, next(batch.headers(chunk)), records)


def decoded(source: KafkaBatch) -> list[KafkaRecord]:
    """Return the records of a batch. Raises KafkaLogError with the offset."""
    records = []
    expected = source.base_offset
    for raw in source.records:
        if raw.offset != expected:
            raise KafkaLogError(f"the batch has offset {raw.offset} instead of {expected}")
        expected += 1
        try:
            records.append(
                control_record(raw.key, raw.value) if source.control else metadata_record(raw.value)
            )
        except MalformedRecordError as error:
            raise KafkaLogError(
                f"the record at offset {raw.offset} is malformed: {error}"
            ) from None
    if expected != source.last_offset + 1:
        raise KafkaLogError(
            f"the batch at offset {source.base_offset} lacks a record at offset {expected}"
        )
    return records


def _in_order(messages: list[Any]) -> list[Any]:
    """Return the messages with consecutive records of new partitions sorted by topic and number:
    raftlog requires that order within a batch, Kafka does not.
    """
    ordered: list[Any] = []
    for is_partition, run in groupby(messages, lambda one: isinstance(one, pb.PartitionRecord)):
        if not is_partition:
            ordered += run
            continue
        partitions = list(run)
        place = {one.topic_id: at for at, one in reversed(list(enumerate(partitions)))}
        ordered += sorted(partitions, key=lambda one: (place[one.topic_id], one.partition_id))
    return ordered
