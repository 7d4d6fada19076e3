"""Kafka's record batches: compression, cuts and damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import cramjam
import google_crc32c
import kafka_writer as kafka
import pytest

from replay.kafka.batches import batches
from replay.kafka.errors import KafkaLogError

NOOP = kafka.metadata("NoOpRecord")


def xerial(data: bytes) -> bytes:
    half = len(data) // 2
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (data[:half], data[half:])]
    return (
        b"\x82SNAPPY\0"
        + bytes(8)
        + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    )


@pytest.mark.parametrize(
    ("number", "compress"),
    [
        (0, bytes),
        (1, lambda data: bytes(cramjam.gzip.compress(data))),
        (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (2, xerial),
        (3, lambda data: bytes(cramjam.lz4.compress(data))),
        (4, lambda data: bytes(cramjam.zstd.compress(data))),
    ],
    ids=["none", "gzip", "snappy", "xerial", "lz4", "zstd"],
)
def test_batches_are_read_whatever_they_are_compressed_with(
    number: int, compress: Callable[[bytes], bytes]
) -> None:
    data = kafka.batch(5, [kafka.topic(), NOOP], compression=number, compress=compress)
    ((end, one),) = batches(data)
    assert end == len(data)
    assert [(record.offset, record.value) for record in one.records] == [
        (5, kafka.topic()),
        (6, NOOP),
    ]


def test_a_batch_that_is_not_what_its_compression_says_is_refused() -> None:
    data = kafka.batch(0, [NOOP], compression=4)
    with pytest.raises(KafkaLogError, match="offset 0 is malformed: it cannot be decompressed"):
        list(batches(data))


def test_the_last_batch_may_be_cut_off_and_zeros_may_follow() -> None:
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
def test_an_impossible_length_is_refused(length: int) -> None:
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
