"""The typed Parquet form: one row per record, readable by any engine without raftlog.

This schema is part of the format.

Every row has the batch's columns and the record's own; the columns after ``body`` are set for the
record types that have such a field, and null otherwise. ``body`` is the record's exact bytes (a
message of ``raftlog.wire.records.v1``).

* ``timestamp`` is ``timestamp_ms`` as a UTC timestamp; both are the batch's.
* ``client_id``, ``sequence``, ``all_below_done``: 0 if none, as in the log. ``batch_last_offset``
  is inclusive.
* ``group_kind``, ``group_id``: the entity group that the record changes; null for a record that
  changes nothing.
* ``topic_id``: 32 hex digits. ``config_value``: null if the key is deleted.
* ``leader``, ``isr``, ``replicas``, ``fenced``, ``in_controlled_shutdown``: null if the record
  leaves them unchanged.
* ``cause``: the name of a BROKER_REGISTRATION_CHANGE's ``BrokerCause`` or of a HOSTNAME's
  ``HostnameCause``.
* ``acl_resource_type``, ``acl_principal``: of an access control entry. The numbers of its resource
  types differ from those of configs, and its principal is not the batch's. Its resource name is in
  ``resource_name``, its id in ``group_id``.
* ``client_name``, ``client_principal``: of an OPEN_CLIENT; without a principal, any principal may
  use the client.
* ``last_heard_epoch``, ``last_heard_age_ms``, ``last_heard_by_all``: of a LEADER_CHANGE, when the
  voters that elected the leader had last heard a leader; null if not recorded.
* ``acknowledged_sketch``, ``told_sketch``: of a PROGRESS record, the times from a record's commit
  until all brokers had applied it, and until all knew that (raftlog/metadata/sketch.py); null if
  not recorded.
* ``voters``: the voter set in a VOTERS record; a directory id is empty if unknown.
* ``leader_id``: the controller that leads the epoch (LEADER_CHANGE). ``leader``: the partition's
  leader, or -1.
* ``leader_epoch``, ``partition_epoch``: the initial values in a PARTITION record; a
  PARTITION_CHANGE contains a leader epoch only if that jumps (after a restore or an unsafe
  recovery); otherwise the fold counts them.
* ``kv_value``: of a KEY_VALUE, null if the key is deleted; its key is ``group_id``. ``lease_id``:
  of a KEY_VALUE, 0 without a lease, and of a REMOVE_LEASE.
* ``supported_features``, ``log_dirs``: of a REGISTER_BROKER; the latter also of a
  BROKER_REGISTRATION_CHANGE, null if unchanged.
* ``directories``: of a PARTITION or PARTITION_CHANGE in the log of a Kafka cluster, one per
  replica, as Kafka prints them; null if unchanged or none.
* ``eligible_leader_replicas``, ``last_known_elr``: of a PARTITION or PARTITION_CHANGE (KIP-966);
  null if unchanged or none.
* ``recovery``: of a PARTITION_CHANGE that elects a leader from the replicas' reports, as JSON.
* ``imported_name``: only in the log of a Kafka cluster (``raftlog import kafka``): the name of a
  record type that raftlog does not have.
* ``imported_fields``: the contents of such a record, as JSON; null if its transaction was aborted.

A record type that is not in ``_OF_TYPE`` has a column for each plain field of its message, named
after both (``lease_ttl_ms``: the TTL of a LEASE; similarly its name and its principal); null if the
record does not have the field.

Columns are added, never changed: in a file written before a column existed, it reads as null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToJson

from raftlog import batch
from raftlog.metadata.entities import Cause, HostnameCause
from raftlog.metadata.records import (
    CHANGES_NOTHING,
    MESSAGES,
    ONLY_IN_SNAPSHOTS,
    RECORD_VERSION,
    RecordType,
    UnknownRecordError,
    group_of,
    parse_body,
)
from raftlog.metadata.words import kafka_id
from raftlog.segments.wire_columns import Bools, Ints, Messages, lists
from raftlog.wire.records.v1.records_pb2 import PartitionChangeRecord, PartitionRecord

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
    ("recovery", pa.string()),
)
_NEVER_NULL = {"type", "type_name", "version", "body", *(name for name, _ in _BATCH_FIELDS)}
_ID_LISTS = "replicas isr adding_replicas removing_replicas"
_OF_TYPE = {
    RecordType.REGISTER_BROKER: (
        "broker_id broker_epoch incarnation_id rack fenced in_controlled_shutdown log_dirs"
        " supported_features=features"
    ),
    RecordType.UNREGISTER_BROKER: "broker_id broker_epoch",
    RecordType.BROKER_REGISTRATION_CHANGE: (
        "broker_id broker_epoch reason fenced in_controlled_shutdown log_dirs?"
    ),
    RecordType.TOPIC: "topic_id topic_name=name",
    RecordType.PARTITION: (
        "topic_id partition_id leader leader_epoch leader_recovery_state partition_epoch"
        f" {_ID_LISTS}"
    ),
    RecordType.PARTITION_CHANGE: (
        "topic_id partition_id proposer_id proposer_epoch isr_with_epochs leader"
        f" leader_recovery_state leader_epoch {_ID_LISTS} eligible_leader_replicas last_known_elr"
    ),
    RecordType.REMOVE_TOPIC: "topic_id",
    RecordType.CONFIG: "resource_type resource_name config_name=name config_value=value topic_id?",
    RecordType.FEATURE_LEVEL: "feature_name=name feature_level",
    RecordType.LEADER_CHANGE: "leader_id",
    RecordType.PROGRESS: (
        "lowest_acknowledged_offset high_watermark applied acknowledged_sketch=acknowledged"
        " told_sketch=told"
    ),
    RecordType.NO_OP: "",
    RecordType.VOTERS: "voters",
    RecordType.OPEN_CLIENT: "client_name=name client_principal=principal?",
    RecordType.CLOSE_CLIENT: "reason",
    RecordType.RECOVERY: "reason",
    RecordType.HOSTNAME: "reason broker_id",
    RecordType.EXPORT_CURSOR: "cursor_end_offset=end_offset",
    RecordType.KEY_VALUE: "kv_value=value lease_id",
    RecordType.REMOVE_LEASE: "lease_id reason",
    RecordType.ACCESS_CONTROL_ENTRY: (
        "acl_resource_type=resource_type resource_name pattern_type acl_principal=principal host"
        " operation permission_type"
    ),
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: "",
    RecordType.IMPORTED: "imported_name=name",
}
"""The columns that a record sets, by its type, each followed by ``=`` and the field's name if that
differs. A column is null if the message lacks the optional field; with a question mark, also if the
field is empty.
"""
_CAUSES = {
    RecordType.BROKER_REGISTRATION_CHANGE: {int(each): each.name for each in Cause},
    RecordType.HOSTNAME: {int(each): each.name for each in HostnameCause},
}

Typed = dict[str, Any]


def _elr(message: Any) -> Typed:
    """Return the ELR columns, the imported ones and the recovery of a partition record."""
    imported = message.HasField("imported")
    detail = message.imported if imported else message
    said: Typed = {}
    for name in ("eligible_leader_replicas", "last_known_elr"):
        if isinstance(detail, PartitionRecord):
            if ids := tuple(getattr(detail, name)):
                said[name] = ids
        elif detail.HasField(name):
            said[name] = tuple(getattr(detail, name).ids)
    if imported and detail.HasField("directories"):
        said["directories"] = tuple([kafka_id(each.hex()) for each in detail.directories.ids])
    if isinstance(message, PartitionChangeRecord) and message.HasField("recovery"):
        said["recovery"] = MessageToJson(
            message.recovery, preserving_proto_field_name=True, indent=None
        )
    return said


def _cause(type_: RecordType, message: Any) -> Typed:
    if not message.cause:
        return {}
    return {"cause": _CAUSES[type_].get(message.cause, str(message.cause))}


def _last_heard(message: Any) -> Typed:
    if not message.HasField("last_heard_age_ms"):
        return {}
    names = ("last_heard_epoch", "last_heard_age_ms", "last_heard_by_all")
    return {name: getattr(message, name) for name in names}


_FURTHER: dict[int, Callable[[Any], Typed]] = {
    RecordType.PARTITION: _elr,
    RecordType.PARTITION_CHANGE: _elr,
    RecordType.BROKER_REGISTRATION_CHANGE: partial(_cause, RecordType.BROKER_REGISTRATION_CHANGE),
    RecordType.HOSTNAME: partial(_cause, RecordType.HOSTNAME),
    RecordType.LEADER_CHANGE: _last_heard,
    RecordType.IMPORTED: lambda m: {} if m.aborted else {"imported_fields": m.fields},
}
"""Functions for columns that are not a plain field, by record type."""
_PLAIN = {
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_ENUM: pa.int32(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
}


def plain_fields(type_: RecordType) -> dict[str, pa.DataType]:
    """Return column -> type for a record type that is not in ``_OF_TYPE``."""
    return {
        f"{type_.name.lower()}_{field.name}": _PLAIN[field.type]
        for field in MESSAGES[type_].DESCRIPTOR.fields
        if field.type in _PLAIN and not field.is_repeated
    }


_DERIVED = {
    type_: plain_fields(type_)
    for type_ in RecordType
    if type_ not in _OF_TYPE and type_ not in ONLY_IN_SNAPSHOTS
}
_COLUMNS = _TYPED_FIELDS + tuple(
    column for columns in _DERIVED.values() for column in columns.items()
)
SCHEMA = pa.schema(
    [pa.field("offset", pa.int64(), nullable=False)]
    + [
        pa.field(name, kind, nullable=name not in _NEVER_NULL)
        for name, kind in _BATCH_FIELDS + _RECORD_FIELDS + _COLUMNS
    ]
)
"""Schema of the Parquet files, with the columns in order."""


class _Column(NamedTuple):
    """A column that one record type sets from a field of its message."""

    name: str
    field: Any
    optional: bool
    """Whether the column is null when the message lacks the field."""
    null_if_empty: bool
    get: Callable[[Any], Any]
    """Function that returns the value of the field."""


def _columns_of(type_: RecordType) -> tuple[_Column, ...]:
    fields = MESSAGES[type_].DESCRIPTOR.fields_by_name
    if type_ in _DERIVED:
        skipped = len(type_.name) + 1
        words = [f"{name}={name[skipped:]}" for name in _DERIVED[type_]]
    else:
        words = _OF_TYPE[type_].split()
    columns = []
    for word in words:
        name, _, field_name = word.removesuffix("?").partition("=")
        field = fields[field_name or name]
        optional = field.has_presence and not field.is_repeated
        get = _getter(field, SCHEMA.field(name).type)
        columns.append(_Column(name, field, optional, word.endswith("?"), get))
    return tuple(columns)


def _getter(field: Any, kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function from a message to the value of a column."""
    value = attrgetter(field.name)
    if field.is_repeated:
        if field.message_type is None:
            return lambda message: tuple(value(message))
        members = attrgetter(*(each.name for each in field.message_type.fields))
        return lambda message: tuple(map(members, value(message)))
    if field.message_type is not None:
        if pa.types.is_struct(kind):
            return lambda message: _sketch(value(message))
        return lambda message: tuple(value(message).ids)
    if field.type == FieldDescriptor.TYPE_BYTES and kind == pa.string():
        return lambda message: value(message).hex()
    return value


def _sketch(message: Any) -> Typed:
    return {
        "count": message.count,
        "sum_us": message.sum_us,
        "max_us": message.max_us,
        "buckets": list(zip(message.buckets, message.bucket_counts, strict=False)),
    }


_TYPED = {type_: _columns_of(type_) for type_ in RecordType if type_ not in ONLY_IN_SNAPSHOTS}


def typed_values(type_: int, message: Any) -> Typed:
    """Return the columns that a record sets."""
    typed = {}
    for name, field, optional, null_if_empty, get in _TYPED[RecordType(type_)]:
        if not optional or message.HasField(field.name):
            value = get(message)
            if value or not null_if_empty:
                typed[name] = value
    further = _FURTHER.get(type_)
    return typed if further is None else typed | further(message)


_SINCE_THE_FIRST = {
    *("group_kind", "group_id", "broker_id", "broker_epoch", "incarnation_id", "rack", "fenced"),
    *("in_controlled_shutdown", "reason", "topic_id", "topic_name", "partition_id", "leader"),
    *("replicas", "isr", "isr_with_epochs", "proposer_id", "proposer_epoch", "resource_type"),
    *("resource_name", "config_name", "config_value", "feature_name", "feature_level", "leader_id"),
    *("lowest_acknowledged_offset", "high_watermark", "applied"),
}
"""Nullable columns that every file has, as they are as old as the format."""


def odd_columns(names: Sequence[str]) -> str:
    """Return why a file with these columns cannot belong to an export, or empty if it can."""
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        return f"it contains the column {twice} twice"
    for field in SCHEMA:
        needed = not field.nullable or field.name in _SINCE_THE_FIRST
        if needed and field.name not in names:
            return f"it lacks the column {field.name}"
    return ""


_TYPE_NAMES = {int(each): each.name for each in RecordType}
_TOPIC_ID_BYTES = 16
_AT_ONCE: dict[int, tuple[str, ...]] = {
    RecordType.PARTITION: ("imported", "eligible_leader_replicas", "last_known_elr"),
    RecordType.PARTITION_CHANGE: ("imported", "recovery"),
    RecordType.CONFIG: ("topic_id",),
    RecordType.KEY_VALUE: (),
    RecordType.PROGRESS: (),
}
"""The most frequent record types, which are decoded in bulk, with the fields that prevent that for
a message.
"""
_FEW = 64
"""Number of records of one type below which decoding them one by one is faster."""
Part = tuple[Ints, dict[str, pa.Array]]
"""Row numbers, and the columns that these rows set."""


class RowBuffer:
    """A buffer of rows, stored by column.

    The values of a batch's header are stored once, and the typed columns are sparse: most records
    set few. The columns contain plain values and tuples, not row objects: the garbage collector
    would visit a list per row at every collection, which took more than half of the time.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._first_offset = 0
        self._batches: list[tuple[Any, ...]] = []
        self._counts: list[int] = []
        self._records: list[batch.Body] = []

    def add(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Add the records of one batch, the next in the log.

        Raises CorruptLogError, and UnknownRecordError for a type or a version that this build does
        not know.
        """
        if not self.rows:
            self._first_offset = header.base_offset
        self._counts.append(header.record_count)
        self._batches.append(header)
        records = list(batch.bodies(chunk, header))
        for type_, version, _ in records:
            if version != RECORD_VERSION or type_ not in _TYPED:
                raise UnknownRecordError(
                    f"at offset {header.base_offset}: record type {type_} version {version} is"
                    " unknown to this build: the log was written by a newer one"
                )
        self._records += records
        self.rows += header.record_count
        self.bytes += header.size

    def take(self) -> pa.Table:
        """Return the buffered rows, at least one, as a table, and empty the buffer.

        Raises UnknownRecordError for a body that cannot be parsed.
        """
        counts = np.array(self._counts)
        batch_of_row = pa.array(np.repeat(np.arange(len(counts)), counts))
        offset = np.arange(self._first_offset, self._first_offset + self.rows)
        of_batch: dict[str, Any] = dict(
            zip(batch.BatchHeader._fields, zip(*self._batches, strict=True), strict=True)
        )
        base = np.array(of_batch["base_offset"])
        of_batch |= {
            "timestamp": of_batch["timestamp_ms"],
            "batch_base_offset": base,
            "batch_last_offset": base + counts - 1,
        }
        types, versions, bodies = zip(*self._records, strict=True)
        type_ = np.array(types)
        columns = {"offset": pa.array(offset)}
        for name, kind in _BATCH_FIELDS:
            columns[name] = pa.array(of_batch[name], kind).take(batch_of_row)
        parts = [
            part
            for each in np.unique(type_).tolist()
            for part in self._parts(each, np.flatnonzero(type_ == each), bodies)
        ]
        known, number = np.unique(type_, return_inverse=True)
        names = pa.array([_TYPE_NAMES[each] for each in known.tolist()])
        columns |= {
            "type": pa.array(type_, pa.int32()),
            "type_name": names.take(pa.array(number)),
            "version": pa.array(versions, pa.int32()),
            "body": pa.array(bodies, pa.binary()),
        }
        table = pa.table(
            [
                columns[field.name] if field.name in columns else _merged(field, parts, self.rows)
                for field in SCHEMA
            ],
            schema=SCHEMA,
        )
        self._clear()
        return table

    def _parts(self, type_: int, rows: Ints, bodies: Sequence[bytes]) -> Iterator[Part]:
        """Yield the columns of all rows of a type."""
        if type_ not in _AT_ONCE or len(rows) < _FEW:
            yield rows, self._one_by_one(rows)
            return
        some = [bodies[row] for row in rows.tolist()]
        columns, odd = _at_once(type_, some)
        if odd.any():
            yield rows[odd], self._one_by_one(rows[odd])
            rows = rows[~odd]
            columns, _ = _at_once(type_, [bodies[row] for row in rows.tolist()])
        yield rows, columns

    def _one_by_one(self, rows: Ints) -> dict[str, pa.Array]:
        found: dict[str, dict[int, Any]] = defaultdict(dict)
        for place, row in enumerate(rows.tolist()):
            offset, (type_, version, body) = self._first_offset + row, self._records[row]
            try:
                message = parse_body(type_, version, body)
            except UnknownRecordError as error:
                raise UnknownRecordError(f"at offset {offset}: {error}") from error
            group = group_of(type_, message, offset)
            if group is not None:
                found["group_kind"][place], found["group_id"][place] = group
            for name, value in typed_values(type_, message).items():
                found[name][place] = value
        places = range(len(rows))
        return {
            name: pa.array(list(map(values.get, places)), SCHEMA.field(name).type)
            for name, values in found.items()
        }


def _merged(field: pa.Field, parts: Sequence[Part], count: int) -> pa.Array:
    """Return a column for all rows."""
    some = [(rows, columns[field.name]) for rows, columns in parts if field.name in columns]
    if not some:
        return pa.nulls(count, field.type)
    rows = np.concatenate([each for each, _ in some])
    place = np.full(count, -1)
    place[rows] = np.arange(len(rows))
    values = pa.concat_arrays([values for _, values in some])
    return values.take(pa.array(place, mask=place < 0))


def _at_once(type_: int, bodies: Sequence[bytes]) -> tuple[dict[str, pa.Array], Bools]:
    """Return the columns of records of one type, and which of the records must be decoded one by
    one.
    """
    messages = Messages.of_bodies(bodies, MESSAGES[type_].DESCRIPTOR, without=_AT_ONCE[type_])
    columns = {
        column.name: _decoded(messages, column, SCHEMA.field(column.name).type)
        for column in _TYPED[RecordType(type_)]
        if column.field.name not in _AT_ONCE[type_]
    }
    if type_ not in CHANGES_NOTHING:
        kind, ids = _groups(type_, messages, columns)
        columns |= {"group_kind": pa.repeat(kind, len(bodies)), "group_id": ids}
    return columns, messages.odd


def _groups(type_: int, messages: Messages, columns: dict[str, pa.Array]) -> tuple[str, pa.Array]:
    """Return kind and ids of the entity groups, like ``group_of``."""
    if type_ == RecordType.KEY_VALUE:
        return "kv", messages.texts("key", optional=False)
    if type_ == RecordType.CONFIG:
        number = columns["resource_type"].cast(pa.string())
        return "config", pc.binary_join_element_wise(number, columns["resource_name"], ":")
    return "topic", columns["topic_id"]


def _decoded(messages: Messages, column: _Column, kind: pa.DataType) -> pa.Array:
    """Return a column for many messages, like ``_getter`` for one."""
    name, field = column.field.name, column.field
    if field.is_repeated and field.message_type is None:
        found = messages.packed(name, narrow=True)
        return lists(found.owner, pa.array(found.value, kind.value_type), kind, len(messages))
    if field.message_type is not None:
        owner, inner = messages.inner(name)
        decoded = _decoded_inner(len(messages), owner, inner, column, kind)
        # A message that contains an odd message is odd.
        messages.odd[owner[inner.odd]] = True
        return decoded
    if kind == pa.string() and field.type == FieldDescriptor.TYPE_BYTES:
        return messages.hex(name, _TOPIC_ID_BYTES)
    if kind in {pa.string(), pa.binary()}:
        return messages.texts(name, optional=column.optional, binary=kind == pa.binary())
    value, there = messages.numbers(name, optional=column.optional)
    return pa.array(value, kind, mask=~there)


def _decoded_inner(
    count: int, owner: Ints, inner: Messages, column: _Column, kind: pa.DataType
) -> pa.Array:
    """Return a column of lists of messages, or of messages that contain a list or a sketch."""
    if column.field.is_repeated:
        return lists(owner, _struct(inner, kind.value_type), kind, count)
    there = np.zeros(count, np.bool_)
    there[owner] = True
    if pa.types.is_struct(kind):
        return _sketches(inner, kind).take(pa.array(np.cumsum(there) - 1, mask=~there))
    found = inner.packed("ids", narrow=True)
    return lists(owner[found.owner], pa.array(found.value, kind.value_type), kind, count, there)


def _struct(messages: Messages, kind: pa.StructType) -> pa.Array:
    columns = [pa.array(messages.numbers(each.name, optional=False)[0], each.type) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _sketches(messages: Messages, kind: pa.StructType) -> pa.Array:
    bucket = messages.packed("buckets", narrow=True)
    count = messages.packed("bucket_counts", narrow=False)
    size = len(messages)
    messages.odd |= np.bincount(bucket.owner, minlength=size) != np.bincount(
        count.owner, minlength=size
    )
    bucket, count = (each.of(~messages.odd[each.owner]) for each in (bucket, count))
    buckets = kind.field("buckets").type
    members = pa.StructArray.from_arrays(
        [pa.array(bucket.value, pa.int32()), pa.array(count.value)], fields=list(buckets.value_type)
    )
    columns = [
        pa.array(messages.numbers(name, optional=False)[0])
        for name in ("count", "sum_us", "max_us")
    ]
    columns.append(lists(bucket.owner, members, buckets, size))
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def feature_levels(rows: pa.Table) -> dict[str, int]:
    """Return the feature levels that these rows set (0: removed)."""
    named = rows.select(["feature_name", "feature_level"]).filter(pc.is_valid(rows["feature_name"]))
    return dict(zip(*(column.to_pylist() for column in named.columns), strict=True))
