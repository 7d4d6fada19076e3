"""The fold, compared with a plain model."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_state import HISTORIES, NaiveState

from raftlog import batch
from raftlog.metadata import entities, pmap
from raftlog.metadata.acls import (
    AclOperation,
    AclPermission,
    AclResourceType,
    Resource,
)
from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.fold import ImageBuilder, apply, fold_identity
from raftlog.metadata.image import BLOCK, NO_REPLICAS, FoldError, Image, ImageDraft
from raftlog.metadata.kinds import KINDS
from raftlog.metadata.records import (
    CHANGES_NOTHING,
    MESSAGES,
    ONLY_IN_SNAPSHOTS,
    Record,
    RecordType,
    UnknownRecordError,
    client_group,
    decoded,
    group_of,
    parse,
    record,
)
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.security.authorizer import Authorizer, Caller
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.states import difference

PLACE = ("offset", "epoch", "timestamp_ms", "state_hash")


Batch = tuple[list[Record], dict[str, Any]]
"""Records, and the client's part of their header."""


def history(choices: list[list[tuple[int, int]]]) -> tuple[NaiveState, list[Batch]]:
    """Return batches whose epoch grows by one each."""
    naive, offset, batches = NaiveState(), 0, list[Batch]()
    for epoch, chosen in enumerate(choices, 1):
        records = []
        for choice, n in chosen:
            records.append(naive.make(choice, n, offset, epoch))
            offset += 1
        batches.append((records, naive.identity(n, offset - 1, epoch)))
    return naive, batches


def fold(batches: list[Batch], base: Image | None = None) -> ImageBuilder:
    builder = ImageBuilder(Image() if base is None else base)
    for records, identity in batches:
        place = {"base_offset": builder.offset + 1, "epoch": builder.epoch + 1}
        builder.apply_batch(records, **place, timestamp_ms=builder.timestamp_ms + 5, **identity)
    return builder


def encoded(batches: list[Batch]) -> bytes:
    chunk, offset = b"", 0
    for epoch, (records, identity) in enumerate(batches, 1):
        place: dict[str, Any] = {"base_offset": offset, "epoch": epoch, "timestamp_ms": 5 * epoch}
        chunk += batch.encode(records, **place, **identity)
        offset += len(records)
    return chunk


def state(image: Image) -> dict:
    return {name: value for name, value in image_to_dict(image).items() if name not in PLACE}


def hash_from_scratch(image: Image) -> int:
    return entities.HASH_MASK & sum(
        entities.entity_hash(kind.name, *content)
        for kind in KINDS
        for key in kind.keys(image)
        for content in kind.contents(image, key)
    )


@settings(max_examples=150, deadline=None)
@given(HISTORIES)
def test_fold_equals_a_state_of_plain_dicts(choices: list) -> None:
    naive, batches = history(choices)
    image = fold(batches).snapshot()
    assert state(image) == naive.to_dict()
    assert image.state_hash == hash_from_scratch(image)
    described = image_to_dict(image)
    assert json.loads(json.dumps(described)) == described
    for values in (described["features"], *(one["values"] for one in described["configs"])):
        assert list(values) == sorted(values)
    epoch = len(batches)
    assert [described[name] for name in PLACE] == [
        sum(len(records) for records, _ in batches) - 1, epoch, 5 * epoch, entities.format_hash(image.state_hash),
    ]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_image_indexes_equal_recomputed_ones(choices: list) -> None:
    _, batches = history(choices)
    image = fold(batches).snapshot()
    assert dict(image.topic_ids.items()) == {
        topic.name: topic.id for topic in image.topics.values()
    }
    of_lease: dict[int, set] = {}
    for key_value in image.key_values.values():
        if key_value.lease_id:
            of_lease.setdefault(key_value.lease_id, set()).add(key_value.key)
    assert {id_: set(keys) for id_, keys in image.keys_of_lease.items()} == of_lease
    assert list(image.key_names) == sorted(image.key_values)
    indexed = [
        entry.id
        for _, bucket in image.acl_index.items()
        for rules in bucket.values()
        for entry in rules.entries
    ]
    assert sorted(indexed) == sorted(image.acls)
    directories = Counter(key.rpartition("/")[0] for key in image.key_values)
    assert dict(image.keys_in.items()) == directories
    assert image.key_value_bytes == sum(
        len(one.key) + len(one.value) for one in image.key_values.values()
    )
    assert dict(image.leader_counts.items()) == Counter(
        one.leader for one in image.partitions.values()
    )
    standings = Counter(map(entities.standing_of, image.partitions.values()))
    del standings[None]
    assert dict(image.standings.items()) == standings
    held: dict[int, set] = {}
    for key, partition in image.partitions.items():
        for broker_id in partition.replicas:
            held.setdefault(broker_id, set()).add(key)
    assert {
        broker_id: set(keys) for broker_id, keys in image.replicas_of.items() if len(keys)
    } == held


@settings(max_examples=75, deadline=None)
@given(HISTORIES, st.randoms(use_true_random=False))
def test_groups_may_be_folded_separately_in_any_order(choices: list, random: Random) -> None:
    _, batches = history(choices)
    whole = fold(batches).snapshot()
    groups: dict[object, list[tuple[int, int, Record | dict[str, Any]]]] = defaultdict(list)
    offset = 0
    for epoch, (records, identity) in enumerate(batches, 1):
        for one in records:
            groups[group_of(one.type, one.message, offset)].append((offset, epoch, one))
            offset += 1
        if identity:
            groups[client_group(identity["client_id"])].append((offset - 1, epoch, identity))
    keys = sorted(groups, key=str)
    random.shuffle(keys)
    total, merged = 0, state(Image())
    for key in keys:
        builder = ImageBuilder(Image())
        for at, epoch, change in groups[key]:
            builder.timestamp_ms = 5 * epoch
            if isinstance(change, Record):
                apply(builder, change.type, change.message, at, epoch)
            else:
                client_id, sequence, done = (*change.values(), 0)[:3]
                fold_identity(builder, client_id, sequence, done, at, epoch)
        part = builder.snapshot()
        assert key is not None or part.state_hash == 0
        total += part.state_hash
        for name, value in state(part).items():
            if isinstance(value, list):
                merged[name].extend(value)
            elif name == "features":
                merged[name].update(value)
            else:
                merged[name] = value if value is not None else merged[name]
    assert total & entities.HASH_MASK == whole.state_hash
    expected = state(whole)
    for name, value in expected.items():
        if isinstance(value, list):
            assert sorted(map(repr, merged[name])) == sorted(map(repr, value))
        else:
            assert merged[name] == value


@settings(max_examples=75, deadline=None)
@given(HISTORIES)
def test_both_map_libraries_agree(choices: list) -> None:
    _, batches = history(choices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pmap, "immutables", None)
        over_rpds = fold(batches).snapshot()
        assert isinstance(over_rpds.brokers, pmap.RpdsMap)
        described = image_to_dict(over_rpds)
    over_immutables = fold(batches).snapshot()
    assert not isinstance(over_immutables.brokers, pmap.RpdsMap)
    assert described == image_to_dict(over_immutables)


@settings(max_examples=75, deadline=None)
@given(HISTORIES, HISTORIES)
def test_older_images_never_change(choices: list, others: list) -> None:
    """Neither by records folded on top of them nor by another future."""
    _, batches = history(choices)
    builder = ImageBuilder(Image())
    kept = []
    for one in batches:
        builder = fold([one], builder.snapshot())
        image = builder.snapshot()
        kept.append((image, image_to_dict(image)))
    for index in range(0, len(kept), max(1, len(kept) // 3)):
        _, future = history([*choices[: index + 1], *others])
        fold(future[index + 1 :], kept[index][0])
    for image, described in kept:
        assert image_to_dict(image) == described
        assert image.snapshot() is image


@settings(max_examples=75, deadline=None)
@given(HISTORIES, st.integers(0, 16))
def test_encoded_batches_fold_like_records(choices: list, stop: int) -> None:
    _, batches = history(choices)
    chunk = encoded(batches)
    builder = ImageBuilder(Image())
    until = sum(len(records) for records, _ in batches[:stop])
    builder.apply_chunk(chunk, until=until, verify=True)
    assert image_to_dict(builder.snapshot()) == image_to_dict(fold(batches[:stop]).snapshot())
    builder.apply_chunk(chunk)  # what already exists is skipped
    whole, by_batch = fold(batches).snapshot(), ImageBuilder(Image())
    assert image_to_dict(builder.snapshot()) == image_to_dict(whole)
    for header in batch.headers(chunk):
        by_batch.apply_decoded(header, [decoded(data) for data in batch.records(chunk, header)])
    assert image_to_dict(by_batch.snapshot()) == image_to_dict(whole)


@settings(max_examples=75, deadline=None)
@given(HISTORIES)
def test_records_round_trip_through_bytes(choices: list) -> None:
    for records, _ in history(choices)[1]:
        for one in records:
            assert parse(one.data) == one.message
            assert record(one.message) == one


TOPIC = b"\x01" * 16
ENTRY = pb.AccessControlEntryRecord(
    id=b"i" * 16, resource_type=2, resource_name="t", pattern_type=3, principal="User:a", host="*",
    operation=3, permission_type=3,
)  # fmt: skip
GROUND = [
    record(pb.RegisterBrokerRecord(broker_id=1, broker_epoch=0, fenced=True)),
    record(pb.TopicRecord(name="t", topic_id=TOPIC)),
    record(pb.PartitionRecord(partition_id=0, topic_id=TOPIC, replicas=[1], isr=[1], leader=1)),
    record(ENTRY),
]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.UnregisterBrokerRecord(broker_id=2), "UNREGISTER_BROKER at offset 4 names 2"),
        (pb.BrokerRegistrationChangeRecord(broker_id=2), "names 2"),
        (
            pb.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7),
            "is for epoch 7 of broker 1, whose epoch is 0",
        ),
        (pb.TopicRecord(name="t", topic_id=b"\x02" * 16), "topic 't' at offset 4 already exists"),
        (pb.TopicRecord(name="u", topic_id=TOPIC), "already exists"),
        (
            pb.PartitionRecord(partition_id=2, topic_id=TOPIC),
            "does not follow: the next index is 1",
        ),
        (pb.PartitionRecord(partition_id=0, topic_id=b"\x02" * 16), "PARTITION at offset 4 names"),
        (
            pb.PartitionChangeRecord(partition_id=1, topic_id=TOPIC),
            "PARTITION_CHANGE at offset 4 names",
        ),
        (pb.RemoveTopicRecord(topic_id=b"\x02" * 16), "REMOVE_TOPIC at offset 4 names"),
        (pb.HostnameRecord(hostname="h"), "HOSTNAME .* names 'h', which does not exist"),
        (pb.ExportCursorRecord(name="c"), "EXPORT_CURSOR .* names 'c', which does not exist"),
        (ENTRY, "already exists"),
        (
            pb.RemoveAccessControlEntryRecord(id=b"j" * 16),
            "REMOVE_ACCESS_CONTROL_ENTRY .* which does not exist",
        ),
    ],
)
def test_record_that_does_not_fit_is_refused(message: object, complaint: str) -> None:
    builder = fold([(GROUND, {})])
    with pytest.raises(FoldError, match=complaint):
        builder.apply_batch([record(message)], base_offset=4, epoch=1, timestamp_ms=0)


def test_features_are_the_same_object_until_a_level_changes() -> None:
    builder = fold([(GROUND, {})])
    seen = [builder.snapshot().features]
    for change in (
        pb.HostnameRecord(hostname="h", broker_id=0, reason="a"),
        pb.FeatureLevelRecord(name="metadata.version", feature_level=2),
        pb.FeatureLevelRecord(name="metadata.version", feature_level=1),
    ):
        builder.apply_batch(
            [record(change)], base_offset=builder.offset + 1, epoch=1, timestamp_ms=0
        )
        seen.append(builder.snapshot().features)
    assert [one is other for one, other in pairwise(seen)] == [True, False, False]


def test_client_keeps_its_principal_whatever_it_writes() -> None:
    builder = fold([(GROUND, {})])
    opened = record(pb.OpenClientRecord(name="w", principal="User:a"))
    builder.apply_batch([opened], base_offset=builder.offset + 1, epoch=2, timestamp_ms=7)
    id_ = builder.offset
    assert builder.clients[id_] == entities.Client(id_, "w", 7, 1, "User:a")
    builder.apply_batch([record(pb.NoOpRecord())], base_offset=id_ + 1, epoch=2, timestamp_ms=9,
        client_id=id_, sequence=1, all_below_done=1)  # fmt: skip
    assert builder.clients[id_] == entities.Client(id_, "w", 9, 1, "User:a")
    assert entities.entity_bytes(entities.Client(1, "w", 2, 3, "")) == b"\x95\x01\xa1w\x02\x03\xa0"


def test_batch_must_continue_the_image() -> None:
    builder = fold([(GROUND, {})])
    for base_offset in (3, 5):
        with pytest.raises(FoldError, match="does not follow"):
            builder.apply_batch(
                [record(pb.NoOpRecord())], base_offset=base_offset, epoch=1, timestamp_ms=0
            )


def test_unknown_record_is_never_skipped() -> None:
    for data in (batch.RecordData(999, 0, b""), batch.RecordData(RecordType.TOPIC, 1, b"")):
        with pytest.raises(UnknownRecordError, match="is not supported by this build"):
            parse(data)
    with pytest.raises(UnknownRecordError, match="TOPIC cannot be parsed"):
        parse(batch.RecordData(RecordType.TOPIC, 0, b"\xff"))
    with pytest.raises(UnknownRecordError):
        apply(ImageBuilder(Image()), 999, None, 0, 1)


def test_every_record_type_has_a_message_and_a_group() -> None:
    assert set(MESSAGES) == set(RecordType)
    for type_, message in MESSAGES.items():
        if type_ not in ONLY_IN_SNAPSHOTS:
            # An imported record belongs to what it names; this one names nothing.
            without = CHANGES_NOTHING | {RecordType.IMPORTED}
            assert (group_of(type_, message(), 7) is None) == (type_ in without)
    for one, group in (
        (pb.OpenClientRecord(), ("client", "7")),
        (pb.CloseClientRecord(client_id=6), ("client", "6")),
        (pb.HostnameRecord(hostname="h"), ("hostname", "h")),
        (pb.AccessControlEntryRecord(id=b"i"), ("acl", "69")),
        (pb.RemoveAccessControlEntryRecord(id=b"i"), ("acl", "69")),
        (pb.ExportCursorRecord(name="c"), ("export_cursor", "c")),
    ):
        assert group_of(record(one).type, one, 7) == group


# --- Runs of new partitions are folded in one go -------------------------------------------------


Fold = Callable[[list[Record]], Image]
A, B = b"a" * 16, b"b" * 16


def topic(topic_id: bytes) -> Record:
    return record(pb.TopicRecord(topic_id=topic_id, name=topic_id.decode()))


def partition(topic_id: bytes, index: int, *replicas: int) -> Record:
    held = replicas or (1, 2, 3)
    return record(
        pb.PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=held,
            isr=held[:2],
            adding_replicas=held[2:],
            leader=held[0],
            leader_epoch=index,
            partition_epoch=2 * index,
        )
    )


def one_by_one(records: list[Record]) -> Image:
    draft = ImageDraft(Image())
    draft.timestamp_ms = 9
    for offset, one in enumerate(records):
        apply(draft, one.type, one.message, offset, 1)
    draft.offset, draft.epoch = len(records) - 1, 1
    return draft.snapshot()


def in_one_batch(records: list[Record]) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=9)
    return builder.snapshot()


def from_bytes(records: list[Record]) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_chunk(
        batch.encode([one.data for one in records], base_offset=0, epoch=1, timestamp_ms=9)
    )
    return builder.snapshot()


def long_history() -> list[Record]:
    """Two topics whose partitions alternate and span several blocks."""
    rng, records, counts = random.Random(7), [topic(A), topic(B)], {A: 0, B: 0}
    while min(counts.values()) < 2 * BLOCK + 5:
        topic_id = rng.choice((A, B))
        for _ in range(rng.choice((1, 3, 40))):
            replicas = rng.sample(range(1, 6), 3)
            records.append(partition(topic_id, counts[topic_id], *replicas))
            counts[topic_id] += 1
        if rng.random() < 0.2:
            records.append(record(pb.NoOpRecord()))
    return records


@pytest.mark.parametrize("fold", [in_one_batch, from_bytes])
def test_run_folds_to_the_same_image_as_single_records(fold: Fold) -> None:
    records = long_history()
    expected, image = one_by_one(records), fold(records)
    assert difference(image, expected) == ""
    assert image.state_hash == expected.state_hash
    for broker_id, held in image.replicas_of.items():
        keys = {key for key, one in image.partitions.items() if broker_id in one.replicas}
        assert set(held) == keys


@pytest.mark.parametrize("fold", [in_one_batch, from_bytes])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *(
            (
                partition(A, n),
                rf"partition {n} of 'a{{16}}' at offset 4 does not follow: the next index is 2",
            )
            for n in (1, 3, BLOCK)
        ),
        (partition(B, 0), r"record PARTITION at offset 4 names b'b{16}', which does not exist"),
    ],
)
def test_first_record_that_does_not_fit_is_reported(fold: Fold, wrong: Record, text: str) -> None:
    records = [record(pb.NoOpRecord()), topic(A), partition(A, 0), partition(A, 1), wrong]
    records.append(partition(A, 9))
    with pytest.raises(FoldError, match=text):
        fold(records)


def test_keys_of_a_topic_share_its_id() -> None:
    image = from_bytes([topic(A), *(partition(A, index) for index in range(9))])
    assert len({id(one.topic_id) for one in image.partitions.values()}) == 1
    assert next(kind for kind in KINDS if kind.name == "partition").add_all is not None


# --- Records that no controller writes -----------------------------------------------------------


ONE, TWO = b"\1" * 16, b"\2" * 16
_INT32 = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32}
_UNSIGNED = {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}


def folded(*messages: Any, image: Image | None = None) -> Image:
    """Fold each record in its own batch."""
    draft = ImageBuilder(image or Image())
    for message in messages:
        draft.apply_batch([record(message)], base_offset=draft.offset + 1, epoch=1, timestamp_ms=1)
    return draft.snapshot()


def _value(rng: Random, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((ONE, TWO, b"", b"x"))
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(("", "a", "b", "metadata.version", "*", "é"))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    largest = 2**31 - 1 if field.type in _INT32 else 2**32 - 1
    return rng.choice((0, 1, 2, 3, largest, *(() if field.type in _UNSIGNED else (-1, -(2**31)))))


def _fill(rng: Random, message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        place = getattr(message, field.name)
        nested = field.type == FieldDescriptor.TYPE_MESSAGE
        if field.is_repeated:
            for _ in range(rng.randrange(4)):
                if nested:
                    _fill(rng, place.add())
                else:
                    place.append(_value(rng, field))
        elif nested:
            place.SetInParent()
            _fill(rng, place)
        else:
            setattr(message, field.name, _value(rng, field))


@pytest.mark.parametrize("seed", range(3))
def test_fold_applies_or_refuses_any_record(seed: int) -> None:
    """Some records of each type are drawn, so that later ones meet the state left by earlier ones."""
    rng = Random(seed)
    image, taken = Image(), set()
    for _ in range(3_000):
        message = MESSAGES[rng.choice(list(MESSAGES))]()
        _fill(rng, message)
        if isinstance(message, pb.PartitionRecord) and message.topic_id in image.topics:
            message.partition_id = image.topics[message.topic_id].partition_count
        try:
            image = folded(message, image=image)
        except (FoldError, UnknownRecordError):
            continue
        taken.add(type(message))
    assert {pb.PartitionRecord, pb.PartitionChangeRecord, pb.RemoveTopicRecord} < taken
    assert {pb.AccessControlEntryRecord, pb.RemoveAccessControlEntryRecord} < taken


@pytest.mark.parametrize("moved", [False, True])
def test_topic_whose_partition_names_a_broker_twice_can_be_removed(moved: bool) -> None:
    created = pb.PartitionRecord(topic_id=ONE, replicas=[1, 2] if moved else [2, 1, 2], isr=[1])
    change = pb.PartitionChangeRecord(topic_id=ONE)
    change.replicas.ids.extend([2, 2, 3] if moved else [2, 1, 1])
    there = folded(pb.TopicRecord(name="a", topic_id=ONE), created, change)
    held = {id_ for id_, replicas in there.replicas_of.items() if len(replicas)}
    assert held == ({2, 3} if moved else {1, 2})
    gone = folded(pb.RemoveTopicRecord(topic_id=ONE), image=there)
    assert not len(gone.topics)
    assert not len(gone.partitions)
    assert {len(gone.replicas_of.get(id_, NO_REPLICAS)) for id_ in (1, 2, 3)} == {0}


@pytest.mark.parametrize("operation", [-1, 0, 64, 2**31 - 1])
def test_entry_with_an_unknown_operation_allows_and_denies_nothing(operation: int) -> None:
    """A huge number costs no memory: bits are kept only of known operations."""
    entries = [
        pb.AccessControlEntryRecord(
            id=bytes([number]) * 16, resource_type=AclResourceType.TOPIC, resource_name="a",
            pattern_type=3, principal="User:a", host="*", operation=of, permission_type=permission,
        )
        for number, (of, permission) in enumerate(
            [
                (operation, AclPermission.ALLOW),
                (operation, AclPermission.DENY),
                (AclOperation.READ, AclPermission.ALLOW),
            ]
        )
    ]  # fmt: skip
    index = folded(*entries).acl_index
    caller, resource = Caller("User:a", "h"), Resource(AclResourceType.TOPIC, "a")
    for asked, allowed in ((AclOperation.READ, True), (AclOperation.WRITE, False)):
        assert Authorizer().allows(index, caller, asked, resource) is allowed
        assert Authorizer().verdict(index, caller, asked, resource).allowed is allowed
    (bucket,) = index.matching(*resource)
    assert max(*bucket["User:a"].any_host) < 1 << 12


# --- Exactly-once clients -------------------------------------------------------------------------


def config(value: str) -> Record:
    return record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value=value))


def opened(*writes: dict[str, int]) -> ImageBuilder:
    builder = ImageBuilder(Image(offset=6))
    builder.apply_batch(
        [record(pb.OpenClientRecord(name="c"))], base_offset=7, epoch=1, timestamp_ms=50
    )
    for write in writes:
        fold_write(builder, **write)
    return builder


def fold_write(builder: ImageBuilder, **identity: Any) -> None:
    place = {"base_offset": builder.offset + 1, "epoch": 1, "timestamp_ms": 60}
    builder.apply_batch([config("v")], **place, client_id=7, **identity)


def test_finished_results_and_closed_clients_are_dropped() -> None:
    builder = opened(
        *({"sequence": n} for n in (1, 3, 2, entities.WINDOW)), {"sequence": 4, "all_below_done": 3}
    )
    image = builder.snapshot()
    assert sorted(image.client_results) == [(7, 3), (7, 4), (7, entities.WINDOW)]
    before = opened().snapshot()
    plain = ImageBuilder(Image(offset=6))
    plain.apply_batch([config("v")], base_offset=7, epoch=1, timestamp_ms=50)
    builder.apply_batch(
        [record(pb.CloseClientRecord(client_id=7))], base_offset=13, epoch=1, timestamp_ms=61
    )
    closed = builder.snapshot()
    assert not len(closed.clients)
    assert not len(closed.client_results)
    assert closed.state_hash == plain.snapshot().state_hash != before.state_hash


@pytest.mark.parametrize(
    "write",
    [
        {"sequence": 2},
        {"sequence": 4},
        {"sequence": 3 + entities.WINDOW},
        {"sequence": 5, "all_below_done": 6},
    ],
)
def test_number_that_no_controller_accepts_is_a_defect(write: dict[str, int]) -> None:
    builder = opened({"sequence": 4, "all_below_done": 3})
    fold_write(builder, sequence=2 + entities.WINDOW)
    with pytest.raises(FoldError):
        fold_write(builder, **write)


def test_unknown_level_stops_this_build() -> None:
    level = pb.FeatureLevelRecord(
        name="metadata.version", feature_level=LATEST_METADATA_VERSION + 1
    )
    with pytest.raises(
        UnknownRecordError, match=f"raises metadata.version to {LATEST_METADATA_VERSION + 1}"
    ):
        apply(ImageBuilder(Image()), 12, level, 0, 1)
