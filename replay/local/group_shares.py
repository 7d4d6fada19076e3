"""The shares of the groups that several workers fold, and the files that each reads: of an export
with buckets only the files with these groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from raftlog.segments.manifest import Segment
from raftlog.segments.parquet_files import bucket_number
from replay.kernels.folding import Groups
from replay.local.reading import slices
from replay.local.shares import Share, check_bucket, shares
from replay.opened import Export


class GroupShare(NamedTuple):
    """Some groups, in the buckets of a share."""

    groups: Groups
    share: Share


def group_shares(export: Export, groups: Groups, size: int) -> list[GroupShare]:
    """Return one share for each of ``size`` workers, as far as there is work.

    Groups that a question names by id are in few buckets: the others are not read.
    """
    count = export.buckets
    if not count or groups.wanted is None:
        return [GroupShare(groups, share) for share in shares(export, size)]
    chosen = sorted({bucket_number(id_, count) for _, id_ in groups.wanted})
    parts = (tuple(chosen[one::size]) for one in range(size))
    return [GroupShare(groups, Share(part, count, filed=True)) for part in parts if part]


def of_groups(one: GroupShare) -> Iterator[tuple[Groups, int | None]]:
    """Yield the groups of each bucket of a share, and the bucket's number if it has files."""
    for bucket in one.share.buckets:
        groups = one.groups._replace(bucket=bucket, buckets=one.share.of)
        yield groups, bucket if one.share.filed else None


def rows_of(
    export: Export,
    bucket: int | None,
    columns: Sequence[str],
    segments: Sequence[Segment] | None = None,
) -> Iterator[pa.Table]:
    """Yield the records of a bucket, and where it has no files all of them.

    Raises CorruptExportError and its kinds: a bucket's file is checked before it is read.
    """
    if bucket is not None:
        check_bucket(export, bucket)
    yield from slices(export, columns, bucket=bucket, segments=segments)
