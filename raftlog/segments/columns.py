"""The typed Parquet form: one row a record, readable by any engine without raftlog.

This schema is part of the format.

Every row has the batch's columns and the record's own; the columns after ``body`` are filled for
the types that have such a field, and null elsewhere. ``body`` is the record's exact bytes (a
message of ``raftlog.wire.records.v1``).

* ``timestamp`` is ``timestamp_ms`` as a UTC timestamp; both are the batch's.
* ``client_id``, ``sequence``, ``all_below_done``: 0 for none, as in the log. ``batch_last_offset``
  is inclusive.
* ``group_kind``, ``group_id``: the entity group that the record changes; null for a record that
  changes nothing.
* ``topic_id``: 32 hex digits. ``config_value``: null where the key is deleted.
* ``leader``, ``isr``, ``replicas``, ``fenced``, ``in_controlled_shutdown``: null where the record
  leaves them unchanged.
* ``cause``: the name of a BROKER_REGISTRATION_CHANGE's ``BrokerCause`` or of a HOSTNAME's
  ``HostnameCause``.
* ``acl_resource_type``, ``acl_principal``: of an access control entry, whose resource types are
  numbered otherwise than those of configs, and whose principal is not the batch's. Its name is in
  ``resource_name``, its id in ``group_id``.
* ``client_name``, ``client_principal``: of an OPEN_CLIENT; no principal: anybody's.
* ``last_heard_epoch``, ``last_heard_age_ms``, ``last_heard_by_all``: of a LEADER_CHANGE, when those
  that elected it have last heard a leader, as the record says; null: it does not.
* ``acknowledged_sketch``, ``told_sketch``: of a PROGRESS record, how long records took from commit
  until all brokers had applied them, and until all knew (raftlog/metadata/sketch.py); null: not
  said.
* ``voters``: the set that a VOTERS record names; an empty directory id: not known.
* ``leader_id``: the controller of the epoch (LEADER_CHANGE). ``leader``: of the partition, -1 for
  none.
* ``leader_epoch``, ``partition_epoch``: as a PARTITION record begins them; a PARTITION_CHANGE says
  a leader epoch only where that leaps (after a restore or an unsafe recovery); else the fold
  counts.
* ``kv_value``: of a KEY_VALUE, null where the key is deleted; its key is ``group_id``.
  ``lease_id``: of a KEY_VALUE, 0 for none, and of a REMOVE_LEASE.
* ``supported_features``, ``log_dirs``: of a REGISTER_BROKER; the latter also of a
  BROKER_REGISTRATION_CHANGE, null where that leaves them unchanged.
* ``directories``: of a PARTITION or PARTITION_CHANGE in the log of a Kafka cluster, of each
  replica, as Kafka prints them; null: unchanged, or none.
* ``eligible_leader_replicas``, ``last_known_elr``, ``imported_name``: only in the log of a Kafka
  cluster (``raftlog import kafka``); the last is the name of a record that raftlog does not have.
* ``imported_fields``: what such a record says, as JSON; null: its transaction was aborted.

A record type that is not named in ``_TYPED`` has a column for each plain field of its message,
named after both (``lease_ttl_ms``: of a LEASE, with its name and its principal); null: the record
does not have the field.

Columns are added, never changed: a file from before a column was there reads as null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from raftlog import batch
from raftlog.metadata.entities import Cause, HostnameCause
from raftlog.metadata.records import (
    MESSAGES,
    ONLY_IN_SNAPSHOTS,
    RecordType,
    group_of,
    parse_body,
)
from raftlog.metadata.words import kafka_id

_IDS = pa.list_(pa.field("element", pa.int32()))
_MEMBERS = pa.list_(
    pa.field("element", pa.struct([("broker_id", pa.int32()), ("broker_epoch", pa.int64())]))
)
_APPLIED = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                ("broker_id", pa.int32()),
                ("broker_epoch", pa.int64()),
                ("applied_offset", pa.int64()),
            ]
        ),
    )
)
_VOTERS = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                ("voter_id", pa.int32()),
                ("voter_directory_id", pa.string()),
                ("endpoint", pa.string()),
            ]
        ),
    )
)

_RANGES = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                ("name", pa.string()),
                ("min_supported_version", pa.int32()),
                ("max_supported_version", pa.int32()),
            ]
        ),
    )
)
_TEXTS = pa.list_(pa.field("element", pa.string()))

_SKETCH = pa.struct(
    [
        ("count", pa.int64()),
        ("sum_us", pa.int64()),
        ("max_us", pa.int64()),
        (
            "buckets",
            pa.list_(
                pa.field("element", pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
            ),
        ),
    ]
)

_BATCH_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("epoch", pa.int32()),
    ("timestamp_ms", pa.int64()),
    ("timestamp", pa.timestamp("ms", tz="UTC")),
    ("batch_base_offset", pa.int64()),
    ("batch_last_offset", pa.int64()),
    ("control", pa.bool_()),
    ("principal", pa.string()),
    ("client_id", pa.int64()),
    ("sequence", pa.int64()),
    ("all_below_done", pa.int64()),
)
_RECORD_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("type", pa.int32()),
    ("type_name", pa.string()),
    ("version", pa.int32()),
    ("group_kind", pa.string()),
    ("group_id", pa.string()),
    ("body", pa.binary()),
)
_TYPED_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("broker_id", pa.int32()),
    ("broker_epoch", pa.int64()),
    ("incarnation_id", pa.string()),
    ("rack", pa.string()),
    ("fenced", pa.bool_()),
    ("in_controlled_shutdown", pa.bool_()),
    ("reason", pa.string()),
    ("topic_id", pa.string()),
    ("topic_name", pa.string()),
    ("partition_id", pa.int32()),
    ("leader", pa.int32()),
    ("leader_epoch", pa.int32()),
    ("leader_recovery_state", pa.int32()),
    ("partition_epoch", pa.int32()),
    ("replicas", _IDS),
    ("adding_replicas", _IDS),
    ("removing_replicas", _IDS),
    ("isr", _IDS),
    ("isr_with_epochs", _MEMBERS),
    ("proposer_id", pa.int32()),
    ("proposer_epoch", pa.int64()),
    ("resource_type", pa.int32()),
    ("resource_name", pa.string()),
    ("config_name", pa.string()),
    ("config_value", pa.string()),
    ("feature_name", pa.string()),
    ("feature_level", pa.int32()),
    ("leader_id", pa.int32()),
    ("lowest_acknowledged_offset", pa.int64()),
    ("high_watermark", pa.int64()),
    ("applied", _APPLIED),
    ("cursor_end_offset", pa.int64()),
    ("cause", pa.string()),
    ("acl_resource_type", pa.int32()),
    ("pattern_type", pa.int32()),
    ("acl_principal", pa.string()),
    ("host", pa.string()),
    ("operation", pa.int32()),
    ("permission_type", pa.int32()),
    ("client_name", pa.string()),
    ("client_principal", pa.string()),
    ("eligible_leader_replicas", _IDS),
    ("last_known_elr", _IDS),
    ("imported_name", pa.string()),
    ("last_heard_epoch", pa.int32()),
    ("last_heard_age_ms", pa.int64()),
    ("last_heard_by_all", pa.bool_()),
    ("acknowledged_sketch", _SKETCH),
    ("told_sketch", _SKETCH),
    ("voters", _VOTERS),
    ("kv_value", pa.binary()),
    ("lease_id", pa.int64()),
    ("imported_fields", pa.string()),
    ("supported_features", _RANGES),
    ("log_dirs", _TEXTS),
    ("directories", _TEXTS),
)
_ID_LISTS = ("replicas", "isr", "adding_replicas", "removing_replicas")
_CAUSE_NAMES = {int(each): each.name for each in Cause}
_HOSTNAME_CAUSE_NAMES = {int(each): each.name for each in HostnameCause}
_NEVER_NULL = {"type", "type_name", "version", "body", *(name for name, _ in _BATCH_FIELDS)}

Typed = dict[str, Any]


def _register(message: Any) -> Typed:
    return {
        "broker_id": message.broker_id,
        "broker_epoch": message.broker_epoch,
        "incarnation_id": message.incarnation_id,
        "rack": message.rack,
        "fenced": message.fenced,
        "in_controlled_shutdown": message.in_controlled_shutdown,
        "supported_features": tuple(
            [
                (each.name, each.min_supported_version, each.max_supported_version)
                for each in message.features
            ]
        ),
        "log_dirs": tuple(message.log_dirs),
    }


def _registration_change(message: Any) -> Typed:
    typed = {
        "broker_id": message.broker_id,
        "broker_epoch": message.broker_epoch,
        "reason": message.reason,
    }
    if message.cause:
        typed["cause"] = _CAUSE_NAMES.get(message.cause, str(message.cause))
    if message.log_dirs:
        typed["log_dirs"] = tuple(message.log_dirs)
    return typed | {
        name: getattr(message, name)
        for name in ("fenced", "in_controlled_shutdown")
        if message.HasField(name)
    }


def _partition(message: Any) -> Typed:
    return {
        "topic_id": message.topic_id.hex(),
        "partition_id": message.partition_id,
        "leader": message.leader,
        "leader_epoch": message.leader_epoch,
        "leader_recovery_state": message.leader_recovery_state,
        "partition_epoch": message.partition_epoch,
        **{name: tuple(getattr(message, name)) for name in _ID_LISTS},
        **_elr(message),
    }


def _partition_change(message: Any) -> Typed:
    typed = {
        "topic_id": message.topic_id.hex(),
        "partition_id": message.partition_id,
        "proposer_id": message.proposer_id,
        "proposer_epoch": message.proposer_epoch,
        "isr_with_epochs": tuple(
            [(state.broker_id, state.broker_epoch) for state in message.isr_with_epochs]
        ),
    }
    for name in ("leader", "leader_recovery_state", "leader_epoch"):
        if message.HasField(name):
            typed[name] = getattr(message, name)
    typed |= {
        name: tuple(getattr(message, name).ids) for name in _ID_LISTS if message.HasField(name)
    }
    return typed | _elr(message)


def _elr(message: Any) -> Typed:
    """Return the imported ELR columns of a partition's record."""
    if not message.HasField("imported"):
        return {}
    detail = message.imported
    said: Typed = {
        name: tuple(getattr(detail, name).ids)
        for name in ("eligible_leader_replicas", "last_known_elr")
        if detail.HasField(name)
    }
    if detail.HasField("directories"):
        said["directories"] = tuple([kafka_id(each.hex()) for each in detail.directories.ids])
    return said


def _config(message: Any) -> Typed:
    return {
        "resource_type": message.resource_type,
        "resource_name": message.resource_name,
        "config_name": message.name,
        "config_value": message.value if message.HasField("value") else None,
    } | ({"topic_id": message.topic_id.hex()} if message.topic_id else {})


def _progress(message: Any) -> Typed:
    sketches = {
        f"{name}_sketch": _sketch(getattr(message, name))
        for name in ("acknowledged", "told")
        if message.HasField(name)
    }
    return sketches | {
        "lowest_acknowledged_offset": message.lowest_acknowledged_offset,
        "high_watermark": message.high_watermark,
        "applied": tuple(
            [(each.broker_id, each.broker_epoch, each.applied_offset) for each in message.applied]
        ),
    }


def _hostname(message: Any) -> Typed:
    typed = {"reason": message.reason}
    if message.cause:
        typed["cause"] = _HOSTNAME_CAUSE_NAMES.get(message.cause, str(message.cause))
    return typed | ({"broker_id": message.broker_id} if message.HasField("broker_id") else {})


def _export_cursor(message: Any) -> Typed:
    return {"cursor_end_offset": message.end_offset} if message.HasField("end_offset") else {}


def _key_value(message: Any) -> Typed:
    value = {"kv_value": message.value} if message.HasField("value") else {}
    return value | {"lease_id": message.lease_id}


def _entry(message: Any) -> Typed:
    return {
        "acl_resource_type": message.resource_type,
        "resource_name": message.resource_name,
        "pattern_type": message.pattern_type,
        "acl_principal": message.principal,
        "host": message.host,
        "operation": message.operation,
        "permission_type": message.permission_type,
    }


def _open_client(message: Any) -> Typed:
    owner = {"client_principal": message.principal} if message.principal else {}
    return {"client_name": message.name} | owner


def _sketch(message: Any) -> Typed:
    return {
        "count": message.count,
        "sum_us": message.sum_us,
        "max_us": message.max_us,
        "buckets": list(zip(message.buckets, message.bucket_counts, strict=False)),
    }


def _voters(message: Any) -> Typed:
    return {
        "voters": tuple(
            [(each.voter_id, each.voter_directory_id, each.endpoint) for each in message.voters]
        )
    }


def _imported(message: Any) -> Typed:
    effect = {} if message.aborted else {"imported_fields": message.fields}
    return {"imported_name": message.name} | effect


def _leader_change(message: Any) -> Typed:
    if not message.HasField("last_heard_age_ms"):
        return {"leader_id": message.leader_id}
    return {
        "leader_id": message.leader_id,
        "last_heard_epoch": message.last_heard_epoch,
        "last_heard_age_ms": message.last_heard_age_ms,
        "last_heard_by_all": message.last_heard_by_all,
    }


_TYPED: dict[int, Callable[[Any], Typed]] = {
    RecordType.REGISTER_BROKER: _register,
    RecordType.UNREGISTER_BROKER: lambda m: {
        "broker_id": m.broker_id,
        "broker_epoch": m.broker_epoch,
    },
    RecordType.BROKER_REGISTRATION_CHANGE: _registration_change,
    RecordType.TOPIC: lambda m: {"topic_id": m.topic_id.hex(), "topic_name": m.name},
    RecordType.PARTITION: _partition,
    RecordType.PARTITION_CHANGE: _partition_change,
    RecordType.REMOVE_TOPIC: lambda m: {"topic_id": m.topic_id.hex()},
    RecordType.CONFIG: _config,
    RecordType.FEATURE_LEVEL: lambda m: {"feature_name": m.name, "feature_level": m.feature_level},
    RecordType.LEADER_CHANGE: _leader_change,
    RecordType.PROGRESS: _progress,
    RecordType.NO_OP: lambda _: {},
    RecordType.VOTERS: _voters,
    RecordType.OPEN_CLIENT: _open_client,
    RecordType.CLOSE_CLIENT: lambda m: {"reason": m.reason},
    RecordType.RECOVERY: lambda m: {"reason": m.reason},
    RecordType.HOSTNAME: _hostname,
    RecordType.EXPORT_CURSOR: _export_cursor,
    RecordType.KEY_VALUE: _key_value,
    RecordType.REMOVE_LEASE: lambda m: {"lease_id": m.lease_id, "reason": m.reason},
    RecordType.ACCESS_CONTROL_ENTRY: _entry,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: lambda _: {},
    RecordType.IMPORTED: _imported,
}
"""The columns that a record fills, by its type."""
_PLAIN = {
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_ENUM: pa.int32(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
}


def plain_fields(type_: RecordType) -> dict[str, Any]:
    """Return column -> field of the message, for a record type that is not in ``_TYPED``."""
    return {
        f"{type_.name.lower()}_{field.name}": field
        for field in MESSAGES[type_].DESCRIPTOR.fields
        if field.type in _PLAIN and not field.is_repeated
    }


def plain_values(fields: dict[str, Any], message: Any) -> Typed:
    """Return the columns that a record fills; a field that it does not have fills none."""
    return {
        column: getattr(message, field.name)
        for column, field in fields.items()
        if not field.has_presence or message.HasField(field.name)
    }


_DERIVED = {
    type_: plain_fields(type_)
    for type_ in RecordType
    if type_ not in _TYPED and type_ not in ONLY_IN_SNAPSHOTS
}
_TYPED |= {type_: partial(plain_values, fields) for type_, fields in _DERIVED.items()}
_COLUMNS = _TYPED_FIELDS + tuple(
    (column, _PLAIN[field.type]) for fields in _DERIVED.values() for column, field in fields.items()
)
SCHEMA = pa.schema(
    [pa.field("offset", pa.int64(), nullable=False)]
    + [
        pa.field(name, kind, nullable=name not in _NEVER_NULL)
        for name, kind in _BATCH_FIELDS + _RECORD_FIELDS + _COLUMNS
    ]
)
"""Schema of the Parquet files; the columns in order."""

_FEATURE_LEVEL = int(RecordType.FEATURE_LEVEL)
_TYPE_NAMES = {int(each): each.name for each in RecordType}


_SINCE_THE_FIRST = {
    *("group_kind", "group_id", "broker_id", "broker_epoch", "incarnation_id", "rack", "fenced"),
    *("in_controlled_shutdown", "reason", "topic_id", "topic_name", "partition_id", "leader"),
    *("replicas", "isr", "isr_with_epochs", "proposer_id", "proposer_epoch", "resource_type"),
    *("resource_name", "config_name", "config_value", "feature_name", "feature_level", "leader_id"),
    *("lowest_acknowledged_offset", "high_watermark", "applied"),
}
"""Nullable columns that every file has: they are as old as the format."""


def odd_columns(names: Sequence[str]) -> str:
    """Return why a file with these columns cannot be an export's; empty if it can be."""
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        return f"it has the column {twice} twice"
    for field in SCHEMA:
        needed = not field.nullable or field.name in _SINCE_THE_FIRST
        if needed and field.name not in names:
            return f"it has no column {field.name}"
    return ""


class RowBuffer:
    """A buffer of rows in columns.

    The values of a batch's header are stored once, and the typed columns are sparse: most records
    fill few.

    Columns of plain values and tuples of them, not rows: the garbage collector would visit a list
    per row at every collection, which took more than half of the time.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.features: dict[str, int] = {}
        """Feature levels set by the records since the last ``take`` (0: removed)."""
        self._first_offset = 0
        self._batches: list[tuple[Any, ...]] = []
        self._batch_of_row: list[int] = []
        self._records: tuple[list[Any], ...] = tuple([] for _ in _RECORD_FIELDS)
        self._typed: dict[str, tuple[list[int], list[Any]]] = {
            name: ([], []) for name, _ in _COLUMNS
        }
        """Row numbers and values of each typed column."""

    def add(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Add the records of one batch, which follows the one before.

        Raises CorruptLogError, UnknownRecordError.
        """
        if not self.rows:
            self._first_offset = header.base_offset
        self._batch_of_row += [len(self._batches)] * header.record_count
        self._batches.append(
            (
                header.epoch,
                header.timestamp_ms,
                header.timestamp_ms,
                header.base_offset,
                header.last_offset,
                header.control,
                header.principal,
                header.client_id,
                header.sequence,
                header.all_below_done,
            )
        )
        for type_, version, body in batch.bodies(chunk, header):
            self._add_record(type_, version, body)
        self.bytes += header.size

    def _add_record(self, type_: int, version: int, body: bytes) -> None:
        message, row = parse_body(type_, version, body), self.rows
        kind, id_ = group_of(type_, message, self._first_offset + row) or (None, None)
        types, names, versions, kinds, ids, bodies = self._records
        types.append(type_)
        names.append(_TYPE_NAMES[type_])
        versions.append(version)
        kinds.append(kind)
        ids.append(id_)
        bodies.append(body)
        typed = self._typed
        for name, value in _TYPED[type_](message).items():
            rows, values = typed[name]
            rows.append(row)
            values.append(value)
        if type_ == _FEATURE_LEVEL:
            self.features[message.name] = message.feature_level
        self.rows = row + 1

    def take(self) -> pa.Table:
        """Return the buffered rows, at least one, as a table, and empty the buffer."""
        batch_of_row = pa.array(self._batch_of_row, pa.int32())
        columns = [pa.array(range(self._first_offset, self._first_offset + self.rows), pa.int64())]
        for (_, kind), values in zip(_BATCH_FIELDS, zip(*self._batches, strict=True), strict=True):
            columns.append(pa.array(values, kind).take(batch_of_row))
        columns += [
            pa.array(values, kind)
            for (_, kind), values in zip(_RECORD_FIELDS, self._records, strict=True)
        ]
        for name, kind in _COLUMNS:
            column: list[Any] = [None] * self.rows
            for row, value in zip(*self._typed[name], strict=True):
                column[row] = value
            columns.append(pa.array(column, kind))
        table = pa.table(columns, schema=SCHEMA)
        self._clear()
        return table
