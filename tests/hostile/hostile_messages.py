"""Hostile messages: any type with values at the limits, or arbitrary bytes. They contain no ids of
real nodes: only authentication can stop a client that claims to be a node.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

STRANGER_IDS = (0, -1, 77, 1000, 2**31 - 1, -(2**31), 2**30)
INT32 = (*STRANGER_IDS, 1_000_000)
INT64 = (*STRANGER_IDS, 2**63 - 1, -(2**63), 2**62, 5_000_000_000)
UINT64 = (0, 77, 2**32, 2**64 - 1)
SIZES = (0, 1, 16, 249, 250, 255, 256, 65_535, 65_536)
SPECIAL = (
    "",
    ".",
    "..",
    " ",
    "\n",
    "\x00",
    "\x1b[2J",
    "a/b",
    "ünïcödé",
    "[red]",
    "0",
    "-1",
    "2147483648",
    "{}",
    "\u202e",
)
PORTS = (0, -1, 9092, 65_535, 65_536, 2**31 - 1)
MANY = (0, 1, 1, 1, 2, 50, 1000)
MAX_DEPTH = 6
MAX_BYTES = 300_000
"""Size limit of one message: the tests of sizes cover the sum of many border values."""


@dataclass(frozen=True, slots=True)
class Target:
    """One method of a role. ``name``: "/package.Service/Method"."""

    role: str
    name: str
    request: Any
    streams: bool


def targets() -> list[Target]:
    """Every method of every service."""
    services = (
        ("controller", quorum_pb2.DESCRIPTOR.services_by_name["Quorum"]),
        ("controller", controller_pb2.DESCRIPTOR.services_by_name["Controller"]),
        ("broker", broker_pb2.DESCRIPTOR.services_by_name["Broker"]),
        ("broker", data_pb2.DESCRIPTOR.services_by_name["Data"]),
    )
    return [target for role, service in services for target in _methods(role, service)]


def _methods(role: str, service: ServiceDescriptor) -> list[Target]:
    return [
        Target(
            role, f"/{service.full_name}/{method.name}", method.input_type, method.client_streaming
        )
        for method in service.methods
    ]


class Stranger:
    """Makes messages from a seed. ``known``: values by field name that pass the first checks; a
    single one is always used.
    """

    def __init__(self, rng: random.Random, known: dict[str, Sequence[Any]]) -> None:
        self._rng = rng
        self._known = known

    def message(self, target: Target, marker: str) -> bytes:
        """Make one message for a method: mostly whole, otherwise damaged. ``marker`` is part of its
        names.
        """
        data = self._build(target.request, marker, 0).SerializeToString()
        if len(data) > MAX_BYTES:
            data = data[:MAX_BYTES]
        damage = self._rng.random()
        return data if damage < 0.8 else self._damaged(data)

    def _build(self, descriptor: Any, marker: str, depth: int) -> Message:
        rng = self._rng
        message: Message = GetMessageClass(descriptor)()
        for oneof in descriptor.oneofs:
            if rng.random() < 0.97:
                self._set(message, rng.choice(oneof.fields), marker, depth)
        for field in descriptor.fields:
            if field.containing_oneof is None and rng.random() < 0.85:
                self._set(message, field, marker, depth)
        return message

    def _set(self, message: Any, field: Field, marker: str, depth: int) -> None:
        rng = self._rng
        if field.message_type is not None and depth >= MAX_DEPTH:
            return
        if not field.is_repeated:
            if field.message_type is not None:
                getattr(message, field.name).CopyFrom(
                    self._build(field.message_type, marker, depth + 1)
                )
            else:
                setattr(message, field.name, self._value(field, marker))
            return
        count = rng.choice(MANY) if depth < 2 else rng.choice((0, 1, 2))
        if count > 2 and rng.random() < 0.8:
            count = 1
        target = getattr(message, field.name)
        if field.message_type is None:
            target.extend(self._value(field, marker) for _ in range(count))
        elif not field.message_type.GetOptions().map_entry:
            # Many are many of one: it is the count that is tried.
            one = self._build(field.message_type, marker, depth + 1 if count <= 2 else MAX_DEPTH)
            for _ in range(count):
                target.add().CopyFrom(one)

    def _value(self, field: Field, marker: str) -> Any:
        rng = self._rng
        known = self._known.get(field.name)
        if known and (len(known) == 1 or rng.random() < 0.7):
            return rng.choice(known)
        if field.name == "port":
            return rng.choice(PORTS)
        return _BY_TYPE[field.type](rng, marker, field)

    def _damaged(self, data: bytes) -> bytes:
        rng = self._rng
        kind = rng.randrange(6)
        if kind == 0 or not data:
            return rng.randbytes(rng.choice((1, 10, 100, 10_000)))
        if kind == 1:
            return data[: rng.randrange(len(data))]
        if kind == 2:
            spoilt = bytearray(data)
            for _ in range(rng.choice((1, 1, 8))):
                spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            return bytes(spoilt)
        if kind == 3:
            # Groups in groups: what parsers recurse into.
            return b"\x0b" * rng.choice((10, 99, 101, 10_000))
        if kind == 4:
            return data + b"\xfa\xff\xff\xff\x0f" + rng.randbytes(20)
        return b"\x0a\xff\xff\xff\xff\x0f" + data


def _text(rng: random.Random, marker: str, _: Field) -> str:
    chance = rng.random()
    if chance < 0.5:
        return f"{marker}{rng.randrange(1000)}"
    if chance < 0.8:
        return rng.choice(SPECIAL)
    return rng.choice(("x", "\x07", "é")) * rng.choice(SIZES)


def _bytes(rng: random.Random, marker: str, _: Field) -> bytes:
    return rng.choice(
        (b"", b"\x00" * 16, marker.encode(), rng.randbytes(16), b"\xff" * rng.choice(SIZES))
    )


def _enum(rng: random.Random, _: str, field: Field) -> int:
    return rng.choice((*(value.number for value in field.enum_type.values), 99, 2**31 - 1, -1))


_BY_TYPE: dict[int, Callable[[random.Random, str, Field], Any]] = {
    Field.TYPE_STRING: _text,
    Field.TYPE_BYTES: _bytes,
    Field.TYPE_ENUM: _enum,
    Field.TYPE_BOOL: lambda rng, _, __: rng.random() < 0.5,
    Field.TYPE_INT32: lambda rng, _, __: rng.choice(INT32),
    Field.TYPE_SINT32: lambda rng, _, __: rng.choice(INT32),
    Field.TYPE_INT64: lambda rng, _, __: rng.choice(INT64),
    Field.TYPE_SINT64: lambda rng, _, __: rng.choice(INT64),
    Field.TYPE_UINT32: lambda rng, _, __: rng.choice((0, 1, 77, 2**32 - 1)),
    Field.TYPE_UINT64: lambda rng, _, __: rng.choice(UINT64),
    Field.TYPE_FIXED32: lambda rng, _, __: rng.choice((0, 2**32 - 1)),
    Field.TYPE_FIXED64: lambda rng, _, __: rng.choice(UINT64),
    Field.TYPE_DOUBLE: lambda rng, _, __: rng.choice((0.0, -1.0, float("inf"), float("nan"))),
    Field.TYPE_FLOAT: lambda rng, _, __: rng.choice((0.0, -1.0, float("inf"), float("nan"))),
}
