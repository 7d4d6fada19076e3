"""Argument checks: each call compares its arguments with their types before it sends a request."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, cast

from typing_extensions import Unpack

from raftlog.client.values import ConfigValue, Unconditional

F = TypeVar("F", bound=Callable[..., Any])
Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
"""Headers of a record; with pairs, a name may occur several times."""
Check = Callable[[Any, str], Any]
"""Function that returns a value in the form that the call uses. Raises TypeError and ValueError,
whose messages begin with the argument's name.
"""
_LONG = frozenset({"end_offset", "generation", "lease_id", "offset"})
"""Names of 64-bit integers; all others have 32 bits."""
_INTEGRAL: Any = Integral
_REAL: Any = Real
"""Real numbers, including those of numpy."""
_CHECKED_WHERE_USED = (Unconditional, ConfigValue, Headers)


def checked(call: F) -> F:
    """Return a method, or coroutine method, that checks its arguments against its annotations."""

    @functools.cache
    def checks() -> tuple[dict[str, Check], list[str], str]:
        # At the first call, when all names in the module are defined.
        parameters = [*inspect.signature(call).parameters.values()][1:]
        rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), "")
        names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        return {name: check_of(hint) for name, hint in hints_of(call).items()}, names, rest

    def converted(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        of, names, rest = checks()
        positional = [of[name](value, name) for name, value in zip(names, args, strict=False)]
        for index, value in enumerate(args[len(names) :]):
            # Without such a parameter, the call itself reports too many arguments.
            one = _one_of_rest(of[rest], value, f"{rest}[{index}]") if rest else value
            positional.append(one)
        if unknown := named.keys() - of.keys():
            raise TypeError(
                f"{call.__qualname__}() got an unexpected keyword argument {min(unknown)!r}"
            )
        return positional, {name: of[name](value, name) for name, value in named.items()}

    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def checking_coroutine(self: Any, /, *given: Any, **given_named: Any) -> Any:
            args, named = converted(given, given_named)
            return await call(self, *args, **named)

        return cast("F", checking_coroutine)

    @functools.wraps(call)
    def checking(self: Any, /, *given: Any, **given_named: Any) -> Any:
        args, named = converted(given, given_named)
        return call(self, *args, **named)

    return cast("F", checking)


def hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a call's arguments by name, including those of ``**options``."""
    call = inspect.unwrap(call)
    hints = {
        name: eval(hint, call.__globals__)
        for name, hint in call.__annotations__.items()
        if name != "return"
    }
    for name, hint in [*hints.items()]:
        if typing.get_origin(hint) is Unpack:
            del hints[name]
            hints |= typing.get_type_hints(typing.get_args(hint)[0])
    return hints


def _one_of_rest(check: Check, value: Any, name: str) -> Any:
    if isinstance(value, list):
        raise TypeError(f"{name} must not be a list, but is {shown(value)}: unpack it as *list")
    return check(value, name)


@functools.cache
def check_of(hint: Any) -> Check:
    """Return the check for a type. Returns no check for types that are checked where they
    are used.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _check_of_union(hint, args)
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, check_of(args[0]), check_of(args[1]))
    if origin is not None and origin is not tuple and issubclass(origin, Iterable):
        return functools.partial(_items, check_of(args[0]))
    if is_dataclass(hint):
        return functools.partial(_fields, hint)
    return _CHECKS.get(hint) or functools.partial(_instance, hint)


def _check_of_union(hint: Any, args: tuple[Any, ...]) -> Check:
    if hint in _CHECKED_WHERE_USED or Unconditional in args or _has_literal(args):
        return _unchecked
    several = [one for one in args if one is not type(None)]
    optional = len(several) < len(args)
    checks = {typing.get_origin(one) or one: check_of(one) for one in several}

    def check(value: Any, name: str) -> Any:
        if value is None and optional:
            return None
        for kind, of_kind in checks.items():
            if isinstance(value, kind):
                return of_kind(value, name)
        if len(several) == 1:
            return check_of(several[0])(value, name)
        kinds = " or ".join(sorted({one.__name__ for one in checks}, reverse=True))
        raise TypeError(f"{name} must be {kinds}, not {shown(value)}")

    return check


def _has_literal(args: tuple[Any, ...]) -> bool:
    return any(typing.get_origin(one) is Literal for one in args)


def _unchecked(value: Any, _name: str) -> Any:
    return value


def _text(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {shown(value)}")
    _utf_8(value, name)
    return value


def _utf_8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={text!r:.80}: not valid UTF-8 ({error.reason})") from None


def _integer(value: Any, name: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, _INTEGRAL):
        raise TypeError(f"{name} must be int, not {shown(value)}")
    bits = 64 if name.rpartition(".")[2] in _LONG else 32
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{name}={value}: must fit into {bits} bits")
    return value if isinstance(value, int) else int(value)


def _number(value: Any, name: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number, not {shown(value)}")
    return value


def _truth(value: Any, name: str) -> Any:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be bool, not {shown(value)}")
    return value


def _instance(kind: Any, value: Any, name: str) -> Any:
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, not {shown(value)}")
    return value


_CHECKS: dict[Any, Check] = {str: _text, int: _integer, float: _number, bool: _truth}


def _items(of: Check, value: Any, name: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        hint = f": [{value!r:.80}]" if isinstance(value, str) else f", not {shown(value)}"
        raise TypeError(f"{name} must be a list{hint}")
    return [of(one, f"{name}[{index}]") for index, one in enumerate(value)]


def _mapping(of_key: Check, of_value: Check, value: Any, name: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of keys to values, not {shown(value)}")
    return {
        of_key(key, f"{name} key"): of_value(one, f"{name}[{key!r:.80}]")
        for key, one in value.items()
    }


def _fields(kind: Any, value: Any, name: str) -> Any:
    _instance(kind, value, name)
    changed = {}
    for field, check in _field_checks(kind):
        given = getattr(value, field)
        if (taken := check(given, f"{name}.{field}")) is not given:
            changed[field] = taken
    return replace(value, **changed) if changed else value


@functools.cache
def _field_checks(kind: Any) -> list[tuple[str, Check]]:
    hints = typing.get_type_hints(kind)
    return [(one.name, check_of(hints[one.name])) for one in fields(kind)]


def bytes_of(text: bytes | str, what: str) -> bytes:
    """Return a value as bytes; a str as UTF-8. Raises TypeError, ValueError."""
    if isinstance(text, str):
        return _utf_8(text, what)
    if isinstance(text, bytes):
        return text
    raise TypeError(f"{what} must be str or bytes, not {shown(text)}")


def headers_of(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return a record's headers, from a mapping or from pairs. Raises TypeError, ValueError."""
    if not isinstance(headers, (Mapping, Iterable)):
        raise TypeError(
            f"headers must be a mapping, or pairs of a name and a value, not {shown(headers)}"
        )
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                f"headers must be a mapping, or pairs of a name and a value, not {shown(pair)}"
            )
        name, value = pair
        _utf_8(name, "headers: name")
        found.append((name, None if value is None else bytes_of(value, f"headers[{name!r}]")))
    return found


def config_text(key: str, value: ConfigValue) -> str:
    """Return a config value in its wire form. Raises TypeError if it has none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        _utf_8(value, f"the value of {key}")
        return value
    if isinstance(value, Real):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    hint = "; delete the key to restore the default" if value is None else ""
    raise TypeError(
        f"the value of {key} must be a str, a number, a bool or a list of str, not "
        f"{shown(value)}{hint}"
    )


def shown(value: object) -> str:
    """Return a value with its type, for error messages."""
    return f"{type(value).__name__}: {value!r:.80}"
