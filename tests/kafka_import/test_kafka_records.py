"""Decoding of Kafka's batches and records."""

import base64
import struct
from typing import Any

import google_crc32c
import kafka_writer as kafka
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.clock import MAX_MS
from replay.kafka.log_format import KafkaLogError, MalformedRecordError, batches
from replay.kafka.mapping import is_unknown, plain
from replay.kafka.records import METADATA, UNKNOWN, Field, control_record, metadata_record

_NUMBERS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}
_UUIDS = st.binary(min_size=16, max_size=16).map(
    lambda data: base64.urlsafe_b64encode(data).decode().rstrip("=")
)


def values_of(kind: str, fields: tuple[Field, ...], version: int) -> st.SearchStrategy[Any]:
    if kind.startswith("[]"):
        lists = st.lists(values_of(kind[2:].rstrip("?"), fields, version), max_size=3)
        return st.none() | lists if kind.endswith("?") else lists
    if kind == "struct":
        return messages_of(fields, version)
    if kind in _NUMBERS:
        bits = _NUMBERS[kind]
        return st.integers(0 if kind == "uint16" else -(1 << bits), (1 << bits) - 1)
    plain: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": _UUIDS,
        "string": st.text(max_size=9),
        "bytes": st.binary(max_size=9),
    }
    made = plain[kind.rstrip("?")]
    return st.none() | made if kind.endswith("?") else made


def messages_of(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    there = {
        one.name: values_of(one.type, one.fields, version) for one in fields if one.since <= version
    }
    absent = {one.name: st.just(one.default) for one in fields if one.since > version}
    return st.fixed_dictionaries({**there, **absent})


EVERY = [
    (schema, version) for schema in METADATA.values() for version in range(schema.versions + 1)
]


@pytest.mark.parametrize(("schema", "version"), EVERY, ids=lambda one: getattr(one, "name", one))
@settings(max_examples=15)
@given(data=st.data())
def test_every_version_of_every_record_round_trips(schema: Any, version: int, data: Any) -> None:
    fields = data.draw(messages_of(schema.fields, version))
    found = metadata_record(kafka.metadata(schema.name, version, **fields))
    assert (found.name, found.version, found.fields) == (schema.name, version, fields)


@pytest.mark.parametrize("schema", METADATA.values(), ids=lambda one: one.name)
def test_truncated_record_is_refused_at_every_length(schema: Any) -> None:
    whole = kafka.metadata(schema.name, **_sample(schema.fields))
    for length in range(len(whole)):
        with pytest.raises(MalformedRecordError):
            metadata_record(whole[:length])
    with pytest.raises(MalformedRecordError, match="trailing bytes after"):
        metadata_record(whole + b"\0")


def _sample(fields: tuple[Field, ...]) -> dict[str, Any]:
    def one(field: Field, kind: str) -> Any:
        if kind.startswith("[]"):
            return [one(field, kind[2:].rstrip("?"))]
        if kind == "struct":
            return _sample(field.fields)
        return {
            "bool": True, "float64": 1.5, "uuid": kafka.UUID, "string": "s", "bytes": b"b",
        }.get(kind.rstrip("?"), 5)  # fmt: skip

    return {field.name: one(field, field.type) for field in fields}


def test_field_of_a_newer_kafka_is_kept_and_named() -> None:
    found = metadata_record(kafka.metadata("NoOpRecord", unknown_tags={"9": "cafe"}))
    assert found.fields == {"unknown_tags": {"9": "cafe"}}
    assert is_unknown(found) == "NoOpRecord tag 9"
    assert "cafe" in plain(found).fields


def test_record_of_a_newer_kafka_is_kept_undecoded() -> None:
    found = metadata_record(kafka.unsigned_varint(1) + kafka.unsigned_varint(77) + b"\0abc")
    assert (found.name, found.api_key, found.fields) == (UNKNOWN, 77, {"body": b"abc".hex()})
    assert is_unknown(found) == "apiKey 77 version 0"
    assert is_unknown(metadata_record(bytes([1, 2, 1]) + b"xyz")) == "TopicRecord version 1"


def test_unknown_frame_is_refused() -> None:
    with pytest.raises(MalformedRecordError, match="frame version 2"):
        metadata_record(bytes([2, 20, 0, 0]))


def test_control_record_of_a_newer_kafka_is_kept() -> None:
    found = control_record(struct.pack(">hh", 0, 9), b"\0\0zz")
    assert (found.name, found.api_key) == (UNKNOWN, -9)


def test_lengths_are_checked_against_the_available_bytes() -> None:
    huge = bytes([1, 4, 0, 2]) + kafka.unsigned_varint(2**31) + b"x"
    with pytest.raises(KafkaLogError, match="expected 2147483647 more bytes"):
        metadata_record(huge)


def test_secrets_are_not_shown() -> None:
    record = metadata_record(
        kafka.metadata(
            "UserScramCredentialRecord",
            name="alice", mechanism=1, salt=b"sa", stored_key=b"stored", server_key=b"server",
            iterations=4096,
        )
    )  # fmt: skip
    shown = plain(record).fields
    assert "4096" in shown
    for secret in (b"sa", b"stored", b"server"):
        assert secret.hex() not in shown
        assert base64.b64encode(secret).decode() not in shown


NOOP = kafka.metadata("NoOpRecord")


@pytest.mark.parametrize(
    ("number", "codec"),
    [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"), (5, "codec 5"), (7, "codec 7")],
)
def test_compressed_batch_is_refused_without_decompression(number: int, codec: str) -> None:
    """KRaft never compresses its log, so a few bytes are never expanded."""
    first, data = kafka.batch(5, [NOOP]), kafka.batch(6, [kafka.topic(), NOOP], compression=number)
    found = batches(first + data)
    assert next(found)[1].base_offset == 5
    with pytest.raises(
        KafkaLogError,
        match=f"^at byte {len(first)}: the batch at offset 6 is compressed with {codec}: ",
    ):
        next(found)


def test_last_batch_may_be_truncated_and_followed_by_zeros() -> None:
    first, second = kafka.batch(0, [NOOP]), kafka.batch(1, [NOOP])
    for length in range(len(second)):
        assert [one.base_offset for _, one in batches(first + second[:length])] == [0]
    assert [one.base_offset for _, one in batches(first + second + bytes(4096))] == [0, 1]


def test_each_flipped_byte_of_a_batch_is_detected() -> None:
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
    with pytest.raises(KafkaLogError, match="invalid batch size:"):
        list(batches(bytes(broken)))


def test_records_and_offsets_must_match() -> None:
    def with_count(count: int) -> bytes:
        data = bytearray(kafka.batch(0, [NOOP]))
        data[57:61] = struct.pack(">i", count)
        data[17:21] = struct.pack(">I", google_crc32c.value(bytes(data[21:])))
        return bytes(data)

    found: Any = list(batches(with_count(1)))
    assert len(found) == 1
    for count in (2, -1):
        with pytest.raises(KafkaLogError, match="records for 1 offsets"):
            list(batches(with_count(count)))
    with pytest.raises(KafkaLogError, match="trailing bytes after"):
        list(batches(with_count(0)))


@pytest.mark.parametrize("timestamp_ms", [-2, -(1 << 63), MAX_MS + 1, (1 << 63) - 1])
def test_batch_with_an_impossible_timestamp_is_refused(timestamp_ms: int) -> None:
    with pytest.raises(KafkaLogError, match=f"offset 3 has timestamp {timestamp_ms} ms"):
        list(batches(kafka.batch(3, [NOOP], timestamp_ms=timestamp_ms)))


@pytest.mark.parametrize("timestamp_ms", [-1, 0, MAX_MS])
def test_batch_with_a_possible_timestamp_is_read(timestamp_ms: int) -> None:
    ((_, one),) = batches(kafka.batch(3, [NOOP], timestamp_ms=timestamp_ms))
    assert one.max_timestamp_ms == timestamp_ms


def test_batch_with_a_negative_epoch_is_refused() -> None:
    with pytest.raises(KafkaLogError, match="offset 3 claims epoch -1"):
        list(batches(kafka.batch(3, [NOOP], epoch=-1)))
