"""No text, byte string or list comes in without a limit: all requests of all services, walked by
their descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import FIELDS, MAX_ITEMS, OCTETS, TEXT, Items, check, checks_of, rule_of
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

FILES = (broker_pb2, controller_pb2, data_pb2, node_pb2, quorum_pb2)
REQUESTS = sorted(
    {
        method.input_type.full_name: GetMessageClass(method.input_type)
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }.items()
)
PEERS_SAY = (
    quorum_pb2.FetchResponse,
    quorum_pb2.FetchSnapshotResponse,
    quorum_pb2.VoteResponse,
    quorum_pb2.BeginQuorumEpochResponse,
    quorum_pb2.EndQuorumEpochResponse,
)


def messages(type_: Any, seen: set[Any]) -> Iterator[type[Message]]:
    """A message type and all that are in it."""
    if type_ in seen:
        return
    seen.add(type_)
    yield type_
    for field in type_.DESCRIPTOR.fields:
        if field.message_type is not None:
            yield from messages(GetMessageClass(field.message_type), seen)


TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def limited(field: Any) -> bool:
    return field.is_repeated or field.type in TEXTS


def test_all_services_are_walked() -> None:
    assert len(REQUESTS) >= 40
    assert controller_pb2.ControllerRequests.DESCRIPTOR.full_name in dict(REQUESTS)


@pytest.mark.parametrize(
    "type_", [type_ for _, type_ in REQUESTS] + list(PEERS_SAY), ids=lambda t: t.DESCRIPTOR.name
)
def test_every_field_has_a_limit(type_: type[Message]) -> None:
    for each in messages(type_, set()):
        for field in each.DESCRIPTOR.fields:
            rule = rule_of(each, field.name)
            assert not limited(field) or rule is not None, field.full_name
            bare = isinstance(rule, Items) and rule.each is None
            assert not bare or not field.is_repeated or field.type not in TEXTS, field.full_name
    checks_of(type_)


def test_the_table_names_no_field_that_is_not_there() -> None:
    for type_, rules in FIELDS.items():
        there = {field.name for field in type_.DESCRIPTOR.fields if limited(field)}
        assert set(rules) <= there, type_.DESCRIPTOR.full_name


def test_field_without_row_has_the_limit_of_its_kind() -> None:
    """A text, a byte string, a list of messages, a list of texts; a number has none."""
    assert rule_of(controller_pb2.OpenClientRequest, "name") == TEXT
    assert rule_of(data_pb2.DataRecord, "value") == OCTETS
    assert rule_of(controller_pb2.CreateTopicsRequest, "topics") == Items(MAX_ITEMS)
    assert rule_of(controller_pb2.DeleteTopicsRequest, "names") == Items(MAX_ITEMS, TEXT)
    assert rule_of(controller_pb2.CloseClientRequest, "client_id") is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (controller_pb2.OpenClientRequest(name="x" * 250), "name"),
        (controller_pb2.DeleteTopicsRequest(names=["t", "x" * 250]), "names[1]"),
        (controller_pb2.DeleteTopicsRequest(names=["t"] * (MAX_ITEMS + 1)), "names"),
    ],
    ids=["text", "text in list", "list"],
)
def test_field_without_row_is_refused_beyond_its_limit(request_: Message, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        check(request_)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, field)
