"""When to write a progress record: LAO, high watermark and applied offsets in the log itself, so
that history has them too.

What is recorded was known when it was proposed, and LAO never goes back: so from the committed log
alone it is a true lower bound at the record's offset and ever after, on any node and offline.

Why: docs/decisions/009-lao-membership.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from raftlog.metadata.records import Record, RecordType
from raftlog.wire.records.v1 import records_pb2 as pb

_QUIET_TYPES = frozenset((RecordType.PROGRESS, RecordType.NO_OP))


class ProgressPolicy:
    """Decides for one controller epoch.

    The state changes only when what was decided has been proposed.
    """

    def __init__(self, interval_s: float, observed_end: int = 0) -> None:
        """``interval_s``: the least time between two progress records."""
        self._interval_s = interval_s
        self.observed_end = observed_end
        """The offset after the last record that it knows of."""
        self._due = 0.0
        self._recorded_applied: dict[int, tuple[int, int]] = {}
        self._news: deque[tuple[int, int]] = deque()
        """[first, end) of runs of batches above the recorded LAO that hold more than progress and
        no-ops.
        """

    def observe_proposed(self, records: Sequence[Record], base_offset: int) -> None:
        """One batch of the inherited tail or of this controller's own."""
        if not all(record.type in _QUIET_TYPES for record in records):
            self.observe_news(len(records), base_offset)

    def observe_news(self, count: int, base_offset: int) -> None:
        """So many records, not all of them progress and no-ops."""
        end = base_offset + count
        if self._news and self._news[-1][1] == base_offset:
            self._news[-1] = (self._news[-1][0], end)
        else:
            self._news.append((base_offset, end))

    def next_due(self, lao: int) -> float | None:
        """When ``decide`` has something to write, at the given LAO (now, if that is past); None:
        nothing before LAO moves.
        """
        return self._due if self._passed_news(lao) else None

    def decide(
        self, lao: int, high_watermark: int, applied: Iterable[tuple[int, int, int]], now: float
    ) -> pb.ProgressRecord | None:
        """The record to propose now, if any.

        ``applied``: (broker id, broker epoch, applied offset) of all that reported.

        Only when LAO has passed a record that is neither progress nor no-op: else the record would
        cause the acknowledgement that causes the next record, for ever. Names only the brokers that
        changed since the last record of this epoch.
        """
        if now < self._due or not self._passed_news(lao):
            return None
        changed = [
            pb.AppliedOffset(broker_id=broker_id, broker_epoch=epoch, applied_offset=offset)
            for broker_id, epoch, offset in applied
            if self._recorded_applied.get(broker_id) != (epoch, offset)
        ]
        return pb.ProgressRecord(
            lowest_acknowledged_offset=lao, high_watermark=high_watermark, applied=changed
        )

    def proposed(self, message: pb.ProgressRecord, now: float) -> None:
        """A record made by ``decide`` is in the log."""
        self._due = now + self._interval_s
        for entry in message.applied:
            self._recorded_applied[entry.broker_id] = (entry.broker_epoch, entry.applied_offset)
        recorded = message.lowest_acknowledged_offset
        while self._news and self._news[0][0] <= recorded:
            _, end = self._news.popleft()
            if end > recorded + 1:
                self._news.appendleft((recorded + 1, end))

    def _passed_news(self, lao: int) -> bool:
        return bool(self._news) and self._news[0][0] <= lao
