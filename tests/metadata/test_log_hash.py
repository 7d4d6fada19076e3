"""The log hash: which bytes it covers, and where it begins."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from raftlog import batch
from raftlog.errors import FatalError
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, LogHash, extended, unknown
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import SnapshotLoader, header_of, pieces
from raftlog.metadata.snapshot_file import encode_footer, read_footer
from raftlog.node.recovery.first_chunk import beginning_chunk
from raftlog.wire.records.v1 import records_pb2 as pb


def one(base: int, *messages: Any, principal: str = "") -> bytes:
    return batch.encode(
        [record(message) for message in messages],
        base_offset=base,
        epoch=1,
        timestamp_ms=7,
        principal=principal,
        control=isinstance(messages[0], pb.LeaderChangeRecord),
    )


def config(value: str) -> pb.ConfigRecord:
    return pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value=value)


def level(to: int) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(name="metadata.version", feature_level=to)


LOG = [
    one(0, pb.LeaderChangeRecord(leader_id=1)),
    one(1, level(2), pb.FeatureLevelRecord(name="lao.version", feature_level=1)),
    one(3, config("a"), config("b"), principal="alice"),
    one(5, config("c"), principal="alice"),
]


def test_it_is_the_chain_that_the_document_says() -> None:
    digest = hashlib.sha256(b"raftlog log hash 1\0" + struct.pack(">q", 0)).digest()
    for data in LOG:
        digest = hashlib.sha256(digest + data).digest()
    found = extended(EMPTY, b"".join(LOG))
    assert found == LogHash(0, 6, digest)
    assert found.is_known


def test_chunks_may_be_cut_anywhere_between_batches() -> None:
    whole = extended(EMPTY, b"".join(LOG))
    for cut in range(len(LOG) + 1):
        first = extended(EMPTY, b"".join(LOG[:cut]))
        assert extended(first, b"".join(LOG[cut:])) == whole


def test_every_byte_of_a_batch_counts() -> None:
    below, last = extended(EMPTY, b"".join(LOG[:3])), LOG[3]
    seen = {extended(below, last).digest}
    # All but the length, which no reader would get past.
    for at in range(4, len(last)):
        changed = bytearray(last)
        changed[at] ^= 2
        seen.add(extended(below, bytes(changed)).digest)
    assert len(seen) == len(last) - 4 + 1


def test_a_restored_log_begins_another_chain_and_a_recovered_one_goes_on() -> None:
    known = extended(EMPTY, b"".join(LOG))
    for kind, begin in (("restore", 6), ("unsafe recovery", 0)):
        what = pb.RecoveryRecord(kind=kind)
        chunk = beginning_chunk(what, (), base_offset=6, epoch=2, timestamp_ms=9)
        found = extended(known, chunk)
        assert (found.begin_offset, found.end_offset, found.is_known) == (begin, 8, True)
        assert (extended(unknown(6), chunk).is_known) is (begin == 6)


def test_a_snapshot_carries_it() -> None:
    image = Image(offset=5, epoch=1, timestamp_ms=7)
    header = header_of(image, cluster_id="c", generations=())
    plain = b"".join(pieces(image, header))
    assert b"".join(pieces(image, header, unknown(6))) == plain
    content = b"".join(pieces(image, header, LogHash(0, 6, b"d" * 32)))
    loader = SnapshotLoader()
    loader.feed(content)
    loader.finish()
    assert loader.log_hash() == (0, 6, b"d" * 32)
    footer = read_footer(content[-256:])
    assert footer is not None
    assert (footer.log_hash_begin_offset, footer.log_hash) == (0, b"d" * 32)
    with pytest.raises(FatalError, match="is of offset 5, the snapshot of 6"):
        encode_footer(header, 1, 0, LogHash(0, 5, b"d" * 32))
