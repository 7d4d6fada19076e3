"""The records of Kafka's metadata log, for Kafka 3.3 to 4.4, in all versions.

Kafka's message schemas are data here, interpreted by a decoder. A schema gives the first version of
each field; a tagged field also has a tag. Numbers, names, types, versions, tags and defaults are
those of Kafka's published message definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from replay.kafka.log_format import READERS, MalformedRecordError, Reader

UNKNOWN_TAGS = "unknown_tags"
"""Key in a decoded message for tagged fields that its schema does not know: tag -> hex digits."""
Decoded = dict[str, Any]


class Field(NamedTuple):
    """A field of a message."""

    name: str
    type: str
    """Name of a primitive type, or "struct" for ``fields``; prefix "[]" for an array, suffix "?"
    for nullable.
    """
    since: int = 0
    """First version that has the field."""
    tag: int | None = None
    default: Any = None
    """Value of an absent tagged field, or of a field that the version lacks."""
    fields: tuple[Field, ...] = ()


class Schema(NamedTuple):
    """A kind of message."""

    name: str
    versions: int
    """Highest known version."""
    fields: tuple[Field, ...]


Read = Callable[[Reader], Any]


def decoder(schema: Schema, version: int) -> Callable[[Reader], Decoded]:
    """Return a function that reads one message of a known version, which must end there; raises
    MalformedRecordError. Keep the function: creating it compiles the schema.
    """
    read_fields = _struct(schema.fields, version)

    def read(reader: Reader) -> Decoded:
        message: Decoded = read_fields(reader)
        if reader.left:
            raise MalformedRecordError(f"{reader.left} trailing bytes after a {schema.name}")
        return message

    return read


def _struct(fields: tuple[Field, ...], version: int) -> Read:
    defaults = {field.name: field.default for field in fields}
    there = [field for field in fields if field.since <= version]
    plain = [(field.name, _value(field, version)) for field in there if field.tag is None]
    tagged = {
        field.tag: (field.name, _value(field, version)) for field in there if field.tag is not None
    }

    def read(reader: Reader) -> Decoded:
        message = defaults.copy()
        for name, value in plain:
            message[name] = value(reader)
        for _ in range(reader.unsigned_varint()):
            _tagged_field(tagged, reader, message)
        return message

    return read


def _tagged_field(tagged: dict[int, tuple[str, Read]], reader: Reader, message: Decoded) -> None:
    tag, size = reader.unsigned_varint(), reader.unsigned_varint()
    if tag not in tagged:
        message.setdefault(UNKNOWN_TAGS, {})[str(tag)] = reader.take(size).hex()
        return
    name, value = tagged[tag]
    end = reader.begin(size)
    message[name] = value(reader)
    if reader.left:
        raise MalformedRecordError(f"{reader.left} trailing bytes after {name}")
    reader.end = end


def _value(field: Field, version: int) -> Read:
    kind = field.type
    if kind == "struct":
        return _struct(field.fields, version)
    if not kind.startswith("[]"):
        return READERS[kind]
    element = kind[2:].rstrip("?")
    each = _struct(field.fields, version) if element == "struct" else READERS[element]
    nullable, name = kind.endswith("?"), field.name

    def read(reader: Reader) -> list[Any] | None:
        count = reader.count()
        if count is not None:
            return [each(reader) for _ in range(count)]
        if nullable:
            return None
        raise MalformedRecordError(f"{name} is null, but must not be")

    return read


_FRAME_VERSION = 1
_INT16_MAX = 32_767
_ENDPOINTS = (
    Field("name", "string"),
    Field("host", "string"),
    Field("port", "uint16"),
    Field("security_protocol", "int16"),
)
_FEATURES = (
    Field("name", "string"),
    Field("min_supported_version", "int16"),
    Field("max_supported_version", "int16"),
)

METADATA: dict[int, Schema] = {
    0: Schema("RegisterBrokerRecord", 4, (
        Field("broker_id", "int32"),
        Field("is_migrating_zk_broker", "bool", 2, default=False),
        Field("incarnation_id", "uuid"),
        Field("broker_epoch", "int64"),
        Field("end_points", "[]struct", fields=_ENDPOINTS),
        Field("features", "[]struct", fields=_FEATURES),
        Field("rack", "string?"),
        Field("fenced", "bool", default=True),
        Field("in_controlled_shutdown", "bool", 1, default=False),
        Field("log_dirs", "[]uuid", 3, tag=0, default=[]),
        Field("cordoned_log_dirs", "[]uuid?", 4, tag=1),
    )),
    1: Schema("UnregisterBrokerRecord", 0, (
        Field("broker_id", "int32"),
        Field("broker_epoch", "int64"),
    )),
    2: Schema("TopicRecord", 0, (Field("name", "string"), Field("topic_id", "uuid"))),
    3: Schema("PartitionRecord", 2, (
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("replicas", "[]int32"),
        Field("isr", "[]int32"),
        Field("removing_replicas", "[]int32"),
        Field("adding_replicas", "[]int32"),
        Field("leader", "int32"),
        Field("leader_recovery_state", "int8", tag=0, default=0),
        Field("leader_epoch", "int32"),
        Field("partition_epoch", "int32"),
        Field("directories", "[]uuid", 1, default=[]),
        Field("eligible_leader_replicas", "[]int32?", 2, tag=1),
        Field("last_known_elr", "[]int32?", 2, tag=2),
    )),
    4: Schema("ConfigRecord", 0, (
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("name", "string"),
        Field("value", "string?"),
    )),
    5: Schema("PartitionChangeRecord", 2, (
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("isr", "[]int32?", tag=0),
        Field("leader", "int32", tag=1, default=-2),
        Field("replicas", "[]int32?", tag=2),
        Field("removing_replicas", "[]int32?", tag=3),
        Field("adding_replicas", "[]int32?", tag=4),
        Field("leader_recovery_state", "int8", tag=5, default=-1),
        Field("directories", "[]uuid?", 1, tag=8),
        Field("eligible_leader_replicas", "[]int32?", 2, tag=6),
        Field("last_known_elr", "[]int32?", 2, tag=7),
    )),
    7: Schema("FenceBrokerRecord", 0, (Field("id", "int32"), Field("epoch", "int64"))),
    8: Schema("UnfenceBrokerRecord", 0, (Field("id", "int32"), Field("epoch", "int64"))),
    9: Schema("RemoveTopicRecord", 0, (Field("topic_id", "uuid"),)),
    10: Schema("DelegationTokenRecord", 0, (
        Field("owner", "string"),
        Field("requester", "string"),
        Field("renewers", "[]string"),
        Field("issue_timestamp", "int64"),
        Field("max_timestamp", "int64"),
        Field("expiration_timestamp", "int64"),
        Field("token_id", "string"),
    )),
    11: Schema("UserScramCredentialRecord", 0, (
        Field("name", "string"),
        Field("mechanism", "int8"),
        Field("salt", "bytes"),
        Field("stored_key", "bytes"),
        Field("server_key", "bytes"),
        Field("iterations", "int32"),
    )),
    12: Schema("FeatureLevelRecord", 0, (
        Field("name", "string"),
        Field("feature_level", "int16"),
    )),
    14: Schema("ClientQuotaRecord", 0, (
        Field("entity", "[]struct", fields=(
            Field("entity_type", "string"),
            Field("entity_name", "string?"),
        )),
        Field("key", "string"),
        Field("value", "float64"),
        Field("remove", "bool"),
    )),
    15: Schema("ProducerIdsRecord", 0, (
        Field("broker_id", "int32"),
        Field("broker_epoch", "int64"),
        Field("next_producer_id", "int64"),
    )),
    17: Schema("BrokerRegistrationChangeRecord", 3, (
        Field("broker_id", "int32"),
        Field("broker_epoch", "int64"),
        Field("fenced", "int8", tag=0, default=0),
        Field("in_controlled_shutdown", "int8", 1, tag=1, default=0),
        Field("log_dirs", "[]uuid", 2, tag=2, default=[]),
        Field("cordoned_log_dirs", "[]uuid?", 3, tag=3),
    )),
    18: Schema("AccessControlEntryRecord", 0, (
        Field("id", "uuid"),
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("pattern_type", "int8"),
        Field("principal", "string"),
        Field("host", "string"),
        Field("operation", "int8"),
        Field("permission_type", "int8"),
    )),
    19: Schema("RemoveAccessControlEntryRecord", 0, (Field("id", "uuid"),)),
    20: Schema("NoOpRecord", 0, ()),
    21: Schema("ZkMigrationStateRecord", 0, (Field("zk_migration_state", "int8"),)),
    22: Schema("RemoveUserScramCredentialRecord", 0, (
        Field("name", "string"),
        Field("mechanism", "int8"),
    )),
    23: Schema("BeginTransactionRecord", 0, (Field("name", "string?", tag=0),)),
    24: Schema("EndTransactionRecord", 0, ()),
    25: Schema("AbortTransactionRecord", 0, (Field("reason", "string?", tag=0),)),
    26: Schema("RemoveDelegationTokenRecord", 0, (Field("token_id", "string"),)),
    27: Schema("RegisterControllerRecord", 0, (
        Field("controller_id", "int32"),
        Field("incarnation_id", "uuid"),
        Field("zk_migration_ready", "bool"),
        Field("end_points", "[]struct", fields=_ENDPOINTS),
        Field("features", "[]struct", fields=_FEATURES),
    )),
    28: Schema("ClearElrRecord", 0, (Field("topic_name", "string"),)),
    29: Schema("UnregisterControllerRecord", 0, (Field("controller_id", "int32"),)),
}  # fmt: skip
"""apiKey -> schema of a metadata record (KIP-746 and later)."""

_VOTER = (Field("voter_id", "int32"), Field("voter_directory_id", "uuid", 1, default=""))
CONTROL: dict[int, Schema] = {
    2: Schema("LeaderChangeMessage", 1, (
        Field("version", "int16"),
        Field("leader_id", "int32"),
        Field("voters", "[]struct", fields=_VOTER),
        Field("granting_voters", "[]struct", fields=_VOTER),
    )),
    3: Schema("SnapshotHeaderRecord", 0, (
        Field("version", "int16"),
        Field("last_contained_log_timestamp", "int64"),
    )),
    4: Schema("SnapshotFooterRecord", 0, (Field("version", "int16"),)),
    5: Schema("KRaftVersionRecord", 0, (
        Field("version", "int16"),
        Field("k_raft_version", "int16"),
    )),
    6: Schema("VotersRecord", 0, (
        Field("version", "int16"),
        Field("voters", "[]struct", fields=(
            Field("voter_id", "int32"),
            Field("voter_directory_id", "uuid"),
            Field("endpoints", "[]struct", fields=_ENDPOINTS[:3]),
            Field("k_raft_version_feature", "struct", fields=_FEATURES[1:]),
        )),
    )),
}  # fmt: skip
"""Type in the record's key -> schema of a control record (KIP-595, KIP-630, KIP-853)."""
SECRETS = frozenset({"salt", "stored_key", "server_key"})
"""Fields that are neither used nor shown."""


class KafkaRecord(NamedTuple):
    """A decoded record."""

    name: str
    """Name of the schema; ``Unknown`` if this build does not know the type or version."""
    api_key: int
    """apiKey; for a control record, its negated type."""
    version: int
    fields: Decoded


UNKNOWN = "Unknown"


def metadata_record(value: bytes) -> KafkaRecord:
    """Decode a record of a data batch: frame version, apiKey, version, message.

    A record of a newer Kafka keeps its bytes undecoded. Raises MalformedRecordError.
    """
    reader = Reader(value)
    frame, api_key, version = (reader.unsigned_varint() for _ in range(3))
    if frame != _FRAME_VERSION:
        raise MalformedRecordError(f"a record has the unknown frame version {frame}")
    for name, number in (("apiKey", api_key), ("version", version)):
        if number > _INT16_MAX:
            raise MalformedRecordError(
                f"{name} of a record is {number}, but must be at most {_INT16_MAX}"
            )
    return _decoded(METADATA.get(api_key), api_key, version, reader)


def control_record(key: bytes, value: bytes) -> KafkaRecord:
    """Decode a record of a control batch. Raises MalformedRecordError."""
    head = Reader(key)
    key_version = int.from_bytes(head.take(2), "big", signed=True)
    kind = int.from_bytes(head.take(2), "big", signed=True)
    schema = CONTROL.get(kind)
    if key_version or schema is None:
        return KafkaRecord(UNKNOWN, -kind, key_version, {"body": value.hex()})
    # The version of the value is its first field.
    version = int.from_bytes(value[:2], "big", signed=True)
    return _decoded(schema, -kind, version, Reader(value))


def _decoded(schema: Schema | None, api_key: int, version: int, reader: Reader) -> KafkaRecord:
    if schema is None or not 0 <= version <= schema.versions:
        fields: dict[str, Any] = {"body": reader.take(reader.left).hex()}
        if schema is not None:
            fields["name"] = schema.name
        return KafkaRecord(UNKNOWN, api_key, version, fields)
    return KafkaRecord(schema.name, api_key, version, _decoder(api_key, version)(reader))


@cache
def _decoder(api_key: int, version: int) -> Callable[[Reader], Decoded]:
    """Return the decoder of a known record; a negative key stands for a control record."""
    return decoder(METADATA[api_key] if api_key >= 0 else CONTROL[-api_key], version)
