"""Columns of many messages decoded at once equal those by protobuf."""

import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor

from raftlog import batch
from raftlog.metadata.records import (
    CHANGES_NOTHING,
    MESSAGES,
    ONLY_IN_SNAPSHOTS,
    RecordType,
    UnknownRecordError,
)
from raftlog.segments import columns
from raftlog.segments.columns import RowBuffer
from raftlog.wire.records.v1 import records_pb2 as pb

OFTEN = (
    RecordType.PARTITION,
    RecordType.PARTITION_CHANGE,
    RecordType.CONFIG,
    RecordType.KEY_VALUE,
    RecordType.PROGRESS,
)
NUMBERS = {
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2),
    FieldDescriptor.TYPE_INT32: (0, 1, -1, 127, 128, 2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 16_384, 2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_STRING: ("", "a", "orders" * 40),
}


def value(field: Any, dice: random.Random) -> Any:
    if field.type != FieldDescriptor.TYPE_BYTES:
        return dice.choice(NUMBERS[field.type])
    usual = field.name.endswith("id") and dice.random() < 0.95
    return dice.randbytes(16 if usual else dice.choice((0, 3, 200)))


def fill(message: Any, dice: random.Random, least: float) -> None:
    """Set each field with a probability; ``least``: the probability that a field is omitted."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() < least or (field.name == "imported" and dice.random() < 0.9):
            continue
        if field.is_repeated and field.message_type is None:
            getattr(message, field.name).extend(
                value(field, dice) for _ in range(dice.randrange(5))
            )
        elif field.is_repeated:
            for _ in range(dice.randrange(4)):
                fill(getattr(message, field.name).add(), dice, least)
        elif field.message_type is None:
            setattr(message, field.name, value(field, dice))
        else:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), dice, least)


def encoded(type_: RecordType, dice: random.Random) -> bytes:
    message: Any = MESSAGES[type_]()
    fill(message, dice, 0.35)
    if type_ == RecordType.PROGRESS:
        for sketch in (message.acknowledged, message.told):
            count = min(len(sketch.buckets), len(sketch.bucket_counts))
            if dice.random() < 0.9:
                del sketch.buckets[count:], sketch.bucket_counts[count:]
    return message.SerializeToString()


def table(records: list[tuple[int, int, bytes]]) -> pa.Table:
    rows = RowBuffer()
    for offset in range(0, len(records), 2):
        data = batch.encode(
            records[offset : offset + 2], base_offset=offset, epoch=1, timestamp_ms=offset
        )
        for header in batch.headers(data):
            rows.add(data, header)
    found = rows.take()
    found.validate(full=True)
    return found


def both(
    records: list[tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> tuple[pa.Table, pa.Table]:
    """Return the rows of records decoded at once, and one by one."""
    monkeypatch.setattr(columns, "_FEW", 1)
    at_once = table(records)
    monkeypatch.setattr(columns, "_FEW", len(records) + 1)
    return at_once, table(records)


@pytest.mark.parametrize("seed", range(4))
def test_bulk_decoded_columns_equal_protobufs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    types = [each for each in RecordType if each not in ONLY_IN_SNAPSHOTS]
    chosen = [dice.choice(OFTEN if dice.random() < 0.8 else types) for _ in range(1500)]
    at_once, one_by_one = both([(each, 0, encoded(each, dice)) for each in chosen], monkeypatch)
    for name in one_by_one.column_names:
        assert at_once[name].equals(one_by_one[name]), name


@pytest.mark.parametrize("type_", OFTEN)
def test_usual_messages_are_all_decoded_at_once(
    monkeypatch: pytest.MonkeyPatch, type_: RecordType
) -> None:
    message: Any = MESSAGES[type_]()
    fill(message, random.Random(5), 0.0)
    for name in columns._AT_ONCE[type_]:
        message.ClearField(name)
    if type_ == RecordType.PROGRESS:
        for sketch in (message.acknowledged, message.told):
            del sketch.bucket_counts[:]
            sketch.bucket_counts.extend(range(len(sketch.buckets)))
    if type_ in (RecordType.PARTITION, RecordType.PARTITION_CHANGE):
        message.topic_id = bytes(16)
    monkeypatch.setattr(columns, "_FEW", 1)
    monkeypatch.setattr(RowBuffer, "_one_by_one", None)
    found = table([(type_, 0, message.SerializeToString())] * 3)
    assert found["group_kind"].null_count == (3 if type_ in CHANGES_NOTHING else 0)


PLAIN = pb.ConfigRecord(resource_type=2, resource_name="orders", name="a", value="1")


@pytest.mark.parametrize(
    "body",
    [
        PLAIN.SerializeToString() * 2,
        PLAIN.SerializeToString() + b"\xf8\x01\x05",
        b"\x1a\x01b" + PLAIN.SerializeToString(),
        pb.ConfigRecord(resource_name="größe", name="ö", value="é").SerializeToString(),
        b"\x08\x82\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x08\x82\x00",
        b"",
    ],
    ids=["twice", "unknown", "order", "utf8", "wide", "long-zero", "empty"],
)
def test_odd_message_is_decoded_by_protobuf(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    usual = PLAIN.SerializeToString()
    records = [(int(RecordType.CONFIG), 0, each) for each in (usual, body, usual)]
    at_once, one_by_one = both(records, monkeypatch)
    assert at_once.equals(one_by_one)


@pytest.mark.parametrize(
    "body",
    [
        b"\x08",
        b"\x12\x05abc",
        b"\x08" + b"\xff" * 11,
        b"\xff" * 20,
        b"\x88\x80\x80\x80\x80\x00\x02",
        b"\x1a\x81\x80\x80\x80\x80\x00b",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x1a\x01\xff",
    ],
    ids=[
        *("no-value", "short", "endless", "endless-tag", "long-tag", "long-length", "far"),
        "no-text",
    ],
)
def test_malformed_message_names_its_offset(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(columns, "_FEW", 1)
    usual = PLAIN.SerializeToString()
    records = [(int(RecordType.CONFIG), 0, each) for each in (usual, usual, body)]
    with pytest.raises(
        UnknownRecordError, match="at offset 2: record type CONFIG cannot be parsed"
    ):
        table(records)
