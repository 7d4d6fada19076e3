"""A writer of Kafka's records and batches, from the reader's schemas."""

import base64
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from replay.kafka.records import CONTROL, METADATA, Field, Schema

_FIXED = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
}
NUMBER = {schema.name: number for number, schema in METADATA.items()}
CONTROL_NUMBER = {schema.name: number for number, schema in CONTROL.items()}


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint(value: int) -> bytes:
    return unsigned_varint((value << 1) ^ (value >> 63))


def _value(field: Field, value: Any, version: int) -> bytes:
    kind = field.type
    if kind.startswith("[]"):
        if value is None:
            return unsigned_varint(0)
        element = field._replace(type=kind[2:].rstrip("?"))
        return unsigned_varint(len(value) + 1) + b"".join(
            _value(element, one, version) for one in value
        )
    if kind == "struct":
        return message(field.fields, value, version)
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == "bool":
        return b"\1" if value else b"\0"
    if kind == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    if value is None:
        return unsigned_varint(0)
    data = value.encode() if kind.startswith("string") else value
    return unsigned_varint(len(data) + 1) + data


def message(fields: Sequence[Field], values: dict[str, Any], version: int) -> bytes:
    """Encode the fields of a version; tagged ones with default values are omitted."""
    plain, tagged = [], []
    for field in fields:
        if field.since > version:
            continue
        value = values.get(field.name, field.default)
        if field.tag is None:
            plain.append(_value(field, value, version))
        elif value != field.default:
            tagged.append((field.tag, _value(field, value, version)))
    for tag, hexed in values.get("unknown_tags", {}).items():
        tagged.append((int(tag), bytes.fromhex(hexed)))
    tags = [
        unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in sorted(tagged)
    ]
    return b"".join([*plain, unsigned_varint(len(tags)), *tags])


def metadata(name: str, version: int | None = None, /, **values: Any) -> bytes:
    """Encode the value of a record of a data batch."""
    schema = METADATA[NUMBER[name]]
    version = schema.versions if version is None else version
    head = [unsigned_varint(one) for one in (1, NUMBER[name], version)]
    return b"".join(head) + message(schema.fields, values, version)


def control(name: str, /, **values: Any) -> tuple[bytes, bytes]:
    """Encode key and value of a record of a control batch."""
    schema: Schema = CONTROL[CONTROL_NUMBER[name]]
    version = values.setdefault("version", 0)
    return struct.pack(">hh", 0, CONTROL_NUMBER[name]), message(schema.fields, values, version)


def batch(
    base_offset: int,
    records: Sequence[bytes | tuple[bytes, bytes]],
    *,
    epoch: int = 1,
    timestamp_ms: int = 1000,
    compression: int = 0,
) -> bytes:
    """Encode a record batch; records with a key make it a control batch."""
    is_control = isinstance(records[0], tuple)
    parts = []
    for delta, one in enumerate(records):
        key, value = one if isinstance(one, tuple) else (None, one)
        sized_key = varint(-1) if key is None else varint(len(key)) + key
        body = (
            b"\0" + varint(0) + varint(delta) + sized_key + varint(len(value)) + value + varint(0)
        )
        parts.append(varint(len(body)) + body)
    content = b"".join(parts)
    count = len(records)
    attributes = compression | (0x20 if is_control else 0)
    rest = (
        struct.pack(
            ">hiqqqhii",
            attributes, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count,
        )
        + content
    )  # fmt: skip
    behind_length = struct.pack(">ibI", epoch, 2, google_crc32c.value(rest)) + rest
    return struct.pack(">qi", base_offset, len(behind_length)) + behind_length


def write_node(
    directory: Path, log: bytes, *, node_id: int = 1, start: int = 0, cluster_id: str = "c"
) -> Path:
    """Write a node's directory with one segment."""
    inside = directory / "__cluster_metadata-0"
    inside.mkdir(parents=True)
    (inside / f"{start:020d}.log").write_bytes(log)
    (directory / "meta.properties").write_text(f"node.id={node_id}\ncluster.id={cluster_id}\n")
    return inside


def write_checkpoint(
    inside: Path, end_offset: int, *records: bytes, epoch: int = 1, timestamp_ms: int = 1000
) -> Path:
    """Write a snapshot of the state at an offset (exclusive), beside a node's segments."""
    header = control("SnapshotHeaderRecord", last_contained_log_timestamp=timestamp_ms)
    parts = [batch(0, [header]), batch(1, records)] if records else [batch(0, [header])]
    parts.append(batch(1 + len(records), [control("SnapshotFooterRecord")]))
    path = inside / f"{end_offset:020d}-{epoch:010d}.checkpoint"
    path.write_bytes(b"".join(parts))
    return path


UUID = "AAAAAAAAAAAAAAAAAAAAAQ"


def topic(name: str = "orders", topic_id: str = UUID) -> bytes:
    return metadata("TopicRecord", name=name, topic_id=topic_id)


def partition(index: int = 0, topic_id: str = UUID, **values: Any) -> bytes:
    defaults = {
        "partition_id": index, "topic_id": topic_id, "replicas": [1, 2], "isr": [1, 2],
        "removing_replicas": [], "adding_replicas": [], "leader": 1, "leader_epoch": 0,
        "partition_epoch": 0, "directories": [],
    }  # fmt: skip
    return metadata("PartitionRecord", **{**defaults, **values})


def config(key: str, value: str | None, name: str = "orders") -> bytes:
    return metadata("ConfigRecord", resource_type=2, resource_name=name, name=key, value=value)


def leader_change(leader_id: int = 1) -> tuple[bytes, bytes]:
    voters = [{"voter_id": leader_id}]
    return control(
        "LeaderChangeMessage", leader_id=leader_id, voters=voters, granting_voters=voters
    )


def unpack(archive: Path, directory: Path) -> None:
    """Extract a stored log. (``extractall`` takes a filter from Python 3.11.4 on, and warns without
    one from 3.12 on.)
    """
    with tarfile.open(archive) as packed:
        for member in packed:
            file = packed.extractfile(member)
            if file is not None:
                path = directory / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read())
