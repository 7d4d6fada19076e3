"""Writes of principals without permission, each beside one with permission."""

from typing import Any

from audited_log import AuditedLog

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType
from raftlog.wire.records.v1 import records_pb2 as pb

TOPIC, ALTER_CONFIGS = AclResourceType.TOPIC, AclOperation.ALTER_CONFIGS


def write_without_rights(log: AuditedLog) -> list[int]:
    """Make a change of each kind by alice, without permission, and by olivia, with it; return the
    offsets of the former. What precedes the first entry is not judged, and deleting topics is
    allowed to all, also after it.
    """
    log.alter_config("early", "retention.ms", "1", "User:dave")
    log.add_entry("User:*", AclOperation.DELETE, TOPIC, "*")
    log.add_entry(
        "User:alice", AclOperation.DELETE, TOPIC, "alice's", permission=AclPermission.DENY
    )
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
    members = [3, 4]
    partition: dict[str, Any] = {"replicas": members, "isr": members, "leader": 3}
    partition["topic_id"] = log.topics[name]
    configs: dict[str, Any] = {"resource_type": 2, "resource_name": name, "name": "retention.ms"}
    mapped: dict[str, Any] = {"hostname": f"{by[5:]}.example", "reason": "set by hand"}

    def config(type_: int, of: str) -> pb.ConfigRecord:
        return pb.ConfigRecord(resource_type=type_, resource_name=of, name="a", value="1")

    offsets = [
        log.append(
            pb.TopicRecord(name=name, topic_id=log.topics[name]),
            pb.ConfigRecord(value="1", **configs),
            pb.PartitionRecord(**partition),
            principal=by,
        ),
        log.append(pb.PartitionRecord(partition_id=1, **partition), principal=by),
        log.append(log.of(name, leader=4), log.of(name, leader=3), principal=by),
        log.append(pb.FeatureLevelRecord(name="lao.version", feature_level=0), principal=by),
        log.append(config(4, "1"), principal=by),
        log.append(config(32, "g"), principal=by),
        log.append(pb.HostnameRecord(broker_id=1, cause=pb.BY_HAND, **mapped), principal=by),
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
    gone = log.unregistered(5)
    removals = log.removals(5)
    offsets.append(log.append(*removals, gone, principal=by) + len(removals))
    mapped["hostname"] = f"{by[5:]}-5.example"
    host = pb.HostnameRecord(broker_id=5, cause=pb.BY_REGISTRATION, **mapped)
    log.append(log.registration(5), host, principal=by)
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
