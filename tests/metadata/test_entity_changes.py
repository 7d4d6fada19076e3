"""The changes that each record of a log made, and queries for them."""

from typing import Any

import msgspec
import pytest

from raftlog import batch
from raftlog.metadata.changes import Changed, ChangeRecorder, changes_of_chunk
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.selectors import HISTORY_KINDS, query_of
from raftlog.metadata.words import field_changes, raw, words
from raftlog.ops.history import in_words
from raftlog.wire.records.v1 import records_pb2 as pb

ID = bytes(range(16))


def chunk_of(*batches: tuple[str, list[Any]]) -> bytes:
    """Return batches of a principal's records, a second apart."""
    parts, offset = [], 0
    for number, (principal, messages) in enumerate(batches):
        parts.append(
            batch.encode(
                [record(one) for one in messages],
                base_offset=offset,
                epoch=2,
                timestamp_ms=1_000 * (number + 1),
                principal=principal,
            )
        )
        offset += len(messages)
    return b"".join(parts)


def partition(index: int) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=ID, partition_id=index, replicas=[1, 2], isr=[1, 2], leader=1
    )


def config(value: str | None) -> pb.ConfigRecord:
    return pb.ConfigRecord(
        resource_type=2, resource_name="orders", name="retention.ms", value=value
    )


LOG = chunk_of(
    ("User:ann", [pb.TopicRecord(name="orders", topic_id=ID), *map(partition, range(3))]),
    ("User:bob", [config("1")]),
    ("User:bob", [config("2")]),
    ("User:eve", [config(None), pb.RemoveTopicRecord(topic_id=ID)]),
)


def say(one: Changed) -> str:
    fields = field_changes(one.before, one.after)
    return words(raw(one.before), raw(one.after), fields, one.kind)


def test_each_record_reports_its_changes() -> None:
    found = list(changes_of_chunk(ChangeRecorder(Image()), LOG))
    told = [(one.offset, one.timestamp_ms, one.principal, one.kind, one.key) for one in found]
    assert told[:6] == [
        (0, 1_000, "User:ann", "topic", "orders"),
        (1, 1_000, "User:ann", "partition", "orders-0"),
        (2, 1_000, "User:ann", "partition", "orders-1"),
        (3, 1_000, "User:ann", "partition", "orders-2"),
        (4, 2_000, "User:bob", "config", "topic:orders:retention.ms"),
        (5, 3_000, "User:bob", "config", "topic:orders:retention.ms"),
    ]
    assert [say(one) for one in found[:6]] == [
        f"created: id {ID.hex()}",
        *["created: leader 1, replicas 1,2"] * 3,
        "created: 1",
        "1 → 2",
    ]
    assert (found[6].offset, say(found[6])) == (6, "deleted: 2")
    assert {one.offset for one in found[7:]} == {7}
    assert {(one.kind, one.key) for one in found[7:]} == {
        ("topic", "orders"),
        *(("partition", f"orders-{index}") for index in range(3)),
    }
    assert {one.type_name for one in found} == {"TOPIC", "PARTITION", "CONFIG", "REMOVE_TOPIC"}


def test_changes_of_requested_kinds_are_returned_once() -> None:
    found = changes_of_chunk(ChangeRecorder(Image()), LOG, {"config"}.__contains__)
    assert [one.offset for one in found] == [4, 5, 6]
    plain, recorder = ImageBuilder(Image()), ChangeRecorder(Image())
    plain.apply_chunk(LOG)
    list(changes_of_chunk(recorder, LOG))
    assert list(changes_of_chunk(recorder, LOG)) == [], "it has them already"
    assert recorder.snapshot().state_hash == plain.snapshot().state_hash


@pytest.mark.parametrize(
    ("kind", "key", "yes", "no"),
    [
        ("topic", "orders", ("topic", "orders"), ("topic", "orders-1")),
        ("topics", "orders", ("partition", "orders-11"), ("partition", "orders-x-1")),
        ("topic", "orders", ("config", "topic:orders:k"), ("config", "topic:orders2:k")),
        ("partition", "orders-1", ("partition", "orders-1"), ("partition", "orders-11")),
        ("partitions", "orders", ("partition", "orders-1"), ("partition", "other-1")),
        ("broker", "4", ("broker", "4"), ("broker", "44")),
        ("broker", "4", ("config", "broker:4:k"), ("config", "broker:44:k")),
        ("config", "topic:orders", ("config", "topic:orders:k"), ("config", "topic:ordersx:k")),
        ("configs", "topic:orders:k", ("config", "topic:orders:k"), ("config", "topic:orders:l")),
        ("hostname", "h", ("hostname", "h"), ("hostname", "g")),
    ],
)
def test_entity_query_selects_its_entities(
    kind: str, key: str, yes: tuple[str, str], no: tuple[str, str]
) -> None:
    asked = query_of(kind, key)
    assert yes[0] in asked.kinds
    assert asked.matches(*yes)
    assert not asked.matches(*no)


def test_cluster_query_selects_leaders_voters_and_features() -> None:
    assert query_of("cluster").kinds == {"leader", "voters", "feature"}
    assert all(query_of(kind).matches for kind in HISTORY_KINDS)


@pytest.mark.parametrize(
    ("kind", "key", "why"),
    [
        ("nonsense", "", "use one of config"),
        ("cluster", "x", "cluster takes no key"),
        ("broker", "orders", "not a broker id"),
        ("config", "orders", "is not TYPE NAME"),
        ("config", "topic", "is not TYPE NAME"),
    ],
)
def test_unanswerable_query_is_refused(kind: str, key: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        query_of(kind, key)


def test_value_is_shown_as_text_or_base64_and_a_lease_as_an_entity() -> None:
    recorder = ChangeRecorder(Image())
    messages = (
        pb.LeaseRecord(name="w", ttl_ms=5),
        pb.KeyValueRecord(key="a/b", value="ä".encode(), lease_id=0),
        pb.KeyValueRecord(key="a/b", value=b"\xff"),
        pb.KeyValueRecord(key="a/b"),
        pb.RemoveLeaseRecord(lease_id=0),
    )
    chunk = batch.encode(
        [record(one).data for one in messages], base_offset=0, epoch=1, timestamp_ms=1
    )
    found = list(changes_of_chunk(recorder, chunk))
    text, other = (
        f'{{"key":"a/b",{value},"offset":{offset},"create_offset":1,"lease_id":null}}'
        for value, offset in (
            ('"value":"ä","value_base64":null', 1),
            ('"value":null,"value_base64":"/w=="', 2),
        )
    )
    lease = '{"id":0,"name":"w","ttl_ms":5,"principal":""}'
    assert [(one.kind, one.key, one.before, one.after) for one in found] == [
        ("lease", "0", None, lease),
        ("kv", "a/b", None, text),
        ("kv", "a/b", text, other),
        ("kv", "a/b", other, None),
        ("lease", "0", lease, None),
    ]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.HostnameRecord(hostname="h", broker_id=7, reason="set by hand"), "broker 7 (set by hand)"),
        (pb.LeaseRecord(ttl_ms=1500, name="n"), "for 1.5 s named n"),
        (pb.ExportCursorRecord(name="c", end_offset=3, target="x:/e"), "from offset 3 onwards for x:/e"),
        (pb.KeyValueRecord(key="k", value=b"v w"), "v w"),
        (pb.KeyValueRecord(key="k", value=b"\xff", lease_id=5), "base64 /w==, lease 5"),
    ],
)  # fmt: skip
def test_created_entity_is_described_in_wrappable_words(message: Any, said: str) -> None:
    """[A terminal broke the JSON of a hostname in the middle of its words.]"""
    (one,) = changes_of_chunk(ChangeRecorder(Image()), chunk_of(("User:ann", [message])))
    assert say(one) == f"created: {said}"


def test_change_of_voters_names_those_that_joined_left_or_moved() -> None:
    def voters(**fields: str) -> msgspec.Raw:
        listed = [
            {"id": int(name[1]), "directory_id": name[2:], "endpoint": endpoint}
            for name, endpoint in fields.items()
        ]
        return raw(msgspec.json.encode({"voters": listed, "reason": ""}).decode())

    before, after = voters(n1a="a:1", n2a="b:1", n3a="c:1"), voters(n1a="z:1", n2a="b:1", n3b="c:1")
    assert words(before, after, [], "voters") == (
        "removed 3@c:1; added 3@c:1; moved 1@a:1 → z:1; now 1@z:1, 2@b:1, 3@c:1"
    )


def test_change_by_an_unclean_recovery_has_its_known_facts() -> None:
    knew = pb.UncleanRecovery(
        strategy="balanced",
        logs=[pb.ReplicaLog(broker_id=2, broker_epoch=9, last_epoch=0, log_end_offset=4)],
        silent=[1],
        loss="broker 1, the last leader, did not report",
    )
    elected = pb.PartitionChangeRecord(
        topic_id=ID, isr=pb.IdList(ids=[2]), leader=2, leader_recovery_state=1, recovery=knew
    )
    quiet = pb.PartitionChangeRecord(topic_id=ID, leader=2)
    made = [pb.TopicRecord(name="orders", topic_id=ID), partition(0)]
    found = list(
        changes_of_chunk(ChangeRecorder(Image()), chunk_of(("", made), ("", [elected, quiet])))
    )
    assert [bool(one.recovery) for one in found] == [False, False, True, False]
    assert in_words(found[2]).endswith(
        "; unclean recovery (balanced), broker 2 reported 4 in leader epoch 0, broker 1 did not"
        " report; may have lost records: broker 1, the last leader, did not report"
    )
