"""Parquet files of an export: writing, the owner of their log, the statistics of their row groups,
and the assignment of rows to buckets.

A column that is null in a whole row group need not be read. Most columns belong to one record type,
and decoding nulls takes half as long as decoding values. Spark and other engines skip row groups by
their statistics, so a verification compares the statistics with the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.metadata.records import EVERY_TOPIC
from raftlog.segments.files import Place
from raftlog.segments.manifest import BY_GROUP, Bucket, Manifest, Segment
from raftlog.segments.raw import corrupt, reading, says_content

_DICTIONARY_COLUMNS = [
    "principal",
    "type_name",
    "group_kind",
    "group_id",
    "topic_id",
    "topic_name",
    "resource_name",
    "config_name",
    "reason",
    "rack",
    "feature_name",
    "incarnation_id",
]
_CLUSTER_KEY = b"raftlog.cluster_id"
_GENERATION_KEY = b"raftlog.generation"


def identity(cluster_id: str, generation: int) -> dict[bytes, bytes]:
    """Return the Parquet metadata that identifies a log."""
    return {_CLUSTER_KEY: cluster_id.encode(), _GENERATION_KEY: str(generation).encode()}


def parquet_writer(path: Path, schema: pa.Schema, named: dict[bytes, bytes]) -> pq.ParquetWriter:
    """Return a writer of records as Parquet, with the identity of their log (``identity``)."""
    writer = pq.ParquetWriter(
        path.absolute(),  # pyarrow expands a leading "~"
        schema,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS,
        write_page_checksum=True,
        store_schema=False,
    )
    writer.add_key_value_metadata(named)
    return writer


def identity_of(file: BinaryIO) -> tuple[str, int] | None:
    """Return the (cluster id, generation) in a Parquet segment, or None if it contains none."""
    metadata = pq.read_metadata(file).metadata or {}
    if _CLUSTER_KEY not in metadata or _GENERATION_KEY not in metadata:
        return None
    return metadata[_CLUSTER_KEY].decode(), int(metadata[_GENERATION_KEY])


def rows_of(file: BinaryIO) -> int:
    """Return the number of rows in a Parquet segment's metadata."""
    rows: int = pq.read_metadata(file).num_rows
    return rows


_OF_IMPORTED = ("directories",)
"""Lists that only another system's log has: raftlog's own log never sets them."""
_ALWAYS = "type"
"""Column that is read to count rows if no other is read."""


class ColumnStatistics:
    """Which columns have values in one file's row groups, according to its statistics.

    Statistics count an empty list as null, so lists are always assumed to have values, except if
    the log cannot have any.
    """

    def __init__(self, metadata: pq.FileMetaData, *, imported: bool) -> None:
        """``imported``: True for another system's log."""
        self._metadata, self._imported = metadata, imported
        self._leaves: dict[str, list[int]] = defaultdict(list)
        schema = metadata.schema
        for index in range(metadata.num_columns):
            self._leaves[schema.column(index).path.split(".")[0]].append(index)
        self._lists = {name for name in self._leaves if self._is_list(name)}

    def _is_list(self, name: str) -> bool:
        return any(
            self._metadata.schema.column(leaf).max_repetition_level for leaf in self._leaves[name]
        )

    def runs(
        self, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[list[int], list[str]]]:
        """Yield runs of adjacent row groups, each with the columns to read."""
        silent = {name for name in columns if name in self._lists and self._never(name)}
        run: list[int] = []
        names: list[str] = []
        for group in groups:
            told = [name for name in columns if name not in silent and self._tells(group, name)]
            if run and told == names:
                run.append(group)
                continue
            if run:
                yield run, names or [_ALWAYS]
            run, names = [group], told
        if run:
            yield run, names or [_ALWAYS]

    def contradicted(self, group: int, rows: pa.RecordBatch) -> str:
        """Return the name of a column that has values although the group's statistics deny it,
        "offset" if the offsets are outside of their statistics, or an empty string.
        """
        for name in rows.schema.names:
            column = rows.column(name)
            if pa.types.is_list(column.type):
                lengths = pc.fill_null(pc.list_value_length(column), 0)
                says = len(column) and pc.max(lengths).as_py()
            else:
                says = column.null_count < len(column)
            if says and all(self._null(group, leaf) for leaf in self._leaves[name]):
                return str(name)
        return "" if self._inside(group, rows) else "offset"

    def _inside(self, group: int, rows: pa.RecordBatch) -> bool:
        if "offset" not in self._leaves or not rows.num_rows:
            return True
        known = self._metadata.row_group(group).column(self._leaves["offset"][0]).statistics
        if known is None or not known.has_min_max:
            return True
        least, most = pc.min_max(rows.column("offset")).values()
        return bool(known.min <= least.as_py() and most.as_py() <= known.max)

    def _never(self, name: str) -> bool:
        """Return whether this list, which the log cannot have, has no members in any row group."""
        if self._imported or name not in _OF_IMPORTED:
            return False
        groups = range(self._metadata.num_row_groups)
        return all(self._null(group, leaf) for group in groups for leaf in self._leaves[name])

    def _tells(self, group: int, name: str) -> bool:
        if name not in self._leaves:
            return False
        return name in self._lists or not all(
            self._null(group, leaf) for leaf in self._leaves[name]
        )

    def _null(self, group: int, leaf: int) -> bool:
        chunk = self._metadata.row_group(group).column(leaf)
        known = chunk.statistics
        if known is None or not known.has_null_count:
            return False
        return bool(known.null_count == chunk.num_values)


class RowGroupStatistics:
    """The statistics of one row group's plain columns, for a comparison with its rows."""

    def __init__(self, metadata: pq.FileMetaData, group: int) -> None:
        self._group, self._rows = group, 0
        chunks = [metadata.row_group(group).column(each) for each in range(metadata.num_columns)]
        self._index = next((one.path_in_schema for one in chunks if _has_index(one)), "")
        self._known = {
            one.path_in_schema: one.statistics for one in chunks if one.statistics is not None
        }
        self._nulls = dict.fromkeys(self._known, 0)

    def by(self, rows: pa.RecordBatch) -> str:
        """Return a column with values outside of its statistics, or an empty string."""
        self._rows += rows.num_rows
        for name in rows.schema.names:
            known, column = self._known.get(name), rows.column(name)
            if known is None or pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if known.has_min_max and column.null_count < len(column) and _outside(known, column):
                return str(name)
        return ""

    def at_end(self) -> str:
        """Return a text about the fault that is known after the group's last row, or an empty
        string.
        """
        if self._index:
            return (
                f"column {self._index} in row group {self._group} has a page index or a Bloom"
                " filter, which raftlog does not write"
            )
        for name, nulls in self._nulls.items():
            known = self._known[name]
            if "." not in name and known.has_null_count and known.null_count != nulls:
                return (
                    f"the statistics of row group {self._group} count {known.null_count} nulls in"
                    f" column {name}, but there are {nulls}"
                )
        return ""


def _has_index(chunk: Any) -> bool:
    return bool(
        chunk.has_column_index or chunk.has_offset_index or chunk.bloom_filter_offset is not None
    )


def _outside(known: Any, column: pa.Array) -> bool:
    bounds = pc.min_max(column)
    try:
        # The statistics are unchecked bytes: an invalid string raises, and so does a time beyond
        # any calendar.
        return bool(bounds["min"].as_py() < known.min or known.max < bounds["max"].as_py())
    except (ValueError, OverflowError):
        return True


def bucket_number(group_id: str, count: int) -> int:
    """Return the bucket of a group: the CRC32 of the UTF-8 group id, modulo the number of
    buckets.
    """
    return crc32(group_id.encode()) % count


def rows_by_bucket(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """Yield the rows of a slice, bucket by bucket."""
    own = _numbers(table["group_id"], count)
    ends = pc.and_(
        pc.and_(pc.not_equal(table["client_id"], 0), pc.not_equal(table["sequence"], 0)),
        pc.equal(table["offset"], table["batch_last_offset"]),
    )
    clients = pc.if_else(ends, table["client_id"].cast(pa.string()), None)
    client = _numbers(clients, count)
    every = pc.and_(
        pc.equal(table["group_kind"], EVERY_TOPIC.kind), pc.equal(table["group_id"], EVERY_TOPIC.id)
    )
    for bucket in range(count):
        of_group = pc.or_kleene(pc.equal(own, bucket), every)
        yield table.filter(pc.or_kleene(of_group, pc.equal(client, bucket)))


def _numbers(ids: pa.ChunkedArray, count: int) -> pa.Array:
    """Return the bucket numbers for these ids; null for a null id."""
    encoded = ids.combine_chunks().dictionary_encode()
    numbers = [bucket_number(each, count) for each in encoded.dictionary.to_pylist()]
    return pa.array(numbers, pa.int32()).take(encoded.indices)


def buckets_of_range(manifest: Manifest, segment: Segment) -> Sequence[Bucket]:
    """Return the buckets of a range of records, by number; empty if none, or for a rule that this
    build does not support.
    """
    bucketing = manifest.bucketing
    if bucketing is None or bucketing.by != BY_GROUP:
        return ()
    return [one for one in bucketing.segments if one.base_offset == segment.base_offset]


_COLUMNS = ["offset", "timestamp_ms"]


def offset_at(place: Place, records: Sequence[Segment], time_ms: int) -> int | None:
    """Return the offset of the last record that is not later than a time, or None.

    Earlier records may have a later time if log time has decreased. Raises ExportError.
    """
    for segment in reversed(records):
        if segment.max_timestamp_ms <= time_ms:
            return segment.last_offset
        if segment.min_timestamp_ms <= time_ms:
            rows = _rows(place, segment)
            early = rows["offset"].filter(pc.less_equal(rows["timestamp_ms"], time_ms))
            if len(early):
                return int(pc.max(early).as_py())
    return None


def _rows(place: Place, segment: Segment) -> pa.Table:
    with reading(place, segment), place.open(segment.file) as opened:
        try:
            return pq.read_table(opened, columns=_COLUMNS).select(_COLUMNS)
        except (pa.ArrowException, OSError, KeyError) as error:
            if not says_content(error):
                raise
            raise corrupt(segment, "its timestamps cannot be read") from error
