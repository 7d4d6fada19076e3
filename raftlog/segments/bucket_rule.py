"""Which row of the records is in which bucket: see :mod:`raftlog.segments.buckets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import EVERY_TOPIC
from raftlog.segments.manifest import BY_GROUP, Bucket, Manifest, Segment


def number(group_id: str, count: int) -> int:
    """The bucket of a group: ``crc32(group_id)``, of its UTF-8, modulo their number."""
    return crc32(group_id.encode()) % count


def shares(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """The rows of a slice, bucket by bucket."""
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
    """Null where the id is."""
    encoded = ids.combine_chunks().dictionary_encode()
    numbers = [number(each, count) for each in encoded.dictionary.to_pylist()]
    return pa.array(numbers, pa.int32()).take(encoded.indices)


def of_range(manifest: Manifest, segment: Segment) -> Sequence[Bucket]:
    """The buckets of a range of records, by number; none if it has none, or by another rule than
    this build knows.
    """
    bucketing = manifest.bucketing
    if bucketing is None or bucketing.by != BY_GROUP:
        return ()
    return [one for one in bucketing.segments if one.base_offset == segment.base_offset]
