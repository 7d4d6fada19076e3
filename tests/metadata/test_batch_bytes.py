"""The encoding of batches."""

import hashlib
import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, LogHash, extended, unknown
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import SnapshotLoader, header_of, pieces
from raftlog.metadata.snapshot_file import encode_footer, read_footer
from raftlog.node.recovery.first_chunk import beginning_chunk
from raftlog.wire.records.v1 import records_pb2 as pb

LONGS = st.integers(0, 2**63 - 1)
RECORDS = st.lists(
    st.builds(RecordData, st.integers(0, 2**16 - 1), st.integers(0, 255), st.binary(max_size=40)),
    min_size=1,
    max_size=4,
)
FIELDS = st.fixed_dictionaries(
    {
        "epoch": st.integers(0, 2**31 - 1),
        "timestamp_ms": LONGS,
        "control": st.booleans(),
        "principal": st.text(max_size=12),
        "client_id": LONGS,
        "sequence": LONGS,
        "all_below_done": LONGS,
    }
)


def in_log_order(batches: list) -> list:
    """Epochs never go back in a log."""
    epochs = sorted(fields["epoch"] for _, fields in batches)
    return [
        (records, {**fields, "epoch": epoch})
        for (records, fields), epoch in zip(batches, epochs, strict=True)
    ]


BATCHES = st.lists(st.tuples(RECORDS, FIELDS), min_size=1, max_size=4).map(in_log_order)
FIRST = st.integers(0, 2**40)


def encode(first: int, batches: list[tuple[list[RecordData], dict]]) -> list[bytes]:
    encoded = []
    for records, fields in batches:
        encoded.append(batch.encode(records, base_offset=first, **fields))
        first += len(records)
    return encoded


@settings(max_examples=150, deadline=None)
@given(FIRST, BATCHES)
def test_batch_bytes_round_trip(first: int, batches: list) -> None:
    chunk = b"".join(encode(first, batches))
    headers = list(batch.headers(chunk, expect_offset=first))
    offset = first
    for header, (records, fields) in zip(headers, batches, strict=True):
        assert header.base_offset == offset
        assert header.end_offset == offset + len(records)
        assert header.last_offset == offset + len(records) - 1
        assert {name: getattr(header, name) for name in fields} == fields
        assert batch.records(chunk, header) == records
        assert list(batch.bodies(chunk, header)) == [tuple(record) for record in records]
        offset += len(records)
    assert sum(header.size for header in headers) == len(chunk)
    control_at = tuple(header.position for header in headers if header.control)
    assert batch.scan(chunk, expect_offset=first) == (
        offset,
        batch.epoch_runs(headers),
        batches[-1][1]["timestamp_ms"],
        control_at,
    )
    assert [batch.header_at(chunk, at) for at in control_at] == [
        header for header in headers if header.control
    ]


@settings(max_examples=300, deadline=None)
@given(FIRST, BATCHES, st.data())
def test_any_changed_byte_is_reported(first: int, batches: list, data: st.DataObject) -> None:
    encoded = encode(first, batches)
    chunk = bytearray(b"".join(encoded))
    at = data.draw(st.integers(0, len(chunk) - 1))
    chunk[at] ^= data.draw(st.integers(1, 255))
    damaged, end = first, 0
    for part, (records, _) in zip(encoded, batches, strict=True):
        end += len(part)
        if at < end:
            break
        damaged += len(records)
    good: list[batch.BatchHeader] = []
    with pytest.raises(CorruptLogError) as caught:
        good.extend(batch.headers(bytes(chunk), expect_offset=first))
    assert caught.value.offset == damaged
    assert (good[-1].end_offset if good else first) == damaged, "what was yielded before it is good"
    with pytest.raises(CorruptLogError) as caught:
        batch.scan(bytes(chunk), expect_offset=first)
    assert caught.value.offset == damaged


def refused(chunk: bytes, expect_offset: int, why: str = ".") -> None:
    with pytest.raises(CorruptLogError, match=why):
        list(batch.headers(chunk, expect_offset=expect_offset))
    with pytest.raises(CorruptLogError, match=why):
        batch.scan(chunk, expect_offset=expect_offset)


@settings(max_examples=150, deadline=None)
@given(FIRST, BATCHES, st.data())
def test_chunk_cut_in_a_batch_is_refused(first: int, batches: list, data: st.DataObject) -> None:
    encoded = encode(first, batches)
    ends = {sum(map(len, encoded[:index])) for index in range(len(encoded) + 1)}
    cut = data.draw(st.integers(1, sum(map(len, encoded)) - 1))
    chunk = b"".join(encoded)[:cut]
    if cut in ends:
        end_offset = list(batch.headers(chunk))[-1].end_offset
        assert batch.scan(chunk, expect_offset=first).end_offset == end_offset
        return
    refused(chunk, first)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_never_taken_for_a_batch(noise: bytes) -> None:
    refused(noise, 0)


def one(base_offset: int = 7) -> bytes:
    return batch.encode(
        [RecordData(20, 0, b"abc"), RecordData(4, 0, b"")],
        base_offset=base_offset,
        epoch=3,
        timestamp_ms=1,
    )


def resealed(content: bytes) -> bytes:
    """Return a batch with a valid checksum: what a bug, not a disk, would write."""
    return struct.pack(">II", len(content) + 4, google_crc32c.value(content)) + content


@pytest.mark.parametrize("expected", [6, 8])
def test_gap_or_overlap_is_refused(expected: int) -> None:
    with pytest.raises(CorruptLogError) as caught:
        list(batch.headers(one(), expect_offset=expected))
    assert caught.value.offset == expected
    with pytest.raises(CorruptLogError):
        batch.scan(one(), expect_offset=expected)
    with pytest.raises(CorruptLogError):
        list(batch.headers(one(7) + one(10)))


def of_epochs(*epochs: int) -> bytes:
    """Return a batch of each epoch."""
    return b"".join(
        batch.encode([RecordData(20, 0, b"")], base_offset=offset, epoch=epoch, timestamp_ms=0)
        for offset, epoch in enumerate(epochs)
    )


def test_decreasing_epoch_is_refused() -> None:
    with pytest.raises(CorruptLogError) as caught:
        batch.scan(of_epochs(2, 2, 1), expect_offset=0)
    assert caught.value.offset == 2


def test_unknown_magic_is_refused() -> None:
    refused(resealed(b"\x02" + one()[9:]), 7, "magic 2")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_records_must_fill_their_batch(count: int) -> None:
    content = bytearray(one()[8:])
    content[4:8] = count.to_bytes(4, "big")
    chunk = resealed(bytes(content))
    with pytest.raises(CorruptLogError):
        [batch.records(chunk, header) for header in batch.headers(chunk, expect_offset=7)]


def test_record_longer_than_its_batch_is_refused() -> None:
    content = bytearray(one()[8:])
    at = batch.HEADER_BYTES - 8 + 4
    content[at : at + 4] = (1000).to_bytes(4, "big")
    chunk = resealed(bytes(content))
    (header,) = batch.headers(chunk)
    with pytest.raises(CorruptLogError):
        batch.records(chunk, header)


def test_empty_chunk_holds_nothing_and_an_empty_batch_cannot_be_encoded() -> None:
    assert list(batch.headers(b"")) == []
    assert batch.scan(b"", expect_offset=5) == (5, (), 0, ())
    with pytest.raises(ValueError, match="at least one record"):
        batch.encode([], base_offset=0, epoch=1, timestamp_ms=0)


def test_runs_of_equal_epochs_are_found() -> None:
    found = batch.epoch_runs(batch.headers(of_epochs(1, 1, 2, 4, 4)))
    assert found == ((1, 0), (2, 2), (4, 3))


# --- The log hash --------------------------------------------------------------------------------


def one_batch(base: int, *messages: Any, principal: str = "") -> bytes:
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
    one_batch(0, pb.LeaderChangeRecord(leader_id=1)),
    one_batch(1, level(2), pb.FeatureLevelRecord(name="lao.version", feature_level=1)),
    one_batch(3, config("a"), config("b"), principal="alice"),
    one_batch(5, config("c"), principal="alice"),
]


def test_log_hash_is_the_documented_chain() -> None:
    digest = hashlib.sha256(b"raftlog log hash 1\0" + struct.pack(">q", 0)).digest()
    for data in LOG:
        digest = hashlib.sha256(digest + data).digest()
    found = extended(EMPTY, b"".join(LOG))
    assert found == LogHash(0, 6, digest)
    assert found.is_known


def test_log_hash_does_not_depend_on_chunk_boundaries() -> None:
    whole = extended(EMPTY, b"".join(LOG))
    for cut in range(len(LOG) + 1):
        first = extended(EMPTY, b"".join(LOG[:cut]))
        assert extended(first, b"".join(LOG[cut:])) == whole


def test_restored_log_starts_another_chain_and_a_recovered_one_continues() -> None:
    known = extended(EMPTY, b"".join(LOG))
    for kind, begin in (("restore", 6), ("unsafe recovery", 0)):
        what = pb.RecoveryRecord(kind=kind)
        chunk = beginning_chunk(what, (), base_offset=6, epoch=2, timestamp_ms=9)
        found = extended(known, chunk)
        assert (found.begin_offset, found.end_offset, found.is_known) == (begin, 8, True)
        assert (extended(unknown(6), chunk).is_known) is (begin == 6)


def test_snapshot_carries_the_log_hash() -> None:
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
    with pytest.raises(FatalError, match="is for offset 5, but the snapshot for 6"):
        encode_footer(header, 1, 0, LogHash(0, 5, b"d" * 32))
