"""The plan of a job's tasks: stretches of the log, or buckets of related records.

A pass that handles each record on its own is split into *stretches*: consecutive files of about the
same total size. A pass that needs all records of a group, partition or client together is a
*shuffle*: its records are split into buckets. If the export has files for these buckets, a task
reads only those. Otherwise Spark shuffles the records in an extra stage; on one machine each worker
process reads all files and keeps the rows of its buckets, which is cheaper than writing and
rereading the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.segments.manifest import Segment
from raftlog.segments.parquet_files import bucket_number
from raftlog.segments.range_checks import check_segment
from replay.engine.reading import DICTIONARIES, slices
from replay.export import Export
from replay.kernels.arrays import Bools, Ints, codes, ints
from replay.kernels.folding import Groups, bucket_masks


class Splitter(Protocol):
    """The rule by which a shuffle splits records.

    ``by_group``: true if it is the rule of the export's bucket files, which assign a record to the
    bucket of its entity group.
    """

    by_group: bool

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """Return, for each chosen bucket out of ``of``, which rows of a slice belong to it."""
        ...

    def buckets(self, of: int) -> Sequence[int]:
        """Return the buckets that may contain records in question."""
        ...


class ByGroup:
    """Split by entity group, for a fold of some groups. A record belongs to the bucket of the group
    that it changes and, if it ends a batch that names a client, also to the client's.
    """

    by_group = True

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """See ``Splitter``."""
        return bucket_masks(table, self.groups, of, chosen)

    def buckets(self, of: int) -> Sequence[int]:
        """Return the buckets of the wanted groups, or all buckets if all groups are wanted."""
        if self.groups.wanted is None:
            return range(of)
        return sorted({bucket_number(id_, of) for _, id_ in self.groups.wanted})


class ByColumns:
    """Split by the values of some columns: rows with equal values share a bucket."""

    def __init__(self, names: Sequence[str], *, by_topic: bool) -> None:
        """``by_topic``: split by topic id alone, which is the rule of bucket files."""
        self._names, self.by_group = names, by_topic

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """See ``Splitter``."""
        if of == 1:
            return [np.ones(table.num_rows, np.bool_) for _ in chosen]
        number = self._by_topic(table, of) if self.by_group else self._by_value(table, of)
        return [number == each for each in chosen]

    def buckets(self, of: int) -> Sequence[int]:
        """Return all buckets."""
        return range(of)

    def _by_topic(self, table: pa.Table, of: int) -> Ints:
        numbers, ids = codes(table["topic_id"])
        known = np.array([-1, *(bucket_number(each, of) for each in ids)], np.int64)
        return known[np.maximum(numbers, -1) + 1]

    def _by_value(self, table: pa.Table, of: int) -> Ints:
        total = np.zeros(table.num_rows, np.int64)
        for name in self._names:
            if pa.types.is_integer(table[name].type):
                total += ints(table[name])
                continue
            numbers, values = codes(table[name])
            hashes = np.array([0, *(crc32((each or "").encode()) for each in values)], np.int64)
            total = total * 31 + hashes[np.maximum(numbers, -1) + 1]
        return total % of


class Shuffle(NamedTuple):
    """Records to be split into buckets, with some of their columns.

    ``types``: only records of these types, or None for all. ``only``: a further filter.
    ``buckets``: number of buckets, or None for one per task.
    """

    export: Export
    columns: Sequence[str]
    splitter: Splitter
    types: Collection[RecordType] | None = None
    only: Callable[[pa.Table], Bools] | None = None
    coded: Collection[str] = DICTIONARIES
    buckets: int | None = None

    @property
    def filed(self) -> bool:
        """Whether the export has files for the buckets."""
        return self.splitter.by_group and bool(self.export.buckets) and self.buckets is None


class Bucket(NamedTuple):
    """Bucket ``number`` out of ``of``, with all its records in log order."""

    number: int
    of: int
    tables: Iterator[pa.Table]


class Share(NamedTuple):
    """The buckets of one task. ``filed``: the export has files for them."""

    buckets: tuple[int, ...] = (0,)
    of: int = 1
    filed: bool = False


def shares(shuffle: Shuffle, size: int) -> list[Share]:
    """Return the shares of a shuffle for at most ``size`` tasks."""
    if not shuffle.filed:
        return [Share((bucket,), size) for bucket in shuffle.splitter.buckets(size)]
    count = shuffle.export.buckets
    chosen = shuffle.splitter.buckets(count)
    if size == 1 and len(chosen) == count:
        return [Share()]
    parts = (tuple(chosen[one::size]) for one in range(size))
    return [Share(part, count, filed=True) for part in parts if part]


def bucket_share(shuffle: Shuffle, share: Share) -> Iterator[Bucket]:
    """Yield the buckets of a share, read from the export.

    Checks each bucket file before it is read. Raises CorruptExportError and its subclasses.
    """
    export = shuffle.export
    for number in share.buckets:
        if share.filed:
            check_bucket(export, number)
        tables = slices(
            export,
            shuffle.columns,
            types=shuffle.types,
            only=partial(_in_bucket, shuffle, share.of, number),
            bucket=number if share.filed else None,
            coded=shuffle.coded,
        )
        yield Bucket(number, share.of, tables)


def _in_bucket(shuffle: Shuffle, of: int, number: int, table: pa.Table) -> Bools:
    (chosen,) = shuffle.splitter.masks(table, of, (number,))
    return chosen if shuffle.only is None else chosen & shuffle.only(table)


def check_bucket(export: Export, bucket: int) -> None:
    """Check the owner, size and hash of a bucket's files. Raises CorruptExportError and its
    subclasses.
    """
    for one in export.bucket_files(bucket):
        check_segment(export.target, one, *export.manifest.owner)


def stretches(export: Export, size: int) -> list[list[Segment]]:
    """Return the files in at most ``size`` stretches of about the same size in bytes."""
    segments = sorted(export.segments, key=lambda one: one.base_offset)
    before = np.cumsum([0, *(each.bytes for each in segments)])
    task = np.minimum(before[:-1] * size // max(1, int(before[-1])), size - 1)
    parts = [
        [each for each, to in zip(segments, task, strict=True) if to == number]
        for number in range(size)
    ]
    return [part for part in parts if part]
