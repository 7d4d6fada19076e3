"""Records that no controller writes: whatever a log says, the fold takes it or says what does not
fit.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, Resource
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import NO_REPLICAS, FoldError, Image
from raftlog.metadata.records import MESSAGES, UnknownRecordError, record
from raftlog.node.security.authorizer import Authorizer, Caller
from raftlog.wire.records.v1 import records_pb2 as pb

ONE, TWO = b"\1" * 16, b"\2" * 16
_INT32 = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32}
_UNSIGNED = {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}


def folded(*messages: Any, image: Image | None = None) -> Image:
    """Each in a batch of its own."""
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
def test_whatever_a_record_says_the_fold_takes_it_or_refuses_it(seed: int) -> None:
    """Of each type some are taken: so what one leaves behind meets those that come later."""
    rng = Random(seed)
    image, taken = Image(), set()
    for _ in range(1_500):
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
def test_a_topic_goes_whose_partition_names_a_broker_twice(moved: bool) -> None:
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
def test_an_entry_about_an_operation_that_is_none_gives_no_right_and_denies_none(
    operation: int,
) -> None:
    """A huge one costs no memory: bits are kept of operations that there are."""
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
