"""The bytes of each conversation's envelopes, and watches by plain gRPC."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import scenario
from transport_worlds import Recorder, World, run_real, run_simulated, until

from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation
from raftlog.transport.conversations import (
    ENVELOPE_TARGET_BYTES,
    PART_MAX_BYTES,
    PART_MAX_ITEMS,
    SHORT_BYTES,
    WIRES,
    MalformedMessageError,
    TooManyItemsError,
)
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

import grpc  # isort: skip
import grpc.aio  # isort: skip

MAX_BYTES = 64 << 20


def test_every_conversation_has_the_types_of_its_method() -> None:
    files = (quorum_pb2, controller_pb2, broker_pb2, data_pb2)
    services = {s.full_name: s for f in files for s in f.DESCRIPTOR.services_by_name.values()}
    for conversation in Conversation:
        _, service, method_name = conversation.value.split("/")
        method = services[service].methods_by_name[method_name]
        # The one request of a watch is the first message of a stream.
        assert method.client_streaming is not (conversation is Conversation.WATCH)
        assert method.server_streaming
        for wire, envelope in (
            (WIRES[conversation].to_server, method.input_type),
            (WIRES[conversation].to_client, method.output_type),
        ):
            item = wire.item_type.DESCRIPTOR
            assert item is envelope if wire.single else item is envelope.fields[0].message_type


ITEMS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 5000)), min_size=1, max_size=20
)
MANY_SHORT = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1), st.sampled_from([0, 100, 200, 2_010, 2_020, 2_032, 2_036])
    ),
    min_size=8,
    max_size=24,
)


@settings(deadline=None, max_examples=120)
@given(st.one_of(ITEMS, MANY_SHORT))
def test_envelope_equals_the_one_by_protobuf(items: list[tuple[int, int]]) -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    requests = [
        controller_pb2.ControllerRequest(correlation_id=i, cluster_id="c" * size)
        for i, size in items
    ]
    (envelope,) = wire.envelopes([wire.encode(request, MAX_BYTES) for request in requests])
    assert envelope == controller_pb2.ControllerRequests(requests=requests).SerializeToString()
    assert wire.decode(envelope, 1 << 20) == requests


@pytest.mark.parametrize(
    "size", [0, 1, 126, 127, 128, 129, 2047, 2048, 16383, 16384, 2_000_000, 3_000_000]
)
def test_headers_have_the_right_varint_at_each_length(size: int) -> None:
    wire = WIRES[Conversation.QUORUM].to_client
    message = quorum_pb2.QuorumMessage()
    message.vote_request.cluster_id = "x" * size
    (envelope,) = wire.envelopes([wire.encode(message, MAX_BYTES)])
    assert quorum_pb2.QuorumMessages.FromString(envelope).messages[0] == message


def test_empty_item_is_still_an_item() -> None:
    wire = WIRES[Conversation.BROKER].to_server
    (envelope,) = wire.envelopes([wire.encode(broker_pb2.BrokerRequest(), MAX_BYTES)] * 3)
    assert len(wire.decode(envelope, 1 << 20)) == 3


def test_envelopes_are_split_at_the_bound_and_lose_nothing() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    sizes = [400_000, 400_000, 400_000, 3_000_000, 10, 10, 900_000, 200_000]
    requests = [
        controller_pb2.ControllerRequest(correlation_id=i, cluster_id="c" * s)
        for i, s in enumerate(sizes)
    ]
    envelopes = wire.envelopes([wire.encode(request, MAX_BYTES) for request in requests])
    decoded = [wire.decode(envelope, 1 << 20) for envelope in envelopes]
    assert [[item.correlation_id for item in envelope] for envelope in decoded] == [
        [0, 1],
        [2],
        [3],
        [4, 5, 6],
        [7],
    ]
    assert all(
        len(envelope) <= ENVELOPE_TARGET_BYTES + 100 or len(items) == 1
        for envelope, items in zip(envelopes, decoded, strict=True)
    )


def test_message_above_the_limit_is_a_typed_error() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    with pytest.raises(ApiError) as caught:
        wire.encode(controller_pb2.ControllerRequest(cluster_id="c" * 1000), 1000)
    assert (caught.value.code, caught.value.field) == (ErrorCode.MESSAGE_TOO_LARGE, "")
    assert not caught.value.outcome_unknown
    topics = controller_pb2.DeleteTopicsRequest(names=["t" * 1000])
    with pytest.raises(ApiError) as caught:
        wire.encode(controller_pb2.ControllerRequest(delete_topics=topics), 1000)
    assert (caught.value.code, caught.value.field) == (ErrorCode.MESSAGE_TOO_LARGE, "delete_topics")
    forwarded = broker_pb2.BrokerRequest(
        write=controller_pb2.ControllerRequest(delete_topics=topics)
    )
    with pytest.raises(ApiError) as caught:
        WIRES[Conversation.BROKER].to_server.encode(forwarded, 1000)
    assert (caught.value.code, caught.value.field) == (ErrorCode.MESSAGE_TOO_LARGE, "delete_topics")


@pytest.mark.parametrize("conversation", list(Conversation))
def test_unparsable_bytes_are_distinguished(conversation: Conversation) -> None:
    for wire in (WIRES[conversation].to_server, WIRES[conversation].to_client):
        with pytest.raises(MalformedMessageError):
            wire.decode(b"\x0a\xff\xff\xff", 1 << 20)


def test_many_short_items_are_bounded_in_bytes_too() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    items = [controller_pb2.ControllerRequest(cluster_id="c" * 2_000).SerializeToString()] * 700
    envelopes = wire.envelopes(items)
    assert len(envelopes) > 1
    assert max(map(len, envelopes)) <= ENVELOPE_TARGET_BYTES * 1.01
    assert sum(len(wire.decode(one, 1 << 20)) for one in envelopes) == len(items)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 16_383, 16_384])
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_items_are_counted_to_the_last_one(length: int, count: int) -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    (envelope,) = wire.envelopes(
        [controller_pb2.ControllerRequest(cluster_id="c" * length).SerializeToString()] * count
    )
    assert len(wire.decode(envelope, count)) == count
    with pytest.raises(TooManyItemsError):
        wire.decode(envelope, count - 1)


@pytest.mark.parametrize(
    "item",
    [
        b"\x8a\x00\x00",
        b"\x0a\x80\x00",
        b"\x0a\x80\x80\x00",
        b"\x0b\x0c\x0a\x00",
        b"\x10\x01\x0a\x00",
    ],
    ids=["a long tag", "a long length", "a longer length", "after a group", "after a number"],
)
def test_items_are_counted_in_any_encoding(item: bytes) -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    assert len(wire.decode(item * 100, 500)) == 100
    with pytest.raises(TooManyItemsError):
        wire.decode(item * 100, 30)


def test_damage_is_not_reported_as_too_many_items() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    for cut in (b"\x0a", b"\x0a\x80", b"\x0a\x7f", b"\x8a", b"\xff" * 12):
        with pytest.raises(MalformedMessageError):
            wire.decode(b"\x0a\x00" * 9 + cut, 10)


def items_of(count: int, name: str = "") -> tuple[bytes, list[controller_pb2.ControllerRequest]]:
    requests = [
        controller_pb2.ControllerRequest(correlation_id=n, cluster_id=name) for n in range(count)
    ]
    return controller_pb2.ControllerRequests(requests=requests).SerializeToString(), requests


@pytest.mark.parametrize(
    ("count", "name"), [(1, ""), (3_000, ""), (16_000, ""), (40, "c" * 100_000), (2_000, "c" * 200)]
)
def test_long_envelope_is_parsed_in_bounded_parts(count: int, name: str) -> None:
    """[16,000 items parsed at once block the loop for over 10 ms, on many links.]"""
    wire = WIRES[Conversation.CONTROLLER].to_server
    envelope, requests = items_of(count, name)
    begin = 0
    found: list[Any] = []
    for end in wire.cut(envelope, 16_384):
        part = envelope[begin:end]
        items = wire.decode(part, 16_384)
        assert len(part) <= SHORT_BYTES or len(items) <= PART_MAX_ITEMS
        assert (
            len(part) <= PART_MAX_BYTES
            or sum(one.ByteSize() for one in items[:-1]) < PART_MAX_BYTES
        )
        found += items
        begin = end
    assert begin == len(envelope)
    assert found == requests


def test_message_with_other_fields_is_one_part() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_server
    envelope, _ = items_of(3_000)
    for strange in (
        envelope + b"\x10\x01",
        envelope[:-1],
        envelope + b"\x0a\xff",
        b"\x12\x00" + envelope,
    ):
        assert wire.cut(strange, 16_384) == (len(strange),)
    assert wire.cut(envelope, 2_999) == (len(envelope),)
    with pytest.raises(TooManyItemsError):
        wire.decode(envelope, 2_999)


def test_message_to_many_observers_is_encoded_once() -> None:
    wire = WIRES[Conversation.OBSERVER].to_client
    told, equal = (controller_pb2.MetadataFetchResponse(records=b"x" * 100) for _ in range(2))
    data = wire.encode(told, 1_000)
    assert wire.encode(told, 1_000) is data
    assert wire.encode(equal, 1_000) == data
    other = controller_pb2.MetadataFetchResponse(records=b"y" * 100)
    assert wire.encode(other, 1_000) == other.SerializeToString()
    with pytest.raises(ApiError) as refused:
        wire.encode(other, 50)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert wire.encode(told, 1_000) == data


# --- Watches: one request, and responses for as long as the client stays -------------------------


def response(offset: int) -> pb.WatchResponse:
    return pb.WatchResponse(token=pb.WatchToken(offset=offset))


@scenario(run_real)
async def test_plain_grpc_client_sends_everything_and_half_closes(world: World) -> None:
    server = Recorder()
    listener = await world.server.listen(world.bind, {Conversation.WATCH: server.accept})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        watch = channel.unary_stream(
            Conversation.WATCH.value,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = watch(pb.WatchRequest(selectors=["topics"]))
        await until(lambda: server.envelopes)
        assert server.envelopes == [[pb.WatchRequest(selectors=["topics"])]]
        # It has ended its side by now, and goes on to read.
        await asyncio.sleep(0.05)
        assert server.reasons == []
        server.links[0].send(response(1))
        assert await call.read() == response(1)
        server.links[0].send(response(2).SerializeToString())
        assert await call.read() == response(2)
        call.cancel()
        await until(lambda: server.reasons)
    await listener.close()


def test_encoded_bytes_arrive_as_the_message() -> None:
    async def scenario(world: World) -> None:
        server, client = Recorder(), Recorder()
        listener = await world.server.listen(world.bind, {Conversation.WATCH: server.accept})
        dialer = world.client.dial(listener.address, Conversation.WATCH, client)
        await until(lambda: client.links and server.links)
        client.links[0].send(pb.WatchRequest())
        await until(lambda: server.envelopes)
        link = server.links[0]
        for offset in range(3):
            link.send(response(offset).SerializeToString())
        assert link.unsent_bytes > 0  # type: ignore[attr-defined]
        await until(lambda: len(client.envelopes) == 3)
        assert client.envelopes == [[response(offset)] for offset in range(3)]
        await until(lambda: link.unsent_bytes == 0)  # type: ignore[attr-defined]
        dialer.close()
        await until(lambda: server.reasons)
        await listener.close()

    run_real(scenario)
    run_simulated(scenario)
