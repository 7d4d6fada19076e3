"""Conversion between the library's values and the protobuf messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast, get_origin, get_type_hints

from raftlog.client.requests import item_error
from raftlog.client.values import ItemResult, ReadMode
from raftlog.outcome import Acks, Token, WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=ItemResult)
_ACKS = {
    Acks.COMMITTED: common_pb2.ACKS_COMMITTED,
    Acks.ACKNOWLEDGED: common_pb2.ACKS_ACKNOWLEDGED,
    Acks.VISIBLE: common_pb2.ACKS_VISIBLE,
}
_LEVELS = {number: level for level, number in _ACKS.items()}
_MODES = {
    ReadMode.REPEATABLE: broker_pb2.REPEATABLE,
    ReadMode.LATEST: broker_pb2.LATEST,
    ReadMode.STRICT: broker_pb2.STRICT,
}


def acks_to_wire(acks: str) -> common_pb2.Acks:
    """Return the level with this name. Raises ValueError, which lists the levels."""
    return _ACKS[_member(Acks, acks, "acks")]


def mode_to_wire(mode: str) -> broker_pb2.ReadMode:
    """Return the mode with this name. Raises ValueError, which lists the modes."""
    return _MODES[_member(ReadMode, mode, "read")]


def _member(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{what}={value!r}: must be one of {', '.join(kind)}") from None


def token_from_wire(token: common_pb2.MetadataToken) -> Token:
    """Return the position in a message."""
    return Token(token.generation, token.epoch, token.offset)


def token_to_wire(token: Token) -> common_pb2.MetadataToken:
    """Return the message for a position."""
    return common_pb2.MetadataToken(
        generation=token.generation, epoch=token.epoch, offset=token.offset
    )


def write_result(
    response: controller_pb2.ControllerResponse, items: Iterable[ItemT]
) -> WriteResult[ItemT]:
    """Return the result of a write, with its token and the results of its items."""
    if not response.HasField("write"):
        return WriteResult(None, None, items=tuple(items))
    write = response.write
    return WriteResult(
        token_from_wire(write.token),
        _LEVELS.get(write.reached, Acks.COMMITTED),
        tuple(write.waiting_for_brokers),
        write.duplicate,
        tuple(items),
    )


def named_items(results: Iterable[Any]) -> Iterator[ItemResult]:
    """Yield the results of items that have names."""
    for one in results:
        yield ItemResult(one.name, item_error(one))


def reader(kind: type[T], /, **sources: str | Callable[[Any], Any]) -> Callable[[Any], T]:
    """Return a function that creates a value from a message: each field comes from the message's
    field with the same name, or from its source, which is another name or a function of the
    message.

    For a field that may be None, the message has -1 or an empty text; a repeated field becomes a
    tuple.
    """

    @cache
    def getters() -> list[Callable[[Any], Any]]:
        hints = _hints(cast("Any", kind))
        return [_getter(hint, sources.get(name, name)) for name, hint in hints.items()]

    return lambda message: kind(*[get(message) for get in getters()])


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields; cached, since finding them takes longer than reading a
    message.
    """
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _getter(hint: Any, source: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not isinstance(source, str):
        return source
    get = attrgetter(source)
    if hint == int | None:
        return lambda message: known(get(message))
    if hint == str | None:
        return lambda message: get(message) or None
    if get_origin(hint) is tuple or (isinstance(hint, type) and issubclass(hint, Enum)):
        return lambda message: hint(get(message))
    return get


def known(number: int) -> int | None:
    """Return a number, or None for -1, which means unknown."""
    return None if number < 0 else number
