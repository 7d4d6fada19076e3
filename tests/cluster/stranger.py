"""Somebody with a raw gRPC client who says what it likes, and who answers in a leader's place."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from raftlog import batch
from raftlog.bounds import ENVELOPE_MAX_ITEMS
from raftlog.errors import ErrorCode
from raftlog.local.cluster import HOST
from raftlog.transport.api import Conversation
from raftlog.transport.conversations import WIRES
from raftlog.transport.grpc_transport import LINK_METADATA_KEY
from raftlog.transport.statuses import ERROR_METADATA_KEY
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2 as common
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

import grpc  # isort: skip
import grpc.aio  # isort: skip

TIMEOUT_S, REQUEST_MS = 20.0, 15_000
_FORGED_TYPE = 255
"""No record has it."""


class Answer(NamedTuple):
    """What came back. ``code``: the first error in it, NONE: there is none; ``status``: how the call
    ended, OK: with a message.
    """

    code: ErrorCode
    status: grpc.StatusCode
    message: Any = None
    why: str = ""


def _codes(message: Message) -> Iterator[int]:
    """Every error code in a message, from the outside to the inside."""
    for field, value in message.ListFields():
        if field.name == "error_code":
            yield value
        elif field.message_type is not None and not isinstance(value, dict):
            for one in value if field.is_repeated else (value,):
                yield from _codes(one)


def _answer(message: Message) -> Answer:
    return Answer(ErrorCode(next(_codes(message), 0)), grpc.StatusCode.OK, message)


def _failed(error: grpc.aio.AioRpcError) -> Answer:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            code = common.Error.FromString(bytes(value)).error_code
            return Answer(ErrorCode(code), error.code(), None, error.details() or "")
    return Answer(ErrorCode.NONE, error.code(), None, error.details() or "")


class Stranger:
    """``credentials`` None: it speaks plain text. Close it."""

    def __init__(self, credentials: Any = None) -> None:
        self._credentials = credentials
        self._channels: dict[str, Any] = {}
        self.loot: list[str] = []
        """What it has got hold of, in words."""
        self._posing: Any = None

    async def say(self, address: str, conversation: Conversation, *messages: Message) -> Answer:
        """One envelope on a stream of its own, and the first answer."""
        wires = WIRES[conversation]
        (envelope,) = wires.to_server.envelopes([one.SerializeToString() for one in messages])
        stream = self._channel(address).stream_stream(conversation.value)()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await stream.write(envelope)
                read = await stream.read()
            if read is grpc.aio.EOF:
                return Answer(ErrorCode.NONE, await stream.code(), None, await stream.details())
            # A leader that resigns says so, too, in the envelope of its answer or before it.
            answers = wires.to_client.decode(read, ENVELOPE_MAX_ITEMS)
            asked = [getattr(one, "correlation_id", None) for one in messages]
            own = [one for one in answers if getattr(one, "correlation_id", None) in asked]
            return _answer((own or answers)[0])
        except grpc.aio.AioRpcError as error:
            return _failed(error)
        except asyncio.InvalidStateError:
            # The call was over before the message was written.
            return Answer(ErrorCode.NONE, await stream.code(), None, await stream.details())
        finally:
            stream.cancel()

    async def call(
        self, address: str, method: str, request: Message, response: type[Message]
    ) -> Answer:
        """A unary call: ``package.Service/Method``."""
        made = self._channel(address).unary_unary(
            f"/raftlog.wire.{method}", response_deserializer=response.FromString
        )
        try:
            return _answer(await made(request.SerializeToString(), timeout=TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            return _failed(error)

    async def ask(self, address: str, **fields: Any) -> Answer:
        """A request to a controller, on a stream."""
        request = controller.ControllerRequest(correlation_id=1, timeout_ms=REQUEST_MS, **fields)
        return await self.say(address, Conversation.CONTROLLER, request)

    async def forward(self, address: str, **fields: Any) -> Answer:
        """The same to a broker, which hands it on with its own certificate."""
        write = controller.ControllerRequest(correlation_id=1, timeout_ms=REQUEST_MS, **fields)
        request = broker.BrokerRequest(correlation_id=1, write=write)
        return await self.say(address, Conversation.BROKER, request)

    async def pose(self, leader_id: int, epoch: int) -> str:
        """Listen, and answer every fetch as the leader of an epoch, with a record of its own; where
        it listens.
        """
        begins: dict[int, int] = {}

        async def fetched(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await context.send_initial_metadata(((LINK_METADATA_KEY, "1"),))
            async for data in stream:
                request = quorum.FetchRequest.FromString(data)
                forged = batch.encode(
                    [(_FORGED_TYPE, 0, b"forged")],
                    base_offset=request.fetch_offset,
                    epoch=epoch,
                    timestamp_ms=1,
                    control=True,
                )
                said = f"node {request.replica_id} has a record of the stranger's"
                begin = begins.setdefault(request.replica_id, request.fetch_offset)
                if request.fetch_offset > begin and said not in self.loot:
                    self.loot.append(said)
                yield quorum.FetchResponse(
                    leader_id=leader_id,
                    leader_epoch=epoch,
                    high_watermark=0,
                    records=forged,
                    round=request.round,
                    correlation_id=request.correlation_id,
                ).SerializeToString()

        service, _, method = Conversation.REPLICATION.value[1:].partition("/")
        handler = grpc.method_handlers_generic_handler(
            service, {method: grpc.stream_stream_rpc_method_handler(fetched)}
        )
        self._posing = grpc.aio.server()
        self._posing.add_generic_rpc_handlers((handler,))
        port = self._posing.add_insecure_port(f"{HOST}:0")
        await self._posing.start()
        return f"{HOST}:{port}"

    async def close(self) -> None:
        """Go."""
        if self._posing is not None:
            await self._posing.stop(0)
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> Any:
        if address not in self._channels:
            options = [("grpc.use_local_subchannel_pool", 1)]
            self._channels[address] = (
                grpc.aio.insecure_channel(address, options=options)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, options=options)
            )
        return self._channels[address]


def quorum_message(**body: Any) -> quorum.QuorumMessage:
    """A message between voters."""
    return quorum.QuorumMessage(correlation_id=1, **body)
