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

from raftlog.limits import FIELDS, checks_of
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


def limited(field: Any) -> bool:
    return field.is_repeated or field.type in (
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_BYTES,
    )


def test_all_services_are_walked() -> None:
    assert len(REQUESTS) >= 40
    assert controller_pb2.ControllerRequests.DESCRIPTOR.full_name in dict(REQUESTS)


@pytest.mark.parametrize(
    "type_", [type_ for _, type_ in REQUESTS] + list(PEERS_SAY), ids=lambda t: t.DESCRIPTOR.name
)
def test_every_field_has_a_limit(type_: type[Message]) -> None:
    for each in messages(type_, set()):
        wanted = {field.name for field in each.DESCRIPTOR.fields if limited(field)}
        body = {f.name for oneof in each.DESCRIPTOR.oneofs for f in oneof.fields}
        assert wanted - body <= set(FIELDS.get(each, {})), each.DESCRIPTOR.full_name
    checks_of(type_)


def test_the_table_names_no_field_that_is_not_there() -> None:
    for type_, rules in FIELDS.items():
        there = {field.name for field in type_.DESCRIPTOR.fields if limited(field)}
        assert set(rules) <= there, type_.DESCRIPTOR.full_name


def test_a_field_without_a_limit_is_an_error_at_once() -> None:
    with pytest.raises(KeyError, match="has no limit"):
        checks_of(broker_pb2.MetadataResponse)
