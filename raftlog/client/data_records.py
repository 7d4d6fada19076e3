"""The records of a partition's log, for readers: batches taken apart and checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from raftlog import batch
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.wire.data.v1 import data_pb2

DATA_RECORD = 1
"""The type of a partition's records in a batch."""


class ConsumedRecord(NamedTuple):
    """One committed record.

    ``leader_epoch``: in which it was written. ``timestamp_ms``: its producer's, or else its
    leader's.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records_from(topic: str, partition: int, chunk: bytes, offset: int) -> Iterator[ConsumedRecord]:
    """The records of whole batches from ``offset`` on.

    Raises ApiError CORRUPT_MESSAGE: what came is not what was stored.
    """
    try:
        for header in batch.headers(chunk, verify=True):
            at = header.base_offset
            for type_, _, body in batch.bodies(chunk, header):
                if at >= offset and type_ == DATA_RECORD:
                    yield _record(topic, partition, at, header, body)
                at += 1
    except (CorruptLogError, DecodeError) as error:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"{topic}-{partition} at offset {offset}: {error}"
        ) from error


def end_of(chunk: bytes) -> int:
    """The offset behind a chunk of whole batches. Raises ApiError CORRUPT_MESSAGE."""
    end = -1
    try:
        for header in batch.headers(chunk, verify=False):
            end = header.end_offset
    except CorruptLogError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return end


def _record(
    topic: str, partition: int, offset: int, header: batch.BatchHeader, body: bytes
) -> ConsumedRecord:
    record = data_pb2.DataRecord.FromString(body)
    return ConsumedRecord(
        topic,
        partition,
        offset,
        header.epoch,
        record.timestamp_ms or header.timestamp_ms,
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        tuple((one.key, one.value if one.HasField("value") else None) for one in record.headers),
    )
