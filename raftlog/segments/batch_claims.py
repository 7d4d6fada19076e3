"""What the manifest claims of the batches of a file, held against what is found in it: their chain
in a raw segment, and what the rows of a Parquet file say of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog import batch
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import Segment

_NAMES = ("first epoch", "last epoch", "lowest timestamp", "highest timestamp", "batches")


class _Claims(NamedTuple):
    """In the order of ``_NAMES``."""

    first_epoch: int
    last_epoch: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    batches: int


def _claimed(segment: Segment) -> _Claims:
    return _Claims(*(getattr(segment, name) for name in _Claims._fields))


def _hold(
    segment: Segment, names: Sequence[str], found: Sequence[int], claimed: Sequence[int]
) -> None:
    """What was found must be what is claimed. Raises CorruptExportError."""
    for name, here, said in zip(names, found, claimed, strict=True):
        if here != said:
            why = f"it has {name} {here}, and the manifest says {said}"
            raise corrupt(segment, segment.base_offset, why)


class Chain:
    """Offsets follow each other, epochs never go back, and the manifest says the same, and between
    which timestamps they lie.
    """

    def __init__(self, raw: Segment) -> None:
        self._raw = raw
        self._next, self._batches = raw.base_offset, 0
        self._epoch = raw.first_epoch
        self._times_ms = (0, 0)

    def take(self, header: batch.BatchHeader) -> None:
        """The next batch. Raises CorruptExportError."""
        if header.base_offset != self._next:
            raise self._broken(header, "offset", header.base_offset, self._next)
        if header.epoch < self._epoch or (not self._batches and header.epoch != self._epoch):
            raise self._broken(header, "epoch", header.epoch, self._epoch)
        low_ms, high_ms = self._times_ms if self._batches else (header.timestamp_ms,) * 2
        self._times_ms = min(low_ms, header.timestamp_ms), max(high_ms, header.timestamp_ms)
        self._next, self._batches = header.end_offset, self._batches + 1
        self._epoch = header.epoch

    def _broken(
        self, header: batch.BatchHeader, what: str, found: int, expected: int
    ) -> CorruptExportError:
        return corrupt(
            self._raw,
            self._next,
            f"the batch at offset {self._next} has {what} {found} after {expected}",
        )

    def finish(self) -> None:
        """That was all. Raises CorruptExportError."""
        raw = self._raw
        found = (
            self._next - 1,
            self._batches,
            self._next - raw.base_offset,
            self._epoch,
            *self._times_ms,
        )
        said = (
            raw.last_offset,
            raw.batches,
            raw.records,
            raw.last_epoch,
            raw.min_timestamp_ms,
            raw.max_timestamp_ms,
        )
        names = ("last offset", "batches", "records", *_NAMES[1:4])
        _hold(raw, names, found, said)


class RowClaims:
    """What the manifest says of a Parquet file's batches, held against its rows."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._epochs: tuple[int, int] | None = None
        self._times_ms, self._count = (-1, -1), 0

    def take(self, rows: pa.Table) -> None:
        """The next rows, as they follow in the file."""
        if not rows.num_rows:
            return
        first, last = (rows["epoch"][index].as_py() for index in (0, -1))
        low_ms, high_ms = pc.min_max(rows["timestamp_ms"]).as_py().values()
        if self._epochs is None:
            self._epochs, self._times_ms = (first, last), (low_ms, high_ms)
        self._epochs = self._epochs[0], last
        self._times_ms = min(low_ms, self._times_ms[0]), max(high_ms, self._times_ms[1])
        ends = pc.equal(rows["offset"], rows["batch_last_offset"])
        self._count += pc.sum(ends).as_py()

    def finish(self) -> None:
        """Those were all. Raises CorruptExportError."""
        one = self._segment
        found = _Claims(*(self._epochs or (-1, -1)), *self._times_ms, self._count)
        _hold(one, _NAMES, found, _claimed(one))


def require_same(bucket: Segment, records: Segment) -> None:
    """A bucket has no batches of its own: what is claimed of them is what is claimed of its
    range's. Raises CorruptExportError.
    """
    for name, said, known in zip(_NAMES, _claimed(bucket), _claimed(records), strict=True):
        if said != known:
            why = f"the manifest says {name} {said} of it, and {known} of {records.file}"
            raise corrupt(bucket, bucket.base_offset, why)


def corrupt(segment: Segment, offset: int, why: str) -> CorruptExportError:
    """A fault of a file, from ``offset`` on."""
    return CorruptExportError(
        f"{segment.describe()} is corrupt: {why}",
        file=segment.file,
        base_offset=offset,
        last_offset=segment.last_offset,
    )
