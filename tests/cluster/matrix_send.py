"""Sends the cases of the permission matrix, and reads from each response whether the request was
authorized, refused or unimplemented.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from matrix_callers import BY_NAME, MINE, THEIRS, Caller, Listener, Method, Rpc, types_of
from matrix_cases import (
    ABSENT,
    ALLOWED,
    NO_CONNECTION,
    NONE,
    UNAUTHENTICATED,
    Case,
    Kind,
    Verdict,
    named_node,
    of_items,
    of_names,
    of_whole,
)
from matrix_cluster import World
from matrix_requests import request_of

from raftlog.errors import ErrorCode
from raftlog.node.security.permissions import BROKER, CONTROLLER, Each, EachPartition, Listed
from raftlog.transport.api import Conversation
from raftlog.transport.conversations import WIRES
from raftlog.transport.grpc_transport import LINK_METADATA_KEY
from raftlog.transport.statuses import ERROR_METADATA_KEY
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}  # fmt: skip
UNDECIDED = {
    ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.UNSUPPORTED_VERSION,
}  # fmt: skip
"""Errors that a node may return before it checks permissions."""
_STATUSES = {
    grpc.StatusCode.UNIMPLEMENTED: ABSENT,
    grpc.StatusCode.UNAUTHENTICATED: UNAUTHENTICATED,
}


def of_status(code: Any, trailing: Any, case: Case, why: str | None) -> Verdict:
    data = dict(trailing or ()).get(ERROR_METADATA_KEY)
    if code is grpc.StatusCode.UNAVAILABLE and data is None:
        return NO_CONNECTION
    error = common_pb2.Error.FromString(data or b"")
    if code in _STATUSES and error.error_code in (
        ErrorCode.NONE, ErrorCode.SASL_AUTHENTICATION_FAILED,
    ):  # fmt: skip
        return _STATUSES[code]
    if data is None:
        raise AssertionError(f"{case}: {code} {why}")
    return _of_code(ErrorCode(error.error_code), case)


def _of_code(code: ErrorCode, case: Case) -> Verdict:
    """Return the outcome of a request that failed as a whole, for lack of permission or otherwise."""
    if code in REFUSALS:
        return of_whole(code)
    if code in UNDECIDED:
        return Verdict(Kind.UNDECIDED, (code,))
    # Whatever its items are: it was let in.
    return case.verdict if case.verdict.kind is Kind.ALLOWED else ALLOWED


def of_response(response: Any, case: Case) -> Verdict:
    code, body = _unwrapped(response)
    row = None if case.rpc.of_grpc else {**CONTROLLER, **BROKER}.get(case.rpc.kind)
    if code is not NONE:
        if code in REFUSALS:
            _names_no_offset(response, case)
        return _of_code(code, case)
    if isinstance(row, Each | EachPartition) or case.rpc.variant == BY_NAME:
        results = _items(body, lambda one: _code(one) is not None)
        codes = [ErrorCode(_code(one) or 0) for one in results]
        for one, code in zip(results, codes, strict=True):
            if code in REFUSALS:
                _names_no_offset(one, case)
        return of_items([code if code in REFUSALS else NONE for code in codes])
    if isinstance(row, Listed):
        found = _items(body, _is_named)
        names = {next(getattr(one, name) for name in _NAMES if hasattr(one, name)) for one in found}
        shown = {one for one in names if one.startswith((MINE, THEIRS))}
        return of_names(shown, 2)
    return ALLOWED


def _unwrapped(message: Any) -> tuple[ErrorCode, Any]:
    """Return the innermost error, and the content of the innermost envelope."""
    while True:
        code = _code(message)
        if code:
            return ErrorCode(code), message
        if "body" not in message.DESCRIPTOR.oneofs_by_name or not message.WhichOneof("body"):
            return NONE, message
        message = getattr(message, message.WhichOneof("body"))


def _code(message: Any) -> int | None:
    fields = message.DESCRIPTOR.fields_by_name
    if "error" in fields:
        return int(message.error.error_code)
    return int(message.error_code) if "error_code" in fields else None


_NAMES = ("hostname", "name", "key")


def _is_named(item: Any) -> bool:
    return any(name in item.DESCRIPTOR.fields_by_name for name in _NAMES)


def _items(body: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    return [
        one
        for field in body.DESCRIPTOR.fields
        if field.is_repeated and field.message_type is not None
        for one in getattr(body, field.name)
        if wanted(one)
    ]


def _names_no_offset(message: Any, case: Case) -> None:
    """Assert that a refusal shows nothing of the log."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                _names_no_offset(one, case)
        elif "offset" in field.name or "watermark" in field.name:
            assert value == -1, (str(case), field.name, value)


TIMEOUT_S = 30.0


async def send(world: World, cases: Sequence[Case]) -> list[tuple[Case, Verdict]]:
    """Send one caller's requests on one listener concurrently."""
    caller, listener = cases[0].caller, cases[0].listener
    found: list[tuple[Case, Verdict]] = []
    for role in {one.rpc.role for one in cases}:
        async with world.channel(caller, listener, role) as channel:
            metadata = world.metadata(caller)
            tasks = [
                _send_some(channel, metadata, world, some)
                for some in _together([one for one in cases if one.rpc.role == role])
            ]
            for group in await asyncio.gather(*tasks):
                found += group
    return found


async def methods_of(world: World, caller: Caller, listener: Listener, role: str) -> list[Method]:
    async with world.channel(caller, listener, role) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(metadata=world.metadata(caller))
        ask = reflection_pb2.ServerReflectionRequest
        await call.write(ask(list_services=""))
        names = [one.name for one in (await call.read()).list_services_response.service]
        methods: list[Method] = []
        for name in names:
            await call.write(ask(file_containing_symbol=name))
            files = (await call.read()).file_descriptor_response.file_descriptor_proto
            methods += _methods_in(files, name)
        call.cancel()
    return methods


def _methods_in(files: Iterable[bytes], service: str) -> list[Method]:
    parsed = [descriptor_pb2.FileDescriptorProto.FromString(one) for one in files]
    return [
        Method(service, method.name, method.client_streaming)
        for file in parsed
        for one in file.service
        if f"{file.package}.{one.name}" == service
        for method in one.method
    ]


def _together(cases: Sequence[Case]) -> list[list[Case]]:
    """Send the messages of a conversation with many kinds of bodies on one stream."""
    streams: dict[str, list[Case]] = {}
    for one in cases:
        conversation = one.rpc.conversation
        shared = conversation is not None and not WIRES[conversation].to_server.single
        streams.setdefault(one.rpc.path if shared else str(one.rpc), []).append(one)
    return list(streams.values())


async def _send_some(
    channel: Any, metadata: Any, world: World, cases: list[Case]
) -> list[tuple[Case, Verdict]]:
    conversation = cases[0].rpc.conversation
    try:
        async with asyncio.timeout(TIMEOUT_S):
            if conversation is not None:
                return await _converse(channel, metadata, world, conversation, cases)
            (case,) = cases
            return [(case, await _call(channel, metadata, world, case))]
    except TimeoutError as error:
        raise AssertionError(f"no answer in {TIMEOUT_S:g} s: {cases[0]}, ...") from error


async def _call(channel: Any, metadata: Any, world: World, case: Case) -> Verdict:
    rpc = case.rpc
    try:
        if rpc.of_grpc:
            return await _of_grpc(channel, metadata, rpc)
        _, response_type = types_of(rpc.method)
        request = _unary_request(case, world)
        data = await channel.unary_unary(rpc.path)(
            request.SerializeToString(), timeout=TIMEOUT_S, metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        return of_status(error.code(), error.trailing_metadata(), case, error.details())
    return of_response(response_type.FromString(data), case)


async def _of_grpc(channel: Any, metadata: Any, rpc: Rpc) -> Verdict:
    empty = health_pb2.HealthCheckRequest().SerializeToString()
    if rpc.method.streams or rpc.method.name == "Watch":
        ask = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        # One message, sent with the call itself: gRPC says INTERNAL of one that is written when the
        # call has ended meanwhile.
        call = channel.unary_stream(rpc.path)(
            ask if rpc.method.streams else empty, metadata=metadata
        )
        if await call.read() is grpc.aio.EOF:
            raise AssertionError(await call.code())
        call.cancel()
    else:
        await channel.unary_unary(rpc.path)(empty, timeout=TIMEOUT_S, metadata=metadata)
    return ALLOWED


async def _converse(
    channel: Any,
    metadata: Any,
    world: World,
    conversation: Conversation,
    cases: list[Case],
) -> list[tuple[Case, Verdict]]:
    wires = WIRES[conversation]
    items = [_item(conversation, number, one, world) for number, one in enumerate(cases, 1)]
    waiting = dict(enumerate(cases, 1))
    found: list[tuple[Case, Verdict]] = []
    call = channel.stream_stream(conversation.value)(metadata=metadata)
    # Not written before it is let in: gRPC would say INTERNAL, if the call ends meanwhile.
    initial = dict(await call.initial_metadata() or ())
    opened = LINK_METADATA_KEY in initial
    if opened:
        for envelope in wires.to_server.envelopes([one.SerializeToString() for one in items]):
            await call.write(envelope)
    while opened and waiting:
        data = await call.read()
        if data is grpc.aio.EOF:
            break
        for answer in wires.to_client.decode(data, 1 << 20):
            numbers, response = [1], answer
            if conversation is Conversation.WATCH_MANY:
                numbers, response = answer.watch_ids, answer.response
            elif not wires.to_client.single:
                numbers = [answer.correlation_id]
            # A broker also says unasked what it offers, and more to a watch.
            told = [waiting.pop(number) for number in numbers if number in waiting]
            found += [(case, of_response(response, case)) for case in told]
    if waiting:
        code, why = await call.code(), await call.details()
        assert not opened, (str(next(iter(waiting.values()))), code, why)
        trailing = await call.trailing_metadata()
        found += [(one, of_status(code, trailing, one, why)) for one in waiting.values()]
    call.cancel()
    return found


def _message(case: Case, world: World) -> Any:
    """Return the form that would do damage where it must be refused."""
    kind, codes = case.verdict.kind, case.verdict.codes
    if kind in (Kind.REFUSED, Kind.PARTLY):
        harms = [index for index, code in enumerate(codes) if code is not NONE]
    else:
        harms = [] if kind is Kind.ALLOWED else list(range(8))
    return request_of(case.rpc, named_node(case.caller), world.facts, harms)


def _unary_request(case: Case, world: World) -> Any:
    message, carried = _message(case, world), case.rpc.carried
    return _envelope(controller.ControllerRequest, carried, message, case) if carried else message


def _item(conversation: Conversation, number: int, case: Case, world: World) -> Any:
    rpc, message = case.rpc, _message(case, world)
    if conversation is Conversation.QUORUM:
        return quorum.QuorumMessage(correlation_id=number, **{rpc.body: message})
    if conversation is Conversation.CONTROLLER:
        return _envelope(controller.ControllerRequest, rpc.body, message, case, number)
    if conversation is Conversation.BROKER:
        if rpc.carried:
            message = _envelope(controller.ControllerRequest, rpc.carried, message, case)
        return broker.BrokerRequest(correlation_id=number, **{rpc.body: message})
    if conversation is Conversation.WATCH_MANY:
        return broker.WatchManyRequest(watch_id=number, begin=message)
    return message


def _envelope(kind: Any, body: str, message: Any, case: Case, number: int = 0) -> Any:
    request = kind(correlation_id=number, **{body: message})
    if case.caller.states:
        request.client.principal, request.client.host = case.caller.states, "127.0.0.1"
    return request
