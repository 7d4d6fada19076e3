"""A naive reference for the jobs' figures, record by record from the whole image: the state after
each record lasts until the next one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, parse

Key = tuple[str, int]
"""A partition: its topic's id, and its number."""


def messages(chunks: Iterable[bytes]) -> Iterator[tuple[int, RecordType, Any, batch.BatchHeader]]:
    """Yield offset, type, message, and the header of its batch."""
    for data in chunks:
        for header in batch.headers(data):
            for index, record in enumerate(batch.records(data, header)):
                yield header.base_offset + index, RecordType(record.type), record, header


class Reference:
    """The figures of a log, given as batches."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.life_ms = 0
        self.leaderless_ms: Counter[Key] = Counter()
        self.short_ms: Counter[Key] = Counter()
        self.outages: Counter[Key] = Counter()
        self.levels: dict[int, tuple[int, int]] = {}
        """Time -> partitions without a leader, and with short ISRs, after all of that time."""
        self.waited_ms: list[int] = []
        self.waiting = 0
        self._draft = ImageBuilder(Image())
        self._waiting: list[tuple[int, int]] = []
        last_ms = None
        for offset, type_, record, header in messages(chunks):
            if last_ms is not None:
                self._pass(header.timestamp_ms - last_ms)
            last_ms = header.timestamp_ms
            self._take(offset, type_, parse(record), record, header)
            self.levels[last_ms] = self._level()
        self.waiting = len(self._waiting)

    def _pass(self, ms: int) -> None:
        for partition in self._all():
            key = partition.topic_id.hex(), partition.index
            self.life_ms += ms
            self.leaderless_ms[key] += ms * (partition.leader < 0)
            self.short_ms[key] += ms * (len(partition.isr) < len(partition.replicas))

    def _all(self) -> list[Any]:
        return list(self._draft.snapshot().partitions.values())

    def _level(self) -> tuple[int, int]:
        every = self._all()
        return (
            sum(each.leader < 0 for each in every),
            sum(len(each.isr) < len(each.replicas) for each in every),
        )

    def _take(
        self, offset: int, type_: RecordType, message: Any, record: Any, header: batch.BatchHeader
    ) -> None:
        before = self._partition(type_, message)
        apply(self._draft, record.type, message, offset, header.epoch)
        if before is not None:
            self.outages[before.topic_id.hex(), before.index] += (
                before.leader >= 0 > self._partition(type_, message).leader
            )
        elif type_ == RecordType.PARTITION and message.leader < 0:
            self.outages[message.topic_id.hex(), message.partition_id] += 1
        if type_ == RecordType.PROGRESS:
            lao = message.lowest_acknowledged_offset
            covered = [ms for at, ms in self._waiting if at <= lao]
            self.waited_ms += [header.timestamp_ms - ms for ms in covered]
            self._waiting = [each for each in self._waiting if each[0] > lao]
        elif type_ != RecordType.NO_OP:
            self._waiting.append((offset, header.timestamp_ms))

    def _partition(self, type_: RecordType, message: Any) -> Any:
        if type_ != RecordType.PARTITION_CHANGE:
            return None
        return self._draft.partitions[message.topic_id, message.partition_id]
