"""Checks of one range of offsets: its raw segment, its Parquet files and its buckets are compared
with each other, with the manifest and with the rules of a log.

Every batch of the raw segment is decoded again (its CRC32C, and that offsets, epochs and timestamps
continue the chain), and the resulting rows are compared with the Parquet file, column by column.
Memory: a few thousand rows of each. Faults are values, not exceptions, as one fault must not hide
the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog import batch
from raftlog.errors import CorruptLogError, RaftlogError, WrongDataError
from raftlog.segments import files
from raftlog.segments.columns import SCHEMA, RowBuffer, feature_levels, odd_columns
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.files import Place, open_place
from raftlog.segments.manifest import RAW, RECORDS, Manifest, Segment
from raftlog.segments.parquet_files import (
    ColumnStatistics,
    RowGroupStatistics,
    buckets_of_range,
    identity_of,
    rows_by_bucket,
    rows_of,
)
from raftlog.segments.raw import corrupt, foreign, read_headed, read_header, reading, says_content


class RecordFacts(msgspec.Struct, frozen=True):
    """Facts about the records of a file.

    ``levels``: the last level set for a feature, 0 if removed. ``own``: the first offset of a
    record that only raftlog's log can have, or -1. ``imported``: the first offset of a record that
    only another system's log can have, or -1. ``silent``: for each file and each column that it
    lacks, the first offset at which the log has a value for the column.
    """

    levels: dict[str, int] = {}
    own: int = -1
    imported: int = -1
    silent: dict[str, dict[str, int]] = {}

    def with_silent(self, other: RecordFacts) -> RecordFacts:
        """Return these facts with the missing columns of the range's other files added."""
        return msgspec.structs.replace(self, silent=self.silent | other.silent)


class FactCollector:
    """A collector of record facts, slice by slice."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._own = self._imported = -1
        self._silent: dict[str, dict[str, int]] = {}

    def take(self, rows: pa.Table) -> pa.Table:
        """Add the next rows, as the raw batches define them, and return them."""
        self._levels.update(feature_levels(rows))
        if self._own < 0:
            self._own = _first(rows, _is_own(rows))
        if self._imported < 0:
            self._imported = _first(rows, pc.is_valid(rows["imported_name"]))
        return rows

    def lacks(self, file: str, column: str, offset: int) -> None:
        """Record that a file lacks a column for which the log has a value at an offset."""
        self._silent.setdefault(file, {}).setdefault(column, offset)

    def facts(self) -> RecordFacts:
        """Return the facts about the rows so far."""
        return RecordFacts(self._levels, self._own, self._imported, self._silent)


def _is_own(rows: pa.Table) -> Any:
    """Return which rows have a principal, an exactly-once client or progress, which no other
    system's log has.
    """
    named = pc.or_(pc.not_equal(rows["principal"], ""), pc.greater(rows["client_id"], 0))
    return pc.or_(named, pc.is_valid(rows["high_watermark"]))


def _first(rows: pa.Table, chosen: Any) -> int:
    at = pc.index(chosen, value=True).as_py()
    return -1 if at < 0 else int(rows["offset"][at].as_py())


_NAMES = ("first epoch", "last epoch", "lowest timestamp", "highest timestamp", "batches")


class _Claims(NamedTuple):
    """Claimed values in the order of ``_NAMES``."""

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
    """Require that the found values equal the claimed ones. Raises CorruptExportError."""
    for name, here, said in zip(names, found, claimed, strict=True):
        if here != said:
            why = f"expected {name} {said}, found {here}"
            raise corrupt_at(segment, segment.base_offset, why)


class Chain:
    """A check of the chain of batches: offsets are contiguous, epochs never decrease, and both
    match the manifest, as do the bounds of the timestamps.
    """

    def __init__(self, raw: Segment) -> None:
        self._raw = raw
        self._next, self._batches = raw.base_offset, 0
        self._epoch = raw.first_epoch
        self._times_ms = (0, 0)

    def take(self, header: batch.BatchHeader) -> None:
        """Check the next batch. Raises CorruptExportError."""
        if header.base_offset != self._next:
            raise self._broken(
                f"expected a batch at offset {self._next}, found {header.base_offset}"
            )
        if header.epoch < self._epoch or (not self._batches and header.epoch != self._epoch):
            raise self._broken(
                f"the batch at offset {self._next} has epoch {header.epoch} after epoch"
                f" {self._epoch}"
            )
        low_ms, high_ms = self._times_ms if self._batches else (header.timestamp_ms,) * 2
        self._times_ms = min(low_ms, header.timestamp_ms), max(high_ms, header.timestamp_ms)
        self._next, self._batches = header.end_offset, self._batches + 1
        self._epoch = header.epoch

    def _broken(self, why: str) -> CorruptExportError:
        return corrupt_at(self._raw, self._next, why)

    def finish(self) -> None:
        """Check the end of the segment. Raises CorruptExportError."""
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
    """The manifest's claims about a Parquet file's batches, for a comparison with its rows."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._epochs: tuple[int, int] | None = None
        self._times_ms, self._count = (-1, -1), 0

    def take(self, rows: pa.Table) -> None:
        """Add the next rows, in the file's order."""
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
        """Check the claims after the last row. Raises CorruptExportError."""
        one = self._segment
        found = _Claims(*(self._epochs or (-1, -1)), *self._times_ms, self._count)
        _hold(one, _NAMES, found, _claimed(one))


def require_same(bucket: Segment, records: Segment) -> None:
    """Require that the claims about a bucket's batches equal its range's, as a bucket has no
    batches of its own. Raises CorruptExportError.
    """
    for name, said, known in zip(_NAMES, _claimed(bucket), _claimed(records), strict=True):
        if said != known:
            why = f"the manifest claims {name} {said} for it, but {known} for {records.file}"
            raise corrupt_at(bucket, bucket.base_offset, why)


def corrupt_at(segment: Segment, offset: int, why: str) -> CorruptExportError:
    """Return the error for a file with a fault from ``offset`` onwards."""
    return CorruptExportError(
        f"{segment.describe()} is corrupt: {why}",
        file=segment.file,
        base_offset=offset,
        last_offset=segment.last_offset,
    )


ROWS = 16_384
"""Approximate number of rows that are compared at a time."""


class RangeFacts(NamedTuple):
    """The contents of a raw segment. ``ends``: for each requested offset at which a batch ends,
    that batch's epoch.
    """

    batches: int
    records: int
    ends: dict[int, int]
    record_facts: RecordFacts


def check_forms(
    place: Place, raw: Segment, records: Sequence[Segment], offsets: Collection[int] = ()
) -> RangeFacts:
    """Check one raw segment, and the Parquet files that cover its offsets.

    ``offsets``: the offsets whose epochs are requested. Raises CorruptExportError for the first
    fault, with its file and offsets, the expected and the found value. The files are assumed to
    have the manifest's hashes: see ``check_segment``.
    """
    asked, ends = frozenset(offsets), {}
    collector = FactCollector()
    rows, written = RowBuffer(), _ParquetRows(place, raw, records, collector)
    chain = Chain(raw)
    for chunk, header in read_headed(place, raw):
        chain.take(header)
        rows.add(chunk, header)
        if header.last_offset in asked:
            ends[header.last_offset] = header.epoch
        if rows.rows >= ROWS:
            written.require(collector.take(rows.take()))
    if rows.rows:
        written.require(collector.take(rows.take()))
    chain.finish()
    written.finish()
    return RangeFacts(raw.batches, raw.records, ends, collector.facts())


def check_buckets(place: Place, records: Segment, buckets: Sequence[Segment]) -> RecordFacts:
    """Check the buckets of a range against its records, row by row in all columns. Return the
    columns that the buckets lack, and no other facts.

    Raises like ``check_forms``.
    """
    for one in buckets:
        require_same(one, records)
    collector = FactCollector()
    written = [_ParquetRows(place, records, [one], collector) for one in buckets]
    for table in read_rows(place, records):
        for rows, expected in zip(written, rows_by_bucket(table, len(buckets)), strict=True):
            rows.require(_complete(expected))
    for rows in written:
        rows.finish()
    return collector.facts()


def _complete(rows: pa.Table) -> pa.Table:
    """Return the rows, with nulls in the columns that are newer than the file."""
    there = set(rows.column_names)
    return pa.table(
        {
            field.name: rows[field.name]
            if field.name in there
            else pa.nulls(rows.num_rows, field.type)
            for field in SCHEMA
        }
    )


class _ParquetRows:
    """The rows of Parquet files within a raw segment's offsets, read in order."""

    def __init__(
        self, place: Place, raw: Segment, records: Sequence[Segment], collector: FactCollector
    ) -> None:
        self._raw, self._collector = raw, collector
        self._read_whole: list[RowClaims] = []
        covering = [
            one
            for one in records
            if one.base_offset <= raw.last_offset and one.last_offset >= raw.base_offset
        ]
        self._coming = self._read(place, covering)
        self._segment: Segment | None = None
        self._rest: pa.Table | None = None

    def _read(
        self, place: Place, segments: Sequence[Segment]
    ) -> Iterator[tuple[Segment, pa.Table]]:
        for segment in segments:
            inside = (
                segment.base_offset >= self._raw.base_offset
                and segment.last_offset <= self._raw.last_offset
            )
            batches = RowClaims(segment)
            for table in read_rows(place, segment):
                batches.take(table)
                yield segment, table if inside else self._within(table)
            if segment.kind == RECORDS and segment.base_offset >= self._raw.base_offset:
                self._read_whole.append(batches)

    def _within(self, table: pa.Table) -> pa.Table:
        offset = table["offset"]
        first, last = self._raw.base_offset, self._raw.last_offset
        return table.filter(pc.and_(pc.greater_equal(offset, first), pc.less_equal(offset, last)))

    def require(self, expected: pa.Table) -> None:
        """Require that these are the next rows. Raises CorruptExportError."""
        done = 0
        while done < expected.num_rows:
            if self._rest is None or not self._rest.num_rows:
                self._segment, self._rest = next(self._coming, (self._segment, None))
                if self._rest is None:
                    raise self._ended(expected["offset"][done].as_py())
                continue
            count = min(self._rest.num_rows, expected.num_rows - done)
            self._compare(expected.slice(done, count), self._rest.slice(0, count))
            done, self._rest = done + count, self._rest.slice(count)

    def finish(self) -> None:
        """Require that no row is left. Raises CorruptExportError."""
        while self._rest is None or not self._rest.num_rows:
            self._segment, self._rest = next(self._coming, (self._segment, None))
            if self._rest is None:
                break
        else:
            raise self._continues()
        for one in self._read_whole:
            one.finish()

    def _continues(self) -> CorruptExportError:
        assert self._rest is not None
        assert self._segment is not None
        offset = self._rest["offset"][0].as_py()
        return corrupt_at(
            self._segment,
            offset,
            f"it continues at offset {offset}, after the end of {self._raw.file}",
        )

    def _ended(self, offset: int) -> CorruptExportError:
        segment = self._segment or self._raw
        return corrupt_at(
            segment, offset, f"it ends before offset {offset}, but {self._raw.file} does not"
        )

    def _compare(self, expected: pa.Table, found: pa.Table) -> None:
        assert self._segment is not None
        there = set(found.column_names)
        for field in SCHEMA:
            name = field.name
            if name not in there:
                # A nullable column that is newer than the file reads as null, as documented.
                if field.nullable:
                    self._record_lack(name, expected)
                    continue
                raise corrupt_at(
                    self._segment, self._segment.base_offset, f"it lacks the column {name}"
                )
            wanted, column = expected[name], found[name]
            if column.equals(wanted):
                continue
            if column.type != wanted.type:
                raise corrupt_at(
                    self._segment,
                    self._segment.base_offset,
                    f"column {name} has the type {column.type}, not {wanted.type}",
                )
            pairs = zip(
                expected["offset"].to_pylist(), _values(wanted), _values(column), strict=True
            )
            offset, wanted_value, found_value = next(row for row in pairs if row[1] != row[2])
            raise corrupt_at(
                self._segment,
                offset,
                f"column {name} has {_brief(found_value)} at offset {offset}, but {self._raw.file}"
                f" has {_brief(wanted_value)}",
            )

    def _record_lack(self, name: str, expected: pa.Table) -> None:
        assert self._segment is not None
        if expected[name].null_count < expected.num_rows:
            at = pc.index(pc.is_valid(expected[name]), value=True).as_py()
            self._collector.lacks(self._segment.file, name, expected["offset"][at].as_py())


def read_rows(place: Place, segment: Segment) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, a few thousand at a time. Raises CorruptExportError,
    ExportError.
    """
    with reading(place, segment), place.open(segment.file) as file:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            if wrong := odd_columns(parquet.schema_arrow.names):
                raise corrupt_at(segment, segment.base_offset, wrong)
            told = ColumnStatistics(parquet.metadata, imported=False)
            for group in range(parquet.metadata.num_row_groups):
                # Jobs skip row groups that, by their statistics, are null or out of range.
                denied = RowGroupStatistics(parquet.metadata, group)
                for rows in parquet.iter_batches(ROWS, row_groups=[group]):
                    if wrong := told.contradicted(group, rows) or denied.by(rows):
                        why = f"the statistics of row group {group} contradict column {wrong}"
                        raise corrupt_at(segment, segment.base_offset, why)
                    yield pa.table(rows)
                if wrong := denied.at_end():
                    raise corrupt_at(segment, segment.base_offset, wrong)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            if not says_content(error):
                raise
            raise corrupt_at(segment, segment.base_offset, f"it cannot be read: {error}") from error


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; for timestamps, which may lie outside of any calendar, the
    milliseconds.
    """
    is_time = pa.types.is_timestamp(column.type)
    values: list[Any] = (column.cast(pa.int64()) if is_time else column).to_pylist()
    return values


def _brief(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def check_segment(
    target: Path | str | Place, segment: Segment, cluster_id: str, generation: int
) -> None:
    """Check one file against the manifest: owner, size and hash.

    Raises ExportMismatchError, CorruptExportError, ExportError.
    """
    place = open_place(target)
    with reading(place, segment):
        size = place.size(segment.file)
    with reading(place, segment), place.open(segment.file) as file:
        identity = _identity(file, segment)
        # Before the hash: "from another cluster" is more helpful than "unexpected bytes".
        if identity is not None and identity != (cluster_id, generation):
            raise foreign(segment, identity, (cluster_id, generation))
        if size != segment.bytes:
            raise corrupt(segment, f"expected {segment.bytes} bytes, found {size}")
        file.seek(0)
        actual = files.sha256_of_stream(file)
        if actual != segment.sha256:
            raise corrupt(segment, f"expected the SHA-256 {segment.sha256}, found {actual}")
        # The written file may be wrong, too: a duplicate record would be folded twice.
        if segment.kind != RAW and (rows := rows_of(file)) != segment.records:
            raise corrupt(segment, f"expected {segment.records} records, found {rows} rows")


def _identity(file: BinaryIO, segment: Segment) -> tuple[str, int] | None:
    """Return the owner that a file names, or None if it cannot be read; the hash then decides."""
    try:
        if segment.kind == RAW:
            header = read_header(file, segment.file)
            return header.cluster_id, header.generation
        return identity_of(file)
    except (CorruptExportError, pa.ArrowException, OSError, ValueError):
        return None


class Fault(msgspec.Struct, frozen=True, order=True):
    """A violation of a rule.

    Offsets are inclusive. ``check``: a check in the table in docs/export.md. ``message``: a
    complete sentence.
    """

    first_offset: int
    last_offset: int
    check: str
    file: str
    message: str


class Checked(msgspec.Struct, frozen=True):
    """Result of the checks of one range of offsets."""

    faults: list[Fault]
    batches: int = 0
    records: int = 0
    ends: dict[int, int] = {}
    record_facts: RecordFacts = RecordFacts()


def check_range(
    place: Place, manifest: Manifest, raw: Segment, offsets: Collection[int] = ()
) -> Checked:
    """Check a raw segment and the Parquet files of its offsets.

    ``offsets``: offsets for which the result records whether a batch ends there.
    """
    covering = [
        one
        for one in manifest.of_kind(RECORDS)
        if one.base_offset <= raw.last_offset and one.last_offset >= raw.base_offset
    ]
    faults: list[Fault] = []
    # A Parquet file belongs to the range in which it begins, so that each is hashed once.
    own = [one for one in covering if one.base_offset >= raw.base_offset]
    begins = {one.base_offset for one in own}
    for segment in (raw, *own, *(one for one in manifest.buckets if one.base_offset in begins)):
        try:
            check_segment(place, segment, *manifest.owner)
        except WrongDataError as error:
            faults.append(
                Fault(segment.base_offset, segment.last_offset, "FILE", segment.file, str(error))
            )
    if faults:
        return Checked(faults)
    asked = [offset for offset in offsets if raw.base_offset <= offset <= raw.last_offset]
    try:
        facts = check_forms(place, raw, covering, asked)
        found = facts.record_facts
        for one in own:
            if shared := buckets_of_range(manifest, one):
                found = found.with_silent(check_buckets(place, one, shared))
    except CorruptExportError as error:
        check = "CHAIN" if error.file == raw.file else "FORMS"
        return Checked(
            [Fault(max(0, error.base_offset), raw.last_offset, check, error.file, str(error))]
        )
    except (ExportMismatchError, CorruptLogError) as error:
        return Checked([Fault(raw.base_offset, raw.last_offset, "CHAIN", raw.file, str(error))])
    except ExportError:
        # The file could not be read, which proves nothing about its contents.
        raise
    except RaftlogError as error:
        return Checked([Fault(raw.base_offset, raw.last_offset, "FILE", raw.file, str(error))])
    return Checked([], facts.batches, facts.records, facts.ends, found)


def epoch_faults(raw: tuple[Segment, ...]) -> list[Fault]:
    """Return a fault for each epoch that decreases from one file to the next; the manifest's
    offsets were checked before.
    """
    faults = []
    for left, right in pairwise(raw):
        if right.first_epoch < left.last_epoch:
            message = (
                f"{right.describe()} begins in epoch {right.first_epoch}, but the previous file"
                f" ends in epoch {left.last_epoch}: one of the two is from another log"
            )
            faults.append(Fault(right.base_offset, right.last_offset, "CHAIN", right.file, message))
    return faults
