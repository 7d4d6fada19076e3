"""The check of a message, with all its fields, against the table.

The checks of each message type are built once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from raftlog.descriptors import is_repeated
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits.fields import FIELDS
from raftlog.limits.rules import ByHandler, Items, Rule

Check = Callable[[Any], None]
_NOTHING: Mapping[str, Rule] = {}
_CHECKS: dict[Any, Check | None] = {}
"""Message type -> its check, as far as types were checked."""
_UNKNOWN: Any = object()
_LIMITED = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})


class _WrongError(Exception):
    """The error of a field. ``path``: the field's name and, on the way out, those of the enclosing
    ones, the innermost first.
    """

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.path = list(path)


def check(message: Message, prefix: str = "") -> None:
    """Raise INVALID_REQUEST that names the first field beyond its limit; ``prefix``: the field that
    the message itself is in.
    """
    checked = _CHECKS.get(type(message), _UNKNOWN)
    if checked is _UNKNOWN:
        checked = checks_of(type(message))
    if checked is None:
        return
    try:
        checked(message)
    except _WrongError as wrong:
        path = [*([prefix] if prefix else []), *reversed(wrong.path)]
        raise ApiError(ErrorCode.INVALID_REQUEST, str(wrong), field=".".join(path)) from None


def checks_of(type_: type[Message]) -> Check | None:
    """Return the check of a message type; None if there is nothing to check.

    Raises KeyError for a field without a limit.
    """
    if type_ not in _CHECKS:
        _CHECKS[type_] = _put_together(type_)
    return _CHECKS[type_]


def _put_together(type_: type[Message]) -> Check | None:
    rules = FIELDS.get(type_, _NOTHING)
    # Values are checked in this function itself: a call for each would cost more than looking at
    # it.
    values: list[tuple[str, Callable[[Any], str]]] = []
    others: list[Check] = []
    for field in type_.DESCRIPTOR.fields:
        rule = rules.get(field.name)
        if rule is None and (is_repeated(field) or field.type in _LIMITED):
            raise KeyError(f"{field.full_name} has no limit: raftlog.limits.fields")
        if is_repeated(field) or field.message_type is not None:
            each = _inner_check(field, rule)
            if each is not None:
                others.append(each)
        elif rule is not None and not isinstance(rule, ByHandler):
            values.append((field.name, rule.error))
    if not values and not others:
        return None

    def checked(message: Any) -> None:
        for name, error in values:
            wrong = error(getattr(message, name))
            if wrong:
                raise _WrongError(wrong, name)
        for each in others:
            each(message)

    return checked


def _inner_check(field: Any, rule: Rule | None) -> Check | None:
    inner = (
        checks_of(GetMessageClass(field.message_type)) if field.message_type is not None else None
    )
    if is_repeated(field):
        return _list_check(field.name, rule, inner)
    return None if inner is None else _message_check(field.name, inner)


def _message_check(name: str, inner: Check) -> Check:
    def check_message(message: Any) -> None:
        if message.HasField(name):
            try:
                inner(getattr(message, name))
            except _WrongError as wrong:
                wrong.path.append(name)
                raise

    return check_message


def _list_check(name: str, rule: Rule | None, inner: Check | None) -> Check | None:
    limit = rule if isinstance(rule, Items) else None
    each = limit.each.error if limit is not None and limit.each is not None else None
    if limit is None and inner is None:
        return None

    def check_list(message: Any) -> None:
        values = getattr(message, name)
        if limit is not None and (wrong := limit.error(values)):
            raise _WrongError(wrong, name)
        if inner is not None:
            for index, value in enumerate(values):
                try:
                    inner(value)
                except _WrongError as wrong_item:
                    wrong_item.path.append(f"{name}[{index}]")
                    raise
        elif each is not None:
            for index, value in enumerate(values):
                if wrong := each(value):
                    raise _WrongError(wrong, f"{name}[{index}]")

    return check_list
