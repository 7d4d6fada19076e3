"""Mapping of Kafka's records to raftlog's, one to one and at the same offsets.

A record without a counterpart becomes an ImportedRecord, with its own entity if Kafka has one.
Nothing is invented: fields that raftlog lacks go into the ImportedRecord's JSON or, for mapped
records, remain only in Kafka's files (``docs/kafka.md`` lists them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftlog.metadata.imported import KAFKAS_METADATA_VERSION
from raftlog.metadata.versions import METADATA_VERSION
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.kafka.log_format import KafkaLogError, is_zero_uuid, uuid_bytes
from replay.kafka.records import SECRETS, UNKNOWN, UNKNOWN_TAGS, Decoded, KafkaRecord

KRAFT_VERSION = "kraft.version"
_NO_LEADER_CHANGE, _UNCHANGED_STATE = -2, -1
_TOPIC = 2
ELIGIBLE = ("eligible_leader_replicas", "last_known_elr")
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def encoded(value: Any) -> str:
    """Return a value as JSON with sorted keys, so that equal entities have equal hashes."""
    return msgspec.json.encode(value, order="sorted").decode()


class Mapping:
    """Maps records in log order; keeps track of the existing topics."""

    def __init__(self) -> None:
        self._name_of: dict[bytes, str] = {}
        self._id_of: dict[str, bytes] = {}
        self._maps: dict[str, Callable[[Decoded], Any]] = {
            "RegisterBrokerRecord": _register_broker,
            "UnregisterBrokerRecord": _unregister_broker,
            "BrokerRegistrationChangeRecord": _registration_change,
            "FenceBrokerRecord": lambda f: _fenced(f, True),
            "UnfenceBrokerRecord": lambda f: _fenced(f, False),
            "TopicRecord": self._topic,
            "RemoveTopicRecord": self._remove_topic,
            "PartitionRecord": self._partition,
            "PartitionChangeRecord": self._partition_change,
            "ConfigRecord": self._config,
            "FeatureLevelRecord": _feature_level,
            "AccessControlEntryRecord": _access_control_entry,
            "RemoveAccessControlEntryRecord": _remove_access_control_entry,
            "NoOpRecord": lambda _: pb.NoOpRecord(),
            "LeaderChangeMessage": _leader_change,
            "KRaftVersionRecord": _kraft_version,
            "VotersRecord": _voters,
        }

    def message(self, record: KafkaRecord) -> Any:
        """Return the message of :mod:`raftlog.wire.records` for a record."""
        made = self._maps.get(record.name)
        if made is not None and not _is_passed_over(record):
            return made(record.fields)
        message = plain(record)
        if record.name == "ClearElrRecord":
            message.clears_elr_of = self._cleared(record.fields["topic_name"])
        entity = _ENTITIES.get(record.name)
        if entity is not None:
            message.kind, message.key, value = entity(record.fields)
            if value is not None:
                message.value = encoded(value)
        return message

    def _topic(self, fields: Decoded) -> pb.TopicRecord:
        id_ = uuid_bytes(fields["topic_id"])
        self._name_of[id_], self._id_of[fields["name"]] = fields["name"], id_
        return pb.TopicRecord(name=fields["name"], topic_id=id_)

    def _remove_topic(self, fields: Decoded) -> pb.RemoveTopicRecord:
        id_ = uuid_bytes(fields["topic_id"])
        name = self._name_of.pop(id_, None)
        if name is not None:
            self._id_of.pop(name, None)
        return pb.RemoveTopicRecord(topic_id=id_, with_configs=True)

    def _partition(self, fields: Decoded) -> pb.PartitionRecord:
        topic_id = uuid_bytes(fields["topic_id"])
        message = pb.PartitionRecord(
            partition_id=fields["partition_id"],
            topic_id=topic_id,
            replicas=fields["replicas"],
            isr=fields["isr"],
            removing_replicas=fields["removing_replicas"],
            adding_replicas=fields["adding_replicas"],
            leader=fields["leader"],
            leader_recovery_state=fields["leader_recovery_state"],
            leader_epoch=fields["leader_epoch"],
            partition_epoch=fields["partition_epoch"],
        )
        _set_detail(fields, message)
        return message

    def _partition_change(self, fields: Decoded) -> pb.PartitionChangeRecord:
        topic_id = uuid_bytes(fields["topic_id"])
        message = pb.PartitionChangeRecord(
            partition_id=fields["partition_id"],
            topic_id=topic_id,
            # Kafka's log does not record the proposer.
            proposer_id=-1,
            proposer_epoch=-1,
        )
        for name in ("isr", "replicas", "removing_replicas", "adding_replicas"):
            if fields[name] is not None:
                getattr(message, name).SetInParent()
                getattr(message, name).ids.extend(fields[name])
        if fields["leader"] != _NO_LEADER_CHANGE:
            message.leader = fields["leader"]
        if fields["leader_recovery_state"] != _UNCHANGED_STATE:
            message.leader_recovery_state = fields["leader_recovery_state"]
        _set_detail(fields, message)
        return message

    def _cleared(self, topic_name: str) -> bytes:
        """Return the id of the topic whose eligible replicas are cleared, or b"" for all topics."""
        if not topic_name:
            return b""
        if topic_name not in self._id_of:
            raise KafkaLogError(f"ClearElrRecord names topic {topic_name!r}, which does not exist")
        return self._id_of[topic_name]

    def _config(self, fields: Decoded) -> pb.ConfigRecord:
        message = pb.ConfigRecord(
            resource_type=fields["resource_type"],
            resource_name=fields["resource_name"],
            name=fields["name"],
        )
        if fields["value"] is not None:
            message.value = fields["value"]
        if fields["resource_type"] == _TOPIC:
            message.topic_id = self._id_of.get(fields["resource_name"], b"")
        return message


def _set_detail(fields: Decoded, message: pb.PartitionRecord | pb.PartitionChangeRecord) -> None:
    directories = fields["directories"]
    # To Kafka, a record without directories means the zero id for each replica.
    if directories and not all(map(is_zero_uuid, directories)):
        message.imported.directories.ids.extend(map(uuid_bytes, directories))
    for name in ELIGIBLE:
        if fields[name] is not None:
            getattr(message.imported, name).SetInParent()
            getattr(message.imported, name).ids.extend(fields[name])


def plain(record: KafkaRecord, *, aborted: bool = False) -> pb.ImportedRecord:
    """Return a record unchanged, except for its secrets, and without effect."""
    fields = {name: _shown(name, value) for name, value in record.fields.items()}
    return pb.ImportedRecord(
        name=record.name,
        api_key=record.api_key,
        version=record.version,
        fields=encoded(fields),
        aborted=aborted,
    )


def _shown(name: str, value: Any) -> Any:
    return "(secret)" if name in SECRETS else value


def _is_passed_over(record: KafkaRecord) -> bool:
    """Return whether Kafka ignores a record: a kraft.version level outside of a control record
    (KAFKA-18979).
    """
    return record.name == "FeatureLevelRecord" and record.fields["name"] == KRAFT_VERSION


def is_unknown(record: KafkaRecord) -> str:
    """Describe what in a record is newer than this build, or return ""."""
    if record.name == UNKNOWN:
        name = record.fields.get("name", f"apiKey {record.api_key}")
        return f"{name} version {record.version}"
    tags = record.fields.get(UNKNOWN_TAGS)
    return f"{record.name} tag {', '.join(map(str, sorted(tags)))}" if tags else ""


def _register_broker(fields: Decoded) -> pb.RegisterBrokerRecord:
    return pb.RegisterBrokerRecord(
        broker_id=fields["broker_id"],
        incarnation_id=fields["incarnation_id"],
        broker_epoch=fields["broker_epoch"],
        end_points=[
            pb.Listener(name=one["name"], host=one["host"], port=one["port"])
            for one in fields["end_points"]
        ],
        features=[
            pb.FeatureRange(
                name=_feature(one["name"]),
                min_supported_version=one["min_supported_version"],
                max_supported_version=one["max_supported_version"],
            )
            # Kafka stores a map, whose order is irrelevant.
            for one in sorted(fields["features"], key=_by_name)
        ],
        rack=fields["rack"] or "",
        fenced=fields["fenced"],
        in_controlled_shutdown=fields["in_controlled_shutdown"],
        log_dirs=fields["log_dirs"],
    )


def _unregister_broker(fields: Decoded) -> pb.UnregisterBrokerRecord:
    return pb.UnregisterBrokerRecord(
        broker_id=fields["broker_id"], broker_epoch=fields["broker_epoch"]
    )


def _registration_change(fields: Decoded) -> pb.BrokerRegistrationChangeRecord:
    message = pb.BrokerRegistrationChangeRecord(
        broker_id=fields["broker_id"],
        broker_epoch=fields["broker_epoch"],
        log_dirs=fields["log_dirs"],
    )
    if fields["fenced"]:
        message.fenced = fields["fenced"] > 0
    if fields["in_controlled_shutdown"]:
        message.in_controlled_shutdown = fields["in_controlled_shutdown"] > 0
    return message


def _fenced(fields: Decoded, fenced: bool) -> pb.BrokerRegistrationChangeRecord:
    return pb.BrokerRegistrationChangeRecord(
        broker_id=fields["id"], broker_epoch=fields["epoch"], fenced=fenced
    )


def _by_name(one: Decoded) -> str:
    return str(one["name"])


def _feature(name: str) -> str:
    return KAFKAS_METADATA_VERSION if name == METADATA_VERSION else name


def _feature_level(fields: Decoded) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(
        name=_feature(fields["name"]), feature_level=fields["feature_level"]
    )


def _kraft_version(fields: Decoded) -> pb.FeatureLevelRecord:
    return pb.FeatureLevelRecord(name=KRAFT_VERSION, feature_level=fields["k_raft_version"])


def _access_control_entry(fields: Decoded) -> pb.AccessControlEntryRecord:
    return pb.AccessControlEntryRecord(**fields | {"id": uuid_bytes(fields["id"])})


def _remove_access_control_entry(fields: Decoded) -> pb.RemoveAccessControlEntryRecord:
    return pb.RemoveAccessControlEntryRecord(id=uuid_bytes(fields["id"]))


def _leader_change(fields: Decoded) -> pb.LeaderChangeRecord:
    return pb.LeaderChangeRecord(
        leader_id=fields["leader_id"],
        voters=[one["voter_id"] for one in fields["voters"]],
        granting_voters=[one["voter_id"] for one in fields["granting_voters"]],
    )


def _voters(fields: Decoded) -> pb.VotersRecord:
    return pb.VotersRecord(
        voters=[
            pb.VoterEntry(
                voter_id=one["voter_id"],
                voter_directory_id=(
                    "" if is_zero_uuid(one["voter_directory_id"]) else one["voter_directory_id"]
                ),
                endpoint=",".join(
                    f"{end['name']}://{end['host']}:{end['port']}" for end in one["endpoints"]
                ),
            )
            for one in fields["voters"]
        ]
    )


Entity = tuple[str, str, Any]
"""Kind, key, and value; the value is None if the entity is removed."""


def _quota(fields: Decoded) -> Entity:
    who = ",".join(
        f"{one['entity_type']}={'<default>' if one['entity_name'] is None else one['entity_name']}"
        for one in sorted(fields["entity"], key=lambda one: str(one["entity_type"]))
    )
    key = f"{who}:{fields['key']}"
    return "client_quota", key, None if fields["remove"] else fields["value"]


def _scram_key(fields: Decoded) -> str:
    mechanism = fields["mechanism"]
    return f"{fields['name']}:{_MECHANISMS.get(mechanism, mechanism)}"


def _controller(fields: Decoded) -> Entity:
    shown = {
        "incarnation_id": fields["incarnation_id"],
        "end_points": sorted(fields["end_points"], key=_by_name),
        "features": sorted(fields["features"], key=_by_name),
    }
    return "controller", str(fields["controller_id"]), shown


def _token(fields: Decoded) -> Entity:
    shown = {name: value for name, value in fields.items() if name != "token_id"}
    return "delegation_token", fields["token_id"], shown


_ENTITIES: dict[str, Callable[[Decoded], Entity]] = {
    "ClientQuotaRecord": _quota,
    # Kafka's state does not contain the broker that requested the block.
    "ProducerIdsRecord": lambda fields: ("producer_ids", "", fields["next_producer_id"]),
    "UserScramCredentialRecord": lambda fields: (
        "scram_credential",
        _scram_key(fields),
        {"iterations": fields["iterations"]},
    ),
    "RemoveUserScramCredentialRecord": lambda fields: (
        "scram_credential",
        _scram_key(fields),
        None,
    ),
    "DelegationTokenRecord": _token,
    "RemoveDelegationTokenRecord": lambda fields: ("delegation_token", fields["token_id"], None),
    "RegisterControllerRecord": _controller,
    "UnregisterControllerRecord": lambda fields: ("controller", str(fields["controller_id"]), None),
    "ZkMigrationStateRecord": lambda fields: ("zk_migration", "", fields["zk_migration_state"]),
}
