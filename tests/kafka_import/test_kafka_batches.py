"""Kafka's record batches: compression, cuts and damage."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import kafka_writer as kafka
import pytest

from raftlog.clock import MAX_MS
from replay.kafka.log_format import KafkaLogError, batches

NOOP = kafka.metadata("NoOpRecord")


@pytest.mark.parametrize(
    ("number", "codec"),
    [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"), (5, "codec 5"), (7, "codec 7")],
)
def test_compressed_batch_is_refused_undecoded(number: int, codec: str) -> None:
    """KRaft never compresses its log: nothing that a few bytes expand to is ever made."""
    first, data = kafka.batch(5, [NOOP]), kafka.batch(6, [kafka.topic(), NOOP], compression=number)
    found = batches(first + data)
    assert next(found)[1].base_offset == 5
    with pytest.raises(
        KafkaLogError,
        match=f"^at byte {len(first)}: the batch at offset 6 is compressed with {codec}: ",
    ):
        next(found)


def test_last_batch_may_be_cut_off_and_zeros_may_follow() -> None:
    first, second = kafka.batch(0, [NOOP]), kafka.batch(1, [NOOP])
    for length in range(len(second)):
        assert [one.base_offset for _, one in batches(first + second[:length])] == [0]
    assert [one.base_offset for _, one in batches(first + second + bytes(4096))] == [0, 1]


def test_each_flipped_byte_of_a_batch_is_noticed() -> None:
    first, data = kafka.batch(0, [NOOP]), kafka.batch(1, [kafka.topic(), NOOP])
    for position in range(12, len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x40
        if position < 16:
            # The leader epoch is outside of the checksum.
            continue
        with pytest.raises(KafkaLogError, match=rf"at byte {len(first)}: "):
            list(batches(first + bytes(broken)))


@pytest.mark.parametrize("length", [0, 48, -1, 1 << 30])
def test_impossible_length_is_refused(length: int) -> None:
    broken = bytearray(kafka.batch(3, [NOOP]))
    broken[8:12] = struct.pack(">i", length)
    with pytest.raises(KafkaLogError, match="a batch is said to have"):
        list(batches(bytes(broken)))


def test_records_and_offsets_must_fit() -> None:
    def with_count(count: int) -> bytes:
        data = bytearray(kafka.batch(0, [NOOP]))
        data[57:61] = struct.pack(">i", count)
        data[17:21] = struct.pack(">I", google_crc32c.value(bytes(data[21:])))
        return bytes(data)

    found: Any = list(batches(with_count(1)))
    assert len(found) == 1
    for count in (2, -1):
        with pytest.raises(KafkaLogError, match="records and 1 offsets"):
            list(batches(with_count(count)))
    with pytest.raises(KafkaLogError, match="bytes are left behind"):
        list(batches(with_count(0)))


@pytest.mark.parametrize("timestamp_ms", [-2, -(1 << 63), MAX_MS + 1, (1 << 63) - 1])
def test_batch_with_an_impossible_timestamp_is_refused(timestamp_ms: int) -> None:
    with pytest.raises(KafkaLogError, match=f"offset 3 has the timestamp {timestamp_ms} ms"):
        list(batches(kafka.batch(3, [NOOP], timestamp_ms=timestamp_ms)))


@pytest.mark.parametrize("timestamp_ms", [-1, 0, MAX_MS])
def test_batch_with_a_possible_timestamp_is_read(timestamp_ms: int) -> None:
    ((_, one),) = batches(kafka.batch(3, [NOOP], timestamp_ms=timestamp_ms))
    assert one.max_timestamp_ms == timestamp_ms


def test_batch_with_a_negative_epoch_is_refused() -> None:
    with pytest.raises(KafkaLogError, match="offset 3 is said to be of epoch -1"):
        list(batches(kafka.batch(3, [NOOP], epoch=-1)))
