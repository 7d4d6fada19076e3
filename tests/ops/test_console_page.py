"""The console's content: cluster, changes and stored keys."""

from typing import Any

import pytest
from google.protobuf.message import Message

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata import pmap
from raftlog.metadata.entities import Broker as Registered
from raftlog.metadata.entities import KeyValue, Lease, Listener, Partition, Process, Topic
from raftlog.metadata.image import Image
from raftlog.metadata.record_text import record_to_dict
from raftlog.metadata.records import RecordType, record
from raftlog.metadata.words import author
from raftlog.ops.console_page import (
    MAX_CHANGES,
    MAX_READ,
    MAX_RECORDS,
    MAX_SHOWN,
    MAX_TOPICS,
    RecentChanges,
    cleaned,
    document,
    sentence,
    shortened_value,
    stored,
)
from raftlog.ops.doctor import diagnose
from raftlog.ops.evidence import (
    AskedNode,
    Broker,
    BrokersAnswer,
    BrokerState,
    QuorumAnswer,
    Reach,
    Replica,
    Survey,
)
from raftlog.ops.story import Story
from raftlog.ops.story_lines import Line, Weight
from raftlog.wire.records.v1 import records_pb2 as pb

NODE = {"role": "broker", "node_id": 4}
TOPIC_ID = b"1" * 16
HOSTILE = "<script>document.title='owned'</script>"


def _seen(**brokers: Any) -> Survey:
    voters = [Replica(replica_id=one, endpoint=f"c:{one}") for one in (1, 2, 3)]
    leader = QuorumAnswer(
        cluster_id="c", node_id=1, role="leader", leader_id=1, voters=voters, log_end_offset=10
    )
    described = [
        Broker(broker_id=one, state=BrokerState.ACTIVE, applied_offset=9 - one % 2, reason=HOSTILE)
        for one in (4, 5)
    ]
    found = BrokersAnswer(
        brokers=described, high_watermark=10, lowest_acknowledged_offset=8, **brokers
    )
    nodes = (
        AskedNode("c:1", Reach.ANSWERS, leader, node_id=1),
        AskedNode("c:2", Reach.REFUSES, None, "refused", 150, 2),
    )
    return Survey(nodes, found, "", 5)


def _no_brokers() -> BrokersAnswer:
    return BrokersAnswer(
        high_watermark=5, lowest_acknowledged_offset=-1, lao_unknown_reason="no broker is unfenced"
    )


def test_findings_equal_the_doctors() -> None:
    for seen in (_seen(), Survey((), None, "no leader answers", 5)):
        made = document(seen, Image(), [], None, NODE)
        said = [(one.cause, one.consequence, one.remedy) for one in diagnose(seen)]
        shown = [(one["cause"], one["consequence"], one["remedy"]) for one in made["findings"]]
        assert shown == said
    assert any("Node 2" in one.cause for one in diagnose(_seen()))


def test_console_lists_the_broker_that_holds_lao_first() -> None:
    made = document(_seen(held_back_by=[5], held_back_ms=9_300), Image(), [], None, NODE)
    assert made["lao"]["why"] == "1 broker (5) holds it back for 9.3 s"
    assert [(one["id"], one["holds_lao"]) for one in made["brokers"]["shown"]] == [
        (5, True),
        (4, False),
    ]
    two = document(_seen(held_back_by=[4, 5]), Image(), [], None, NODE)
    assert two["lao"]["why"] == "2 brokers (4, 5) hold it back"


def test_console_shows_lao_as_unknown_without_a_leader() -> None:
    made = document(Survey((), None, "", 5), Image(), [], None, NODE)
    assert made["lao"] == {"offset": None, "why": "no leader answers"}
    assert made["brokers"] == {"total": 0, "shown": []}
    assert made["incidents"]["shown"] is None


def test_console_lists_registered_brokers_without_a_leader() -> None:
    """[Three brokers served reads, and the page listed none.]"""
    at = (Listener("", "b", 4),)
    process = Process("", "", 0, 0)
    known = {4: Registered(4, 7, "", at, (), "r1", False, False, (), 1, process, "")}
    made = document(Survey((), None, "", 5), Image(brokers=_mapped(known)), [], None, NODE)
    (shown,) = made["brokers"]["shown"]
    assert (shown["id"], shown["endpoint"], shown["state"]) == (4, "b:4", "not known")
    assert made["brokers"]["total"] == 1


def test_config_without_effect_is_marked() -> None:
    configs = {(2, "t"): {"cleanup.policy": "compact", "segment.bytes": "9", "retention.ms": "1"}}
    made = document(_seen(), Image(configs=_mapped(configs)), [], None, NODE)["configs"]["shown"]
    assert {one["key"]: one["without_effect"] for one in made} == {
        "cleanup.policy": "this build does not compact",
        "segment.bytes": "no effect in this build",
        "retention.ms": "",
    }


def test_topics_and_configs_are_bounded_and_sorted() -> None:
    topics = {b"%16d" % one: Topic(b"%16d" % one, f"t{one:04}", 1) for one in range(1000)}
    configs = {(2, f"t{one:04}"): {"k": "v"} for one in range(1000)}
    image = Image(topics=_mapped(topics), configs=_mapped(configs))
    made = document(_seen(), image, [], None, NODE)
    assert made["topics"]["total"] == 1000
    assert [one["name"] for one in made["topics"]["shown"]] == [
        f"t{one:04}" for one in range(MAX_TOPICS)
    ]
    assert made["configs"]["more"]
    assert len(made["configs"]["shown"]) == 200


def _mapped(found: dict[Any, Any]) -> Any:
    draft = pmap.empty().mutate()
    for key, value in found.items():
        draft[key] = value
    return draft.finish()


def _chunk(base: int, *messages: Message, principal: str = "User:eve") -> bytes:
    records = [record(one) for one in messages]
    return batch.encode(records, base_offset=base, epoch=1, timestamp_ms=7, principal=principal)


def _config(value: str) -> pb.ConfigRecord:
    return pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value=value)


def test_changes_are_listed_newest_first_with_their_principal() -> None:
    changes = RecentChanges()
    first = _chunk(3, _config("1"), _config(HOSTILE))
    found = changes.read([first], 5, Image())
    assert [one["offset"] for one in found] == [4, 3]
    assert found[0]["by"] == "User:eve"
    assert HOSTILE in found[0]["sentence"]
    # The same again tells nothing twice.
    again = changes.read([first, _chunk(5, _config("2"))], 6, Image())
    assert [one["offset"] for one in again] == [5, 4, 3]


def test_config_change_is_described_in_words() -> None:
    deleted = pb.ConfigRecord(resource_type=4, name="k")
    chunk = _chunk(0, _config("1"), deleted, principal=ANONYMOUS_PRINCIPAL)
    found = RecentChanges().read([chunk], 2, Image())
    assert [(one["who"], one["sentence"]) for one in found] == [
        ("a client (no principal)", "k of broker was removed"),
        ("a client (no principal)", "k of topic t was set to 1"),
    ]


def test_uncommitted_changes_are_not_shown() -> None:
    changes = RecentChanges()
    chunks = [_chunk(0, _config("1")), _chunk(1, _config("2"))]
    assert [one["offset"] for one in changes.read(chunks, 1, Image())] == [0]
    assert [one["offset"] for one in changes.read(chunks, 2, Image())] == [1, 0]


def test_partitions_of_a_new_topic_share_its_row() -> None:
    topic = pb.TopicRecord(name="t", topic_id=TOPIC_ID)
    partitions = [pb.PartitionRecord(partition_id=one, topic_id=TOPIC_ID) for one in range(3)]
    found = RecentChanges().read([_chunk(0, topic, *partitions)], 4, Image())
    assert [(one["type"], one["partitions"]) for one in found] == [("TOPIC", 3)]


def test_console_decodes_a_bounded_number_of_records() -> None:
    changes = RecentChanges()
    found = changes.read([_chunk(0, *[_config("v")] * (MAX_RECORDS * 3))], MAX_RECORDS * 3, Image())
    assert len(found) == MAX_CHANGES
    assert found[0]["offset"] == MAX_RECORDS * 3 - 1


def test_texts_have_no_control_characters() -> None:
    made = cleaned({"a": ["x\x1b[2Jy", 3, None]})
    assert "\x1b" not in made["a"][0]
    assert made["a"][1:] == [3, None]


def test_topic_is_shown_by_its_name() -> None:
    change = pb.PartitionChangeRecord(partition_id=3, topic_id=TOPIC_ID, leader=5)
    image = Image(topics=_mapped({TOPIC_ID: Topic(TOPIC_ID, "orders", 4)}))
    (found,) = RecentChanges().read([_chunk(0, change)], 1, image)
    assert found["sentence"] == "partition 3 of topic orders: leader 5"


def test_removed_topic_is_shown_by_its_former_name() -> None:
    changes, named = RecentChanges(), {TOPIC_ID: Topic(TOPIC_ID, "t", 4)}
    changes.read([_chunk(0, _config("v"))], 1, Image(topics=_mapped(named)))
    found = changes.read([_chunk(1, pb.RemoveTopicRecord(topic_id=TOPIC_ID))], 2, Image())
    assert found[0]["sentence"] == "topic t was deleted"
    # Made and removed while nobody looked.
    made = pb.TopicRecord(name="short", topic_id=b"2" * 16)
    chunk = _chunk(2, made, pb.RemoveTopicRecord(topic_id=b"2" * 16))
    assert changes.read([chunk], 4, Image())[0]["sentence"] == "topic short was deleted"


def test_repeatedly_written_key_is_one_row() -> None:
    """[A counter displaced the changes made by people.]"""
    put = pb.KeyValueRecord(key="n", value=b"1")
    changes = RecentChanges()
    changes.read([_chunk(0, _config("v"))], 1, Image())
    found = changes.read([_chunk(1, *[put] * (MAX_CHANGES + 5))], 99, Image())
    assert [(one["sentence"], one["times"], one["offset"]) for one in found] == [
        ("key n was put", MAX_CHANGES + 5, MAX_CHANGES + 5),
        ("k of topic t was set to v", 1, 0),
    ]


def test_simultaneous_partition_changes_are_one_row() -> None:
    """[A fenced broker was in hundreds of them, and the changes made by people were gone.]"""
    many = [
        pb.PartitionChangeRecord(partition_id=one, topic_id=TOPIC_ID, leader=5)
        for one in range(MAX_CHANGES * 2)
    ]
    chunks = [_chunk(0, _config("v")), _chunk(1, *many, principal="")]
    found = RecentChanges().read(chunks, 1 + len(many), Image())
    assert [(one["type"], one["partitions"]) for one in found] == [
        ("PARTITION_CHANGE", len(many) - 1),
        ("CONFIG", 0),
    ]
    assert "proposer" not in found[0]["sentence"]


def _row(at_ms: int, text: str, by: str = "User:eve", type_: str = "CONFIG") -> dict[str, Any]:
    return {
        "offset": at_ms,
        "at_ms": at_ms,
        "by": by,
        "who": author(by),
        "type": type_,
        "sentence": text,
        "trouble": False,
    }


def _told(story: Story, *newest_first: dict[str, Any]) -> list[tuple[int, str, str]]:
    made = document(_seen(), Image(), newest_first, story, NODE)["incidents"]["shown"]
    return [(one["at_ms"], one["weight"], one["text"]) for one in made]


def test_console_shows_changes_among_the_incidents() -> None:
    lines = (Line(2_000, "CRASHED", Weight.TROUBLE, "broker-4", "broker-4 crashed"),)
    story = Story(1_000, 9_000, lines, (), (), ())
    assert _told(
        story,
        _row(3_000, "b", by=ANONYMOUS_PRINCIPAL),
        _row(2_500, "p=0", type_="PARTITION_CHANGE"),
        _row(1_500, "a"),
        _row(900, "before the period"),
    ) == [
        (3_000, "change", "a client (no principal): b"),
        (2_000, "trouble", "broker-4 crashed"),
        (1_500, "change", "User:eve: a"),
    ]


def test_first_records_of_a_new_cluster_are_not_an_incident() -> None:
    row = _row(1_000, "the voters are 1, 2, 3", by="", type_="VOTERS")
    story = Story(0, 99_000, (), (), (), ())
    assert _told(story, row) == []
    made = document(Survey(_seen().nodes, _no_brokers(), "", 5), Image(), [row], story, NODE)
    assert made["lao"]["why"] == "no broker has registered yet"
    assert made["incidents"]["summary"] == []


@pytest.mark.parametrize(
    ("reason", "cause", "shown"),
    [
        ("session timed out", 4, [(7, "trouble", "broker 5 was fenced: session timed out")]),
        ("controlled shutdown", 9, []),
        (
            "told by a later build",
            99,
            [(7, "trouble", "broker 5 was fenced: told by a later build")],
        ),
    ],
)
def test_fenced_broker_is_an_incident_unless_it_stopped_in_order(
    reason: str, cause: int, shown: list[tuple[int, str, str]]
) -> None:
    """[A broker was killed, and the page showed no incident.]"""
    change = pb.BrokerRegistrationChangeRecord(broker_id=5, fenced=True, reason=reason)
    change.cause = cause  # type: ignore[assignment]
    rows = RecentChanges().read([_chunk(0, change, principal="")], 1, Image())
    assert _told(Story(0, 99_000, (), (), (), ()), *rows) == shown


def test_many_simultaneous_changes_are_one_line() -> None:
    story = Story(0, 99_000, (), (), (), ())
    many = [_row(1_000 + one, f"v={one}") for one in range(10)]
    later, other = _row(60_000, "later"), _row(1_005, "t", type_="TOPIC")
    assert _told(story, later, *reversed(many)) == [
        (60_000, "change", "User:eve: later"),
        (1_000, "change", "User:eve made 10 config changes, the last one: v=9"),
    ]
    # Two clients without a principal are not one.
    two = [{**one, "who": f"client {at // 5} (no principal)"} for at, one in enumerate(many)]
    assert [text.split(" made ")[0] for _, _, text in _told(story, *reversed(two))] == [
        "client 1 (no principal)",
        "client 0 (no principal)",
    ]
    told = _told(story, other, *reversed(many[:3]))
    assert [text for _, _, text in told] == [
        "User:eve: t",
        *(f"User:eve: v={one}" for one in (2, 1, 0)),
    ]


def test_decoded_chunks_are_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = RecentChanges()
    chunks = [_chunk(one, _config("v")) for one in range(50)]
    changes.read(chunks, 50, Image())
    opened: list[bytes] = []
    headers = batch.headers

    def counted(chunk: bytes, **options: Any) -> Any:
        opened.append(chunk)
        return headers(chunk, **options)

    monkeypatch.setattr(batch, "headers", counted)
    newest = _chunk(50, _config("w"))
    assert changes.read([*chunks, newest], 51, Image())[0]["offset"] == 50
    assert opened == [newest, chunks[-1]]
    # What is not committed yet is read once it is.
    more = _chunk(51, _config("x"))
    assert changes.read([*chunks, newest, more], 51, Image())[0]["offset"] == 50
    assert changes.read([*chunks, newest, more], 52, Image())[0]["offset"] == 51


SAID: list[tuple[Message, str]] = [
    (
        pb.BrokerRegistrationChangeRecord(broker_id=5, fenced=True, reason="session timed out"),
        "broker 5 was fenced: session timed out",
    ),
    (pb.BrokerRegistrationChangeRecord(broker_id=5, fenced=False), "broker 5 was unfenced"),
    (
        pb.BrokerRegistrationChangeRecord(broker_id=5, in_controlled_shutdown=True),
        "broker 5 is in controlled shutdown",
    ),
    (
        pb.RegisterBrokerRecord(broker_id=5, end_points=[pb.Listener(host="b", port=9)]),
        "broker 5 registered at b:9",
    ),
    (pb.UnregisterBrokerRecord(broker_id=5), "broker 5 was unregistered"),
    (pb.TopicRecord(name="t", topic_id=TOPIC_ID), "topic t was created"),
    (
        pb.PartitionChangeRecord(topic_id=TOPIC_ID, leader=-1, isr=pb.IdList(ids=[4, 5])),
        f"partition 0 of topic with id {TOPIC_ID.hex()}: leader none; in sync 4, 5",
    ),
    (
        pb.FeatureLevelRecord(name="metadata.version", feature_level=8),
        "feature metadata.version was set to level 8",
    ),
    (pb.FeatureLevelRecord(name="f"), "feature f was removed"),
    (pb.KeyValueRecord(key="a", value=b"1", lease_id=7), "key a was put with lease 7"),
    (pb.KeyValueRecord(key="a"), "key a was deleted"),
    (
        pb.LeaseRecord(name="lock a", ttl_ms=1500),
        "lease lock a was granted for 1.5 s without a renewal",
    ),
    (pb.RemoveLeaseRecord(lease_id=7, reason="revoked"), "lease 7 ended: revoked"),
    (pb.HostnameRecord(hostname="h", broker_id=4), "hostname h is mapped to broker 4"),
    (pb.HostnameRecord(hostname="h"), "hostname h is mapped to no broker"),
    (pb.LeaderChangeRecord(leader_id=2), "controller 2 became the leader"),
    (
        pb.VotersRecord(voters=[pb.VoterEntry(voter_id=one) for one in (1, 2)]),
        "the voters are 1, 2",
    ),
    (pb.RecoveryRecord(reason="lost"), "previous_generation=0 previous_epoch=0 reason=lost"),
    (
        pb.AccessControlEntryRecord(
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        ),
        "access control entry was added: allow User:a read on topic t",
    ),
]


@pytest.mark.parametrize(("message", "said"), SAID, ids=lambda one: str(one)[:30])
def test_record_is_described_in_a_sentence(message: Message, said: str) -> None:
    data = RecordData(*record(message)[:3])
    assert sentence(RecordType(data.type), record_to_dict(data)) == said


@pytest.mark.parametrize("type_", list(RecordType))
def test_undecodable_record_is_shown_as_bytes(type_: RecordType) -> None:
    assert sentence(type_, record_to_dict(RecordData(type_, 99, b"\xff\xff")))


def test_values_are_text_or_hex_and_shortened() -> None:
    assert shortened_value(b"10.0.0.1:80", 120) == "10.0.0.1:80"
    assert shortened_value(bytes(range(4)), 120) == "0x00010203"
    assert shortened_value("\u202eevil".encode(), 120).startswith("0xe280ae")
    assert shortened_value(b"\xff", 120) == "0xff"
    assert (shortened_value("ä".encode() * 100, 5), shortened_value(b"", 120)) == ("ää…", "")


def _keys(*keys: KeyValue) -> Image:
    return Image(key_values=_mapped({one.key: one for one in keys}))


def test_keys_are_bounded_and_sorted_and_values_shortened() -> None:
    found = stored(_keys(*(KeyValue(f"k{at:05}", b"v" * 9999, 1, 2, 0) for at in range(1000))))
    assert (found["keys"]["total"], found["keys"]["partial"]) == (1000, False)
    shown = found["keys"]["shown"]
    assert [one["key"] for one in shown] == [f"k{at:05}" for at in range(MAX_SHOWN)]
    assert (len(shown[0]["value"]), shown[0]["bytes"], shown[0]["lease_id"]) == (121, 9999, None)


def test_console_reads_a_bounded_number_of_keys() -> None:
    found = stored(_keys(*(KeyValue(f"k{at}", b"", 1, 2, 0) for at in range(MAX_READ + 1))))
    assert (found["keys"]["total"], found["keys"]["partial"]) == (MAX_READ + 1, True)
    assert found["locks"]["partial"]


def test_lock_shows_its_holder_and_the_number_of_waiters() -> None:
    """The lowest create_offset holds it, whatever the lease ids are."""
    found = stored(
        _keys(
            KeyValue(f"locks/job/{7:020d}", b"late", 30, 30, 7),
            KeyValue(f"locks/job/{9:020d}", b"first", 20, 40, 9),
            KeyValue(f"elections/chief/{8:020d}", b"host-1", 25, 25, 8),
            KeyValue("locks/mine", b"no place", 1, 1, 0),
            KeyValue("other/job/00000000000000000001", b"", 1, 1, 0),
        )
    )["locks"]["shown"]
    assert [(one["kind"], one["name"], one["holder"], one["waiting"]) for one in found] == [
        ("election", "chief", "host-1", 0),
        ("lock", "job", "first", 1),
    ]
    assert found[1]["lease_id"] == 9


def test_leases_are_listed() -> None:
    lease = Lease(7, "lock job", 10_000, "User:a")
    (shown,) = stored(Image(leases=_mapped({7: lease})))["leases"]["shown"]
    assert shown == {"id": 7, "name": "lock job", "ttl_ms": 10_000, "principal": "User:a"}


def test_partitions_without_leader_come_first_then_those_out_of_sync() -> None:
    def partition(index: int, leader: int, isr: tuple[int, ...]) -> Partition:
        return Partition(TOPIC_ID, index, (4, 5, 6), isr, (), (), leader, 0, 1, 1)

    partitions = [partition(0, 4, (4, 5, 6)), partition(1, 5, (5,)), partition(2, -1, (6,))]
    image = Image(
        topics=_mapped({TOPIC_ID: Topic(TOPIC_ID, "orders", 3)}),
        partitions=_mapped({(TOPIC_ID, one.index): one for one in partitions}),
    )
    found = stored(image)["partitions"]["shown"]
    assert [(one["topic"], one["index"], one["state"], one["leader"]) for one in found] == [
        ("orders", 2, "offline", None),
        ("orders", 1, "under-replicated", 5),
        ("orders", 0, "in sync", 4),
    ]
    assert (found[1]["replicas"], found[1]["isr"]) == ([4, 5, 6], [5])
