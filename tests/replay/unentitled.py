"""Writes of principals without permission, each beside one with permission."""

from typing import Any

from audited_log import AuditedLog

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.wire.records.v1 import records_pb2 as pb

TOPIC, ALTER_CONFIGS = AclResourceType.TOPIC, AclOperation.ALTER_CONFIGS
PREFIXED, DENY = PatternType.PREFIXED, AclPermission.DENY


def write_without_rights(log: AuditedLog) -> list[int]:
    """Return the offsets of writes without permission. What precedes the first entry is not judged,
    and deleting topics is allowed to all, also after it.
    """
    log.alter_config("early", "retention.ms", "1", "User:dave")
    log.add_entry("User:*", AclOperation.DELETE, TOPIC, "*")
    return [
        *without_entries(log), *by_turns(log), *by_patterns(log), *by_hosts(log),
        *of_every_kind(log),
    ]  # fmt: skip


def without_entries(log: AuditedLog) -> list[int]:
    nothing = log.alter_config("t", "retention.ms", "1", "User:alice")
    log.add_entry("User:bob", ALTER_CONFIGS, TOPIC, "t")
    log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "other")
    log.add_entry("User:alice", AclOperation.CREATE, TOPIC, "t")
    # Ends with the name that it has, and is not a prefix of it; and one that is too long.
    log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "tt", pattern=PREFIXED)
    others = log.alter_config("t", "retention.ms", "2", "User:alice")
    log.alter_config("t", "retention.ms", "3", "User:bob")
    # Nobody's: the controller by itself.
    log.alter_config("t", "retention.ms", "3", "")
    return [nothing, others]


def by_turns(log: AuditedLog) -> list[int]:
    """Granted, removed, granted again; a change takes effect in the next batch."""
    before = log.alter_config("turns", "retention.ms", "1", "User:alice")
    entry = log.add_entry("User:alice", AclOperation.ALL, TOPIC, "turns")
    log.alter_config("turns", "retention.ms", "2", "User:alice")
    twice = log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "turns")
    log.remove_entry(entry)
    log.alter_config("turns", "retention.ms", "3", "User:alice")
    log.remove_entry(twice)
    removed = log.alter_config("turns", "retention.ms", "4", "User:alice")
    log.add_entry("User:*", ALTER_CONFIGS, TOPIC, "turns")
    log.alter_config("turns", "retention.ms", "5", "User:alice")
    denial = log.add_entry("User:alice", ALTER_CONFIGS, TOPIC, "turns", permission=DENY)
    denied = log.alter_config("turns", "retention.ms", "6", "User:alice")
    log.alter_config("turns", "retention.ms", "6", "User:bob")
    log.remove_entry(denial)
    log.alter_config("turns", "retention.ms", "7", "User:alice")
    return [before, removed, denied]


def by_patterns(log: AuditedLog) -> list[int]:
    log.add_entry("User:carol", ALTER_CONFIGS, TOPIC, "pay-", pattern=PREFIXED)
    log.alter_config("pay-in", "retention.ms", "1", "User:carol")
    log.alter_config("pay-", "retention.ms", "1", "User:carol")
    log.add_entry("User:carol", AclOperation.CREATE, TOPIC, "pay-", pattern=PREFIXED)
    log.append(
        pb.TopicRecord(name="pay-new", topic_id=b"pay-new".ljust(16)), principal="User:carol"
    )
    outside = log.alter_config("pay", "retention.ms", "1", "User:carol")
    log.add_entry("User:*", AclOperation.ALL, TOPIC, "pay-out", pattern=PREFIXED, permission=DENY)
    denied = log.alter_config("pay-out-1", "retention.ms", "1", "User:carol")
    # Nobody could delete it.
    log.append(pb.RemoveTopicRecord(topic_id=log.topics.pop("pay-out-1")))
    log.add_entry("User:erin", ALTER_CONFIGS, TOPIC, "*")
    log.alter_config("anything", "retention.ms", "1", "User:erin")
    return [outside, denied]


def by_hosts(log: AuditedLog) -> list[int]:
    """Return changes that some host may make, and those that the entries deny from every host."""
    log.add_entry("User:frank", ALTER_CONFIGS, TOPIC, "h", host="10.0.0.1")
    log.alter_config("h", "retention.ms", "1", "User:frank")
    elsewhere = log.add_entry(
        "User:frank", ALTER_CONFIGS, TOPIC, "h", host="10.0.0.2", permission=DENY
    )
    log.alter_config("h", "retention.ms", "2", "User:frank")
    log.remove_entry(elsewhere)
    log.add_entry("User:*", ALTER_CONFIGS, TOPIC, "h", host="10.0.0.1", permission=DENY)
    nowhere = log.alter_config("h", "retention.ms", "3", "User:frank")
    log.add_entry("User:frank", ALTER_CONFIGS, TOPIC, "h")
    log.alter_config("h", "retention.ms", "4", "User:frank")
    return [nowhere]


def of_every_kind(log: AuditedLog) -> list[int]:
    """Make a change of each kind by alice, without permission, and by olivia, with it."""
    log.add_entry("User:alice", AclOperation.DELETE, TOPIC, "alice's", permission=DENY)
    created = partly_allowed(log, "alice's", "User:alice")
    for type_, operation in (
        (AclResourceType.CLUSTER, AclOperation.ALTER),
        (AclResourceType.CLUSTER, AclOperation.CREATE),
        (AclResourceType.CLUSTER, ALTER_CONFIGS),
        (AclResourceType.GROUP, ALTER_CONFIGS),
        (AclResourceType.HOSTNAME, AclOperation.ALTER),
        (AclResourceType.EXPORT_CURSOR, AclOperation.ALTER),
        (AclResourceType.KEY_VALUE, AclOperation.ALTER),
        (AclResourceType.CLIENT_SESSION, AclOperation.CREATE),
        (TOPIC, AclOperation.ALTER),
    ):
        name = "kafka-cluster" if type_ is AclResourceType.CLUSTER else "*"
        log.add_entry("User:olivia", operation, type_, name)
    assert partly_allowed(log, "olivia's", "User:olivia")
    return created


def partly_allowed(log: AuditedLog, name: str, by: str) -> list[int]:
    """One batch of each kind; return the offsets that require permission. A node's own records are
    all by the same principal.
    """
    log.topics[name] = log.rng.getrandbits(128).to_bytes(16, "big")
    partition: dict[str, Any] = {
        "topic_id": log.topics[name],
        "replicas": [3, 4],
        "isr": [3, 4],
        "leader": 3,
    }
    configs: dict[str, Any] = {"resource_type": 2, "resource_name": name, "name": "retention.ms"}
    offsets = [
        log.append(
            pb.TopicRecord(name=name, topic_id=log.topics[name]),
            pb.ConfigRecord(value="1", **configs),
            pb.PartitionRecord(**partition),
            principal=by,
        ),
        log.append(pb.PartitionRecord(partition_id=1, **partition), principal=by),
        log.append(log.changed(name, leader=4), log.changed(name, leader=3), principal=by),
        log.append(pb.FeatureLevelRecord(name="lao.version", feature_level=0), principal=by),
        log.append(
            pb.ConfigRecord(resource_type=4, resource_name="1", name="a", value="1"), principal=by
        ),
        log.append(
            pb.ConfigRecord(resource_type=32, resource_name="g", name="a", value="1"), principal=by
        ),
        log.append(
            pb.HostnameRecord(
                hostname=f"{by[5:]}.example", broker_id=1, reason="set by hand", cause=pb.BY_HAND
            ),
            principal=by,
        ),
        log.append(pb.ExportCursorRecord(name=by[5:], end_offset=1), principal=by),
        log.append(pb.OpenClientRecord(name="mine", principal=by), principal=by),
        log.append(pb.LeaseRecord(name="mine", ttl_ms=5_000, principal=by), principal=by),
        log.append(pb.KeyValueRecord(key=f"{by[5:]}/1", value=b"", lease_id=1), principal=by),
    ]
    # Who has a lease may end it, and its keys go with it.
    log.append(
        pb.KeyValueRecord(key=f"{by[5:]}/1"),
        pb.RemoveLeaseRecord(lease_id=offsets[-2], reason="revoked"),
        principal=by,
    )
    # Nobody gives a right to himself by it.
    cluster = (AclOperation.ALTER, AclResourceType.CLUSTER, "kafka-cluster")
    offsets.append(log.end_offset)
    log.remove_entry(log.add_entry(by, *cluster, by=by))
    offsets.append(log.remove_entry(log.add_entry("User:nobody", *cluster), by=by))
    gone = pb.UnregisterBrokerRecord(broker_id=5, broker_epoch=log.epoch_of(5))
    removals = log.removals(5)
    offsets.append(log.append(*removals, gone, principal=by) + len(removals))
    mapped = pb.HostnameRecord(
        hostname=f"{by[5:]}-5.example", broker_id=5, reason="registered", cause=pb.BY_REGISTRATION
    )
    log.append(log.registration(5), mapped, principal=by)
    log.append(log.standing(5, fenced=False), principal=by)
    log.append(log.standing(4, fenced=True), *log.removals(4), principal=by)
    log.append(log.standing(4, fenced=False), principal=by)
    log.propose(name, [3, 4], principal=by)
    client = log.append(pb.OpenClientRecord(name="owned"))
    log.append(pb.CloseClientRecord(client_id=client, reason="closed"), principal=by)
    log.append(pb.VotersRecord(), control=True, principal=by)
    removed = pb.RemoveTopicRecord(topic_id=log.topics.pop(name))
    offsets.append(log.append(pb.ConfigRecord(**configs), removed, principal=by) + 1)
    return offsets
