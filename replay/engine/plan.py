"""The plan of a job's tasks: stretches of the log, or buckets of records that belong together.

A pass that takes each record by itself is cut into *stretches*: files that follow each other, of
about as many bytes each. A pass that needs all records of a group, a partition or a client in one
place is a *shuffle*: its records are cut into buckets. If the export has files of these buckets, a
task reads the files of its buckets alone. If not, Spark shuffles the records in a stage of its own;
workers of one machine each read all files and keep the rows of their buckets, which costs them less
than to write and read the rows once more.
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
    """Rule of a shuffle.

    ``by_group``: the rule is that of the export's bucket files, by which a record is in the bucket
    of its entity group.
    """

    by_group: bool

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """Return which rows of a slice are in each of some buckets, out of a number of buckets."""
        ...

    def buckets(self, of: int) -> Sequence[int]:
        """Return the buckets that may hold records in question."""
        ...


class ByGroup:
    """Split by entity group, for a fold of some groups. A record is in the bucket of the group that
    it changes and, if it ends a batch that names a client, in the client's.
    """

    by_group = True

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """Return which rows of a slice are in each of some buckets."""
        return bucket_masks(table, self.groups, of, chosen)

    def buckets(self, of: int) -> Sequence[int]:
        """Return the buckets of the groups that are named; of all, if none is named."""
        if self.groups.wanted is None:
            return range(of)
        return sorted({bucket_number(id_, of) for _, id_ in self.groups.wanted})


class ByColumns:
    """Split by the values of some columns: equal values come into one bucket."""

    def __init__(self, names: Sequence[str], *, by_topic: bool) -> None:
        """``by_topic``: by the topic's id alone, which is the rule of bucket files."""
        self._names, self.by_group = names, by_topic

    def masks(self, table: pa.Table, of: int, chosen: Collection[int]) -> list[Bools]:
        """Return which rows of a slice are in each of some buckets."""
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
    """Records to be cut into buckets, some columns of them.

    ``types``: of these types only; ``only``: a further condition on a slice. ``buckets``: their
    number; None: as many as there are tasks.
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
        """True if the export has files of the buckets."""
        return self.splitter.by_group and bool(self.export.buckets) and self.buckets is None


class Bucket(NamedTuple):
    """One bucket out of ``of``, with its records: whole, and in the order of the log."""

    number: int
    of: int
    tables: Iterator[pa.Table]


class Share(NamedTuple):
    """Some of the buckets: one task. ``filed``: the export has files of them."""

    buckets: tuple[int, ...] = (0,)
    of: int = 1
    filed: bool = False


def shares(shuffle: Shuffle, size: int) -> list[Share]:
    """Return the shares of a shuffle in ``size`` tasks, as far as there is work."""
    if not shuffle.filed:
        return [Share((bucket,), size) for bucket in shuffle.splitter.buckets(size)]
    count = shuffle.export.buckets
    chosen = shuffle.splitter.buckets(count)
    if size == 1 and len(chosen) == count:
        return [Share()]
    parts = (tuple(chosen[one::size]) for one in range(size))
    return [Share(part, count, filed=True) for part in parts if part]


def bucket_share(shuffle: Shuffle, share: Share) -> Iterator[Bucket]:
    """Yield the buckets of a share, read from the export's files.

    Raises CorruptExportError and its kinds: a bucket's file is checked before it is read.
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
    """Check owner, size and hash of a bucket's files. Raises CorruptExportError and its kinds."""
    for one in export.bucket_files(bucket):
        check_segment(export.target, one, *export.manifest.owner)


def stretches(export: Export, size: int) -> list[list[Segment]]:
    """Return the files in at most ``size`` stretches of about as many bytes each."""
    segments = sorted(export.segments, key=lambda one: one.base_offset)
    before = np.cumsum([0, *(each.bytes for each in segments)])
    task = np.minimum(before[:-1] * size // max(1, int(before[-1])), size - 1)
    parts = [
        [each for each, to in zip(segments, task, strict=True) if to == number]
        for number in range(size)
    ]
    return [part for part in parts if part]
