"""Snapshots of an image."""

import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_state import HISTORIES, NaiveState
from test_metadata_fold import fold, history, state

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.errors import CorruptLogError, FatalError
from raftlog.metadata import snapshot
from raftlog.metadata.acls import AclIndex, AclResourceType
from raftlog.metadata.entities import HASH_MASK, encoded_hash, entity_bytes, entity_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import NO_REPLICAS, Image
from raftlog.metadata.kinds import KINDS, by_group, put
from raftlog.metadata.records import record
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.metadata.sorted_keys import SortedKeys
from raftlog.wire.records.v1 import records_pb2 as pb


def content_of(image: Image) -> bytes:
    return b"".join(
        snapshot.pieces(image, snapshot.header_of(image, cluster_id="c", generations=(3,)))
    )


def indexes(image: Image) -> tuple:
    held = {broker_id: set(keys) for broker_id, keys in image.replicas_of.items() if len(keys)}
    return dict(image.topic_ids.items()), held, dict(image.topics.items())


def same(one: Image, other: Image) -> bool:
    singles = ("offset", "epoch", "timestamp_ms", "state_hash", "leader", "voters")
    return (
        state(one) == state(other)
        and indexes(one) == indexes(other)
        and all(getattr(one, name) == getattr(other, name) for name in singles)
    )


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.integers(0, 16), st.integers(1, 3000))
def test_snapshot_and_later_log_equal_the_whole_log(choices: list, cut: int, piece: int) -> None:
    _, batches = history(choices)
    image = fold(batches[:cut]).snapshot()
    content = content_of(image)
    header, loaded = snapshot.load(content[at : at + piece] for at in range(0, len(content), piece))
    assert header == SnapshotHeader(
        "c", (3,), image.offset + 1, image.epoch, image.timestamp_ms, (), 1
    )
    assert same(loaded, image)
    assert same(fold(batches[cut:], loaded).snapshot(), fold(batches).snapshot())


def everything() -> Image:
    """An image with something in each of its fields."""
    messages = [
        pb.FeatureLevelRecord(name="metadata.version", feature_level=2),
        pb.LeaderChangeRecord(leader_id=1, voters=[1, 2]),
        pb.RegisterBrokerRecord(broker_id=4, broker_epoch=2, incarnation_id="i", end_points=[pb.Listener(name="P", host="h", port=1)]),
        pb.TopicRecord(name="t", topic_id=b"t" * 16),
        pb.PartitionRecord(partition_id=0, topic_id=b"t" * 16, replicas=[4, 5], isr=[4], leader=4),
        pb.PartitionRecord(partition_id=1, topic_id=b"t" * 16, replicas=[5], isr=[5], leader=5),
        pb.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1"),
        pb.ConfigRecord(resource_type=2, resource_name="t", name="cleanup.policy", value=""),
        pb.ProgressRecord(
            lowest_acknowledged_offset=1,
            high_watermark=3,
            applied=[pb.AppliedOffset(broker_id=4, broker_epoch=2, applied_offset=1)],
        ),
        pb.VotersRecord(voters=[pb.VoterEntry(voter_id=1, voter_directory_id="d", endpoint="c1:1")]),
    ]  # fmt: skip
    builder = ImageBuilder(Image())
    builder.apply_batch(
        [record(message) for message in messages], base_offset=0, epoch=7, timestamp_ms=99
    )

    def then(message: Any, **identity: int) -> None:
        builder.apply_batch(
            [record(message)],
            base_offset=builder.offset + 1,
            epoch=7,
            timestamp_ms=99,
            **identity,
        )

    then(pb.OpenClientRecord(name="w"))
    then(pb.NoOpRecord(), client_id=10, sequence=1, all_below_done=1)
    mapping = pb.HostnameRecord(
        hostname="h", broker_id=4, reason="registered", cause=pb.BY_REGISTRATION
    )
    cursor = pb.ExportCursorRecord(name="nightly", end_offset=9, target="there")
    entry = pb.AccessControlEntryRecord(id=b"i" * 16, resource_type=2, resource_name="t",
        pattern_type=4, principal="User:a", host="*", operation=3, permission_type=3)  # fmt: skip
    owned = pb.OpenClientRecord(name="o", principal="User:a")
    imported = pb.ImportedRecord(name="R", kind="controller", key="1", value="{}")
    key_value = pb.KeyValueRecord(key="locks/a", value=b"v", lease_id=18)
    lease = pb.LeaseRecord(name="l", ttl_ms=5, principal="User:a")
    for message in (mapping, cursor, entry, owned, imported, key_value, lease):
        then(message)
    return builder.snapshot()


def with_every_record(image: Image) -> Image:
    """The image after records of each type that the naive fold makes."""
    builder, naive = ImageBuilder(image), NaiveState()
    for choice in range(100):
        offset = builder.offset + 1
        one = naive.make(choice, choice % 8, offset, image.epoch)
        builder.apply_batch([one], base_offset=offset, epoch=image.epoch, timestamp_ms=99)
    return builder.snapshot()


FIELDS = list(Image.__struct_fields__)


def test_every_field_of_an_image_has_a_kind_that_fills_it() -> None:
    filled = [name for kind in KINDS for name in kind.fields]
    assert sorted([*filled, *snapshot.IN_HEADER, *snapshot.DERIVED]) == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_an_image_is_lost(name: str) -> None:
    def plain(value: object) -> object:
        if isinstance(value, AclIndex):
            return [value.matching(type_, "t") for type_ in AclResourceType]
        if isinstance(value, SortedKeys):
            return list(value)
        if not hasattr(value, "items"):
            return value
        # A broker whose replicas have gone may have an empty entry in an index.
        return {key: plain(one) for key, one in value.items() if one != NO_REPLICAS}

    image = with_every_record(everything())
    assert plain(getattr(image, name)) != plain(getattr(Image(), name)), (
        "the test's image has nothing there"
    )
    _, loaded = snapshot.load([content_of(image)])
    assert plain(getattr(loaded, name)) == plain(getattr(image, name))


def test_groups_together_equal_the_state() -> None:
    image, whole = with_every_record(everything()), ImageBuilder(Image())
    for one in by_group(image):
        put(whole, one.body)
    whole.offset, whole.epoch, whole.timestamp_ms = image.offset, image.epoch, image.timestamp_ms
    again = whole.snapshot()
    assert same(again, image)
    assert again.state_hash == snapshot.content_hash(again)
    assert again.state_bytes == image.state_bytes


def test_header_has_what_a_replica_needs() -> None:
    header, _ = snapshot.load([content_of(everything())])
    assert header == SnapshotHeader("c", (3,), 19, 7, 99, (Voter(1, "c1:1", "d"),), 2)


def large(topics: int = 30, partitions: int = 200) -> Image:
    builder = ImageBuilder(Image())
    rng = random.Random(4)
    for number in range(topics):
        id_ = rng.randbytes(16)
        messages: list[Any] = [pb.TopicRecord(name=f"topic-{number}", topic_id=id_)]
        messages += [
            pb.PartitionRecord(
                partition_id=p, topic_id=id_, replicas=rng.sample(range(9), 3), isr=[1], leader=1
            )
            for p in range(partitions)
        ]
        records = [record(message) for message in messages]
        builder.apply_batch(records, base_offset=builder.offset + 1, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def test_bytes_do_not_depend_on_map_order(monkeypatch: pytest.MonkeyPatch) -> None:
    image = large()
    content = content_of(image)

    def shuffled(keys: Iterable[Any]) -> list:
        found = list(keys)
        random.Random(1).shuffle(found)
        return found

    other = tuple(
        kind._replace(keys=partial(lambda keys, image: shuffled(keys(image)), kind.keys))
        for kind in KINDS
    )
    monkeypatch.setattr(snapshot, "KINDS", other)
    assert content_of(image) == content


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("skewed", [False, True])
def test_keys_are_sorted_in_small_steps_whatever_their_number(
    count: int, skewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SLICE_KEYS", 8)
    monkeypatch.setattr(snapshot, "MERGE_RUNS", 3)
    monkeypatch.setattr(snapshot, "MERGE_KEYS", 2)
    keys = list(range(count))
    if not skewed:
        random.Random(count).shuffle(keys)
    steps = snapshot._sorted_slowly(keys)
    while True:
        try:
            assert next(steps) == b""
        except StopIteration as stop:
            found = list(stop.value)
            break
    assert found == list(range(count))


def test_entity_hash_and_size_are_those_of_its_canonical_bytes() -> None:
    image = everything()
    state_hash = state_bytes = 0
    for kind in KINDS:
        for key in kind.keys(image):
            for content in kind.contents(image, key):
                assert encoded_hash(kind.name, entity_bytes(content)) == entity_hash(
                    kind.name, *content
                )
                state_hash += entity_hash(kind.name, *content)
                state_bytes += len(entity_bytes((kind.name, *content)))
    assert (state_hash & HASH_MASK, state_bytes) == (image.state_hash, image.state_bytes)
    assert snapshot.content_hash(image) == image.state_hash


def test_writer_works_in_small_steps() -> None:
    """Counted, not timed: each step encodes, hashes and collects a bounded amount."""
    image = large()
    done = {"hashed": 0, "keys": 0}
    honest = encoded_hash

    def counted(kind: str, encoded: bytes) -> int:
        done["hashed"] += 1
        return honest(kind, encoded)

    class Counted:
        def __init__(self, keys: Iterable[Any]) -> None:
            self.keys = iter(keys)

        def __iter__(self) -> Iterator[Any]:
            for key in self.keys:
                done["keys"] += 1
                yield key

    kinds = tuple(
        kind._replace(keys=partial(lambda keys, image: Counted(keys(image)), kind.keys))
        for kind in KINDS
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "encoded_hash", counted)
        patch.setattr(snapshot, "KINDS", kinds)
        steps, sizes = [], []
        for piece in snapshot.pieces(
            image, snapshot.header_of(image, cluster_id="c", generations=())
        ):
            steps.append((done["hashed"], done["keys"]))
            sizes.append(len(piece))
            done.update(hashed=0, keys=0)
    assert sum(hashed for hashed, _ in steps) == 30 * 201
    assert max(hashed for hashed, _ in steps) <= 2 * snapshot.SLICE_ENTITIES
    assert max(keys for _, keys in steps) <= 2 * snapshot.SLICE_KEYS
    assert max(sizes) < 2 * snapshot.BATCH_BYTES
    assert len(steps) > 20


def test_image_that_differs_from_its_hash_or_header_is_never_written() -> None:
    image = msgspec.structs.replace(everything(), state_hash=1)
    written: list[bytes] = []
    with pytest.raises(FatalError, match="its entities"):
        written.extend(
            snapshot.pieces(image, snapshot.header_of(image, cluster_id="c", generations=()))
        )
    header = snapshot.header_of(everything(), cluster_id="c", generations=())
    with pytest.raises(ValueError, match=f"header is for offset {everything().offset + 1}"):
        list(snapshot.pieces(Image(), header))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flipped_bit_is_detected(data: st.DataObject) -> None:
    content = bytearray(content_of(everything()))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptLogError):
        snapshot.load([bytes(content)])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_truncated_snapshot_is_detected(data: st.DataObject) -> None:
    content = content_of(everything())
    with pytest.raises(CorruptLogError):
        snapshot.load([content[: data.draw(st.integers(0, len(content) - 1))]])


def made(*entities: tuple[str, list[object]], state_hash: int = 0) -> bytes:
    header = SnapshotHeader("c", (), 5, 1, 1)
    parts, offset = [encode_header(header)], 1
    for kind, contents in entities:
        message = pb.SnapshotEntitiesRecord(
            kind=kind, entities=[entity_bytes(content) for content in contents]
        )
        parts.append(
            batch.encode([record(message).data], base_offset=offset, epoch=1, timestamp_ms=1)
        )
        offset += 1
    return b"".join([*parts, encode_footer(header, offset, state_hash)])


PARTITION: tuple[Any, ...] = (b"t", 0, [1], [1], [], [], 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (made(("feature", [("f", 1)])), "but its footer names"),
        (made(("teapot", [(1,)])), "unknown kind 'teapot'"),
        (made(("partition", [(PARTITION,)])), "invalid partition"),
        (
            made(("topic", [(b"t", "t")]), ("partition", [((b"t", 1, *PARTITION[2:]),)])),
            "does not follow: the next index is 0",
        ),
        (made(("topic", [(b"t", "t"), (b"u", "t")])), "duplicate topic"),
        (made(("feature", [("f", "one")])), "invalid feature"),
        (
            made(("feature", [("f", 1)])) + b"x" * 80,
            "a batch's length field has the impossible value 2021161084",
        ),
        (made(("feature", [("f", 1)])) * 2, "after its footer"),
        (b"", "truncated"),
    ],
)
def test_load_rejects_valid_checkpoint_without_image(content: bytes, says: str) -> None:
    with pytest.raises(CorruptLogError, match=says):
        snapshot.load([content])


def test_hash_is_computed_from_the_loaded_entities() -> None:
    good = made(("feature", [("f", 1)]), state_hash=entity_hash("feature", "f", 1) & HASH_MASK)
    assert snapshot.load([good])[1].features["f"] == 1
