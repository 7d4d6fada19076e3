"""The shares of the records that several workers read, where records that belong together must
reach one of them: some of the export's buckets, or of hashes that each worker computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.segments.parquet_files import bucket_number
from raftlog.segments.range_checks import check_segment
from replay.kernels.arrays import Bools, Ints, codes
from replay.local.reading import slices
from replay.opened import Export

Hashes = Callable[[pa.Table, int], Ints]
"""A function that returns the bucket of each row, of a number of buckets, for an export without
buckets.
"""


class Share(NamedTuple):
    """Some of the buckets. ``filed``: the export has a file of each, where it has."""

    buckets: tuple[int, ...] = (0,)
    of: int = 1
    filed: bool = False


def shares(export: Export, size: int) -> list[Share]:
    """Return one share for each of ``size`` workers."""
    count = export.buckets
    if size == 1 or not count:
        return [Share((bucket,), size) for bucket in range(size)]
    workers = min(size, count)
    return [Share(tuple(range(one, count, workers)), count, filed=True) for one in range(workers)]


def of_topics(
    export: Export,
    share: Share,
    columns: Sequence[str],
    types: Collection[RecordType],
    hashes: Hashes,
) -> Iterator[Iterator[pa.Table]]:
    """Yield the records of a share's topics, bucket by bucket: each whole, and in order.

    Raises CorruptExportError and its kinds: a bucket's file is checked before it is read.
    """
    for bucket in share.buckets:
        if share.filed:
            check_bucket(export, bucket)
        yield slices(
            export,
            columns,
            types=types,
            only=partial(_in_bucket, share, bucket, hashes) if share.of > 1 else None,
            bucket=bucket if share.filed else None,
        )


def check_bucket(export: Export, bucket: int) -> None:
    """Check owner, size and hash of a bucket's files. Raises CorruptExportError and its kinds."""
    manifest = export.manifest
    for one in export.bucket_files(bucket):
        check_segment(export.target, one, manifest.cluster_id, manifest.generation)


def _in_bucket(share: Share, bucket: int, hashes: Hashes, table: pa.Table) -> Bools:
    if share.filed:
        numbers, ids = codes(table["topic_id"])
        which = np.array([-1, *(bucket_number(each, share.of) for each in ids)], np.int64)[
            np.maximum(numbers, -1) + 1
        ]
    else:
        which = hashes(table, share.of)
    return which == bucket
