"""The two forms of a range of offsets held against each other, against the manifest, and against
the rules of a log.

Every batch of the raw segment is decoded anew (its CRC32C, its place in the chain of offsets,
epochs and timestamps), and the rows made of it are compared with the Parquet file, column by
column. Memory: some thousand rows of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog import batch
from raftlog.segments.batch_claims import Chain, RowClaims, corrupt, require_same
from raftlog.segments.bucket_rule import shares
from raftlog.segments.columns import SCHEMA, RowBuffer, odd_columns
from raftlog.segments.denied import Denied
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import RECORDS, Segment
from raftlog.segments.place import Place
from raftlog.segments.reading import read_segment, reading, says_content
from raftlog.segments.said import Listening, Said
from raftlog.segments.told import Told

ROWS = 16_384
"""About so many are compared at a time."""


class Facts(NamedTuple):
    """What a raw segment turned out to hold.

    ``ends``: the epochs of those of the offsets asked about at which a batch ends.
    """

    batches: int
    records: int
    ends: dict[int, int]
    said: Said


def check_forms(
    place: Place, raw: Segment, records: Sequence[Segment], offsets: Collection[int] = ()
) -> Facts:
    """Check one raw segment, and the Parquet files that cover its offsets.

    ``offsets``: those of which the epoch is wanted. Raises CorruptExportError naming the first
    fault: its file and offsets, what was expected and what was found. Files are taken to have the
    manifest's hashes: see ``check_segment``.
    """
    asked, ends = frozenset(offsets), {}
    listening = Listening()
    rows, written = RowBuffer(), _ParquetRows(place, raw, records, listening)
    chain = Chain(raw)
    for data in read_segment(place, raw):
        for header in batch.headers(data, verify=False):
            chain.take(header)
            rows.add(data, header)
            if header.last_offset in asked:
                ends[header.last_offset] = header.epoch
            if rows.rows >= ROWS:
                written.require(_heard(rows, listening))
    if rows.rows:
        written.require(_heard(rows, listening))
    chain.finish()
    written.finish()
    return Facts(raw.batches, raw.records, ends, listening.said())


def _heard(rows: RowBuffer, listening: Listening) -> pa.Table:
    levels = dict(rows.features)
    table = rows.take()
    listening.take(table, levels)
    return table


def check_buckets(place: Place, records: Segment, buckets: Sequence[Segment]) -> Said:
    """Check the buckets of a range against its records, row by row in all columns.

    Returns which columns they lack, and nothing else. Raises as ``check_forms`` does.
    """
    for one in buckets:
        require_same(one, records)
    listening = Listening()
    written = [_ParquetRows(place, records, [one], listening) for one in buckets]
    for table in read_rows(place, records):
        for rows, expected in zip(written, shares(table, len(buckets)), strict=True):
            rows.require(_complete(expected))
    for rows in written:
        rows.finish()
    return listening.said()


def _complete(rows: pa.Table) -> pa.Table:
    """With null in the columns that the file is from before of."""
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
    """The rows of Parquet files within a raw segment's offsets, taken in order."""

    def __init__(
        self, place: Place, raw: Segment, records: Sequence[Segment], listening: Listening
    ) -> None:
        self._raw, self._listening = raw, listening
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
        """The next rows must be these. Raises CorruptExportError."""
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
        """Those were all. Raises CorruptExportError."""
        while self._rest is None or not self._rest.num_rows:
            self._segment, self._rest = next(self._coming, (self._segment, None))
            if self._rest is None:
                break
        else:
            raise self._goes_on()
        for one in self._read_whole:
            one.finish()

    def _goes_on(self) -> CorruptExportError:
        assert self._rest is not None
        assert self._segment is not None
        offset = self._rest["offset"][0].as_py()
        return corrupt(
            self._segment,
            offset,
            f"it goes on at offset {offset}, behind the end of {self._raw.file}",
        )

    def _ended(self, offset: int) -> CorruptExportError:
        segment = self._segment or self._raw
        return corrupt(
            segment, offset, f"it ends before offset {offset}, which {self._raw.file} has"
        )

    def _compare(self, expected: pa.Table, found: pa.Table) -> None:
        assert self._segment is not None
        there = set(found.column_names)
        for field in SCHEMA:
            name = field.name
            if name not in there:
                # A nullable column that is newer than the file: whoever reads it gets nulls, and
                # knows from the documents.
                if field.nullable:
                    self._note_lack(name, expected)
                    continue
                raise corrupt(self._segment, self._segment.base_offset, f"it has no column {name}")
            wanted, column = expected[name], found[name]
            if column.equals(wanted):
                continue
            if column.type != wanted.type:
                raise corrupt(
                    self._segment,
                    self._segment.base_offset,
                    f"column {name} is of type {column.type}, not {wanted.type}",
                )
            pairs = zip(
                expected["offset"].to_pylist(), _values(wanted), _values(column), strict=True
            )
            offset, said, is_there = next(row for row in pairs if row[1] != row[2])
            raise corrupt(
                self._segment,
                offset,
                f"column {name} has {_brief(is_there)} at offset {offset}, and {self._raw.file}"
                f" says {_brief(said)}",
            )

    def _note_lack(self, name: str, expected: pa.Table) -> None:
        assert self._segment is not None
        if expected[name].null_count < expected.num_rows:
            at = pc.index(pc.is_valid(expected[name]), value=True).as_py()
            self._listening.lacks(self._segment.file, name, expected["offset"][at].as_py())


def read_rows(place: Place, segment: Segment) -> Iterator[pa.Table]:
    """The rows of a Parquet file, some thousand at a time.

    Raises CorruptExportError, ExportError.
    """
    with reading(place, segment), place.open(segment.file) as file:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            if wrong := odd_columns(parquet.schema_arrow.names):
                raise corrupt(segment, segment.base_offset, wrong)
            told = Told(parquet.metadata, imported=False)
            for group in range(parquet.metadata.num_row_groups):
                # Jobs skip what the statistics say to be null, or to lie elsewhere.
                denied = Denied(parquet.metadata, group)
                for rows in parquet.iter_batches(ROWS, row_groups=[group]):
                    if wrong := told.contradicted(group, rows) or denied.by(rows):
                        why = f"the statistics of its row group {group} deny what {wrong} says"
                        raise corrupt(segment, segment.base_offset, why)
                    yield pa.table(rows)
                if wrong := denied.at_end():
                    raise corrupt(segment, segment.base_offset, wrong)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            if not says_content(error):
                raise
            raise corrupt(segment, segment.base_offset, f"it cannot be read: {error}") from error


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; of times, which no calendar need have, the milliseconds."""
    is_time = pa.types.is_timestamp(column.type)
    values: list[Any] = (column.cast(pa.int64()) if is_time else column).to_pylist()
    return values


def _brief(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
