"""What a call is given, as far as its type can be wrong: said by the name of the argument, before
anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from raftlog.library.values import ConfigValue

T = TypeVar("T")
Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
"""Of a record; the pairs may name a header several times."""


def names_of(names: Sequence[Any]) -> Sequence[str]:
    """Raises TypeError, which says how several are given."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"each name is a str, not {_shown(name)} (a list goes as *list)")
    return names


def keys_of(keys: Iterable[str], what: str) -> Iterable[str]:
    """Raises TypeError for a single key [whose letters would be keys]."""
    if isinstance(keys, str):
        raise TypeError(f"{what} is a list of keys: [{keys!r}]")
    return keys


def mapping(given: Mapping[str, T] | None, what: str) -> Mapping[str, T]:
    """Keys and values; None is as an empty one. Raises TypeError, which names the argument."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a mapping of keys to values, not {_shown(given)}")
    return given


def bytes_of(text: bytes | str, what: str) -> bytes:
    """Text goes as UTF-8. Raises TypeError."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"{what} is str or bytes, not {_shown(text)}")


def headers_of(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers of a record, from a mapping or from pairs. Raises TypeError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"headers are a mapping or pairs of a name and a value: {_shown(pair)}")
        name, value = pair
        found.append((name, None if value is None else bytes_of(value, f"header {name}")))
    return found


def config_text(key: str, value: ConfigValue) -> str:
    """The value of a key as it goes over the wire. Raises TypeError for what would be no text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, Real)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    hint = "; to have the default, delete the key" if value is None else ""
    raise TypeError(
        f"the value of {key} is a str, a number, a truth value or a list of str, not"
        f" {_shown(value)}{hint}"
    )


def _shown(value: object) -> str:
    return f"{type(value).__name__}: {value!r:.80}"
