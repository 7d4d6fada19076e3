"""What the console says of each record."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from raftlog.batch import RecordData
from raftlog.cli.render import record_to_dict
from raftlog.metadata.records import RecordType
from raftlog.ops.console_page import sentence, shortened_value
from raftlog.wire.records.v1 import records_pb2 as pb

TOPIC_ID = b"1" * 16
SAID: list[tuple[RecordType, Message, str]] = [
    (
        RecordType.BROKER_REGISTRATION_CHANGE,
        pb.BrokerRegistrationChangeRecord(broker_id=5, fenced=True, reason="session timed out"),
        "broker 5 was fenced: session timed out",
    ),
    (
        RecordType.BROKER_REGISTRATION_CHANGE,
        pb.BrokerRegistrationChangeRecord(broker_id=5, fenced=False),
        "broker 5 was unfenced",
    ),
    (
        RecordType.BROKER_REGISTRATION_CHANGE,
        pb.BrokerRegistrationChangeRecord(broker_id=5, in_controlled_shutdown=True),
        "broker 5 is shutting down in order",
    ),
    (
        RecordType.REGISTER_BROKER,
        pb.RegisterBrokerRecord(broker_id=5, end_points=[pb.Listener(host="b", port=9)]),
        "broker 5 registered at b:9",
    ),
    (RecordType.UNREGISTER_BROKER, pb.UnregisterBrokerRecord(broker_id=5), "broker 5 was unregistered"),
    (RecordType.TOPIC, pb.TopicRecord(name="t", topic_id=TOPIC_ID), "topic t was created"),
    (
        RecordType.PARTITION_CHANGE,
        pb.PartitionChangeRecord(topic_id=TOPIC_ID, leader=-1, isr=pb.IdList(ids=[4, 5])),
        f"partition 0 of topic with id {TOPIC_ID.hex()}: leader none; in sync 4, 5",
    ),
    (
        RecordType.FEATURE_LEVEL,
        pb.FeatureLevelRecord(name="metadata.version", feature_level=8),
        "feature metadata.version was set to level 8",
    ),
    (RecordType.FEATURE_LEVEL, pb.FeatureLevelRecord(name="f"), "feature f was removed"),
    (RecordType.KEY_VALUE, pb.KeyValueRecord(key="a", value=b"1", lease_id=7), "key a was put with lease 7"),
    (RecordType.KEY_VALUE, pb.KeyValueRecord(key="a"), "key a was deleted"),
    (
        RecordType.LEASE,
        pb.LeaseRecord(name="lock a", ttl_ms=1500),
        "lease lock a was granted for 1.5 s without a renewal",
    ),
    (RecordType.REMOVE_LEASE, pb.RemoveLeaseRecord(lease_id=7, reason="revoked"), "lease 7 ended: revoked"),
    (RecordType.HOSTNAME, pb.HostnameRecord(hostname="h", broker_id=4), "hostname h is mapped to broker 4"),
    (RecordType.HOSTNAME, pb.HostnameRecord(hostname="h"), "hostname h is mapped to no broker"),
    (RecordType.LEADER_CHANGE, pb.LeaderChangeRecord(leader_id=2), "controller 2 became the leader"),
    (
        RecordType.VOTERS,
        pb.VotersRecord(voters=[pb.VoterEntry(voter_id=one) for one in (1, 2)]),
        "the voters are 1, 2",
    ),
    (RecordType.RECOVERY, pb.RecoveryRecord(reason="lost"), "previous_generation=0 previous_epoch=0 reason=lost"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "message", "said"), SAID, ids=lambda one: str(one)[:30])
def test_record_is_a_sentence(type_: RecordType, message: Message, said: str) -> None:
    data = RecordData(type_, 0, message.SerializeToString())
    assert sentence(type_, record_to_dict(data)) == said


@pytest.mark.parametrize("type_", list(RecordType))
def test_record_that_this_build_cannot_decode_is_shown_by_its_bytes(type_: RecordType) -> None:
    fields = record_to_dict(RecordData(type_, 99, b"\xff\xff"))
    assert sentence(type_, fields)


def test_access_control_entry_is_a_sentence() -> None:
    entry = pb.AccessControlEntryRecord(
        resource_type=2, resource_name="t", pattern_type=3, principal="User:a", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    data = RecordData(RecordType.ACCESS_CONTROL_ENTRY, 0, entry.SerializeToString())
    said = sentence(RecordType.ACCESS_CONTROL_ENTRY, record_to_dict(data))
    assert said == "access control entry was added: allow User:a read on topic t"


def test_values_are_text_or_hex_and_are_cut() -> None:
    assert shortened_value(b"10.0.0.1:80", 120) == "10.0.0.1:80"
    assert shortened_value(bytes(range(4)), 120) == "0x00010203"
    assert shortened_value("\u202eevil".encode(), 120).startswith("0xe280ae")
    assert shortened_value(b"\xff", 120) == "0xff"
    assert shortened_value("ä".encode() * 100, 5) == "ää…"
    assert shortened_value(b"", 120) == ""
