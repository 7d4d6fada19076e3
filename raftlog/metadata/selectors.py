"""Selections of entities: selectors for watches, as paths, and queries for history.

Every entity has one path: its kind in the plural, and its key in segments
(``configs/topic/orders/retention.ms``, ``topics/orders``, ``partitions/orders/0``, ``brokers/5``).
A selector is

* a path: that entity, and everything below it (``configs/topic/orders``: every key of the topic);
* a prefix of paths, ending with a star or a slash (``topics/ord*``);
* a kind (``brokers``);
* empty or a star: everything except the log's own book-keeping, which must be selected explicitly.

A slash or a percent sign within a name is percent-encoded; a key of the key-value store keeps its
slashes (``kv/locks/orders``, ``kv/locks/``).

A query is a kind and optionally a key: ``topic orders``, ``broker 4``, ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.kinds import KINDS as ALL_KINDS
from raftlog.metadata.words import RESOURCE_TYPES, TYPE_NUMBERS

KINDS = {kind.plural: kind.name for kind in ALL_KINDS if kind.plural}
"""First segment of a path -> the kind of entity."""
PLURAL = {kind: plural for plural, kind in KINDS.items()}
BOOK_KEEPING = frozenset(kind.plural for kind in ALL_KINDS if kind.book_keeping)
"""Kinds that change without a user's request; shown only to a selector that names them."""
_FLAT = KINDS.keys() - {"configs", "partitions", "kv", "client_results"}
"""Kinds of entities with nothing below them."""
_SOLE = frozenset({"leader", "voters"})
"""Kinds with only one entity."""
EVERYTHING = "*"
_NAMED_LIKE = {
    "config": "configs",
    "kvs": "kv",
    **PLURAL,
}


class Selection(NamedTuple):
    """The entities selected by one watch: those whose path is in ``exact`` or begins with one of
    ``prefixes``.
    """

    exact: frozenset[str]
    prefixes: tuple[str, ...]
    """Sorted prefixes, without duplicates."""

    def matches(self, path: str) -> bool:
        """Return whether a change to the entity at this path is selected."""
        return path in self.exact or path.startswith(self.prefixes)


def path_of(kind: str, key: str, value: Any) -> str:
    """Return the path of an entity. ``key``: as in ``raftlog.metadata.changes``. ``value``: its
    present or last value.
    """
    if kind == "config":
        type_, _, rest = key.partition(":")
        # Config keys contain no colon; names of groups may.
        name, _, config = rest.rpartition(":")
        return f"configs/{type_}/{quoted(name)}/{config}"
    if kind == "partition":
        topic, _, index = key.rpartition("-")
        return f"partitions/{topic}/{index}"
    if kind == "client_result":
        return f"client_results/{key.replace('-', '/')}"
    if kind == "kv":
        return f"kv/{key}"
    plural = PLURAL[kind]
    return f"{plural}/{quoted(key)}" if key else plural


def entity_of(selector: str) -> tuple[str, str]:
    """Return (kind, key) of the single entity that a parsed selector names, for checking rights on
    it.

    The key is empty if the selector names many entities, or an entity without a key. A topic's
    configs and partitions count as the topic.
    """
    plural, _, rest = selector.partition("/")
    kind = KINDS.get(plural, "")
    if not rest or rest.endswith(("/", EVERYTHING)):
        return kind, ""
    if kind == "kv":
        return kind, rest
    segments = [unquoted(segment) for segment in rest.split("/")]
    if kind == "config":
        return kind, ":".join(segments) if len(segments) > 1 else ""
    if kind == "partition":
        return kind, f"{segments[0]}-"
    return kind, segments[0]


def quoted(name: str) -> str:
    """Return a name encoded as one segment of a path."""
    if "/" in name or "%" in name:
        return name.replace("%", "%25").replace("/", "%2F")
    return name


def unquoted(segment: str) -> str:
    """Return the name encoded in a segment."""
    return segment.replace("%2F", "/").replace("%25", "%") if "%" in segment else segment


def parse_selectors(texts: Iterable[str], field: str = "selectors") -> Selection:
    """Parse selectors into one selection; without selectors, it contains everything. Raises
    ApiError INVALID_REQUEST.
    """
    exact: set[str] = set()
    prefixes: set[str] = set()
    for index, text in enumerate(texts):
        _add(text, exact, prefixes, f"{field}[{index}]")
    if not exact and not prefixes:
        _add(EVERYTHING, exact, prefixes, field)
    # A prefix that begins with another prefix adds nothing.
    least: list[str] = []
    for prefix in sorted(prefixes):
        if not least or not prefix.startswith(least[-1]):
            least.append(prefix)
    kept = tuple(least)
    return Selection(frozenset(path for path in exact if not path.startswith(kept)), kept)


def _add(text: str, exact: set[str], prefixes: set[str], field: str) -> None:
    if text in ("", EVERYTHING):
        for plural in KINDS:
            if plural not in BOOK_KEEPING:
                exact.add(plural)
                prefixes.add(f"{plural}/")
        return
    plural, slash, rest = text.partition("/")
    if plural not in KINDS:
        raise ApiError(ErrorCode.INVALID_REQUEST, _unknown(plural, text), field=field)
    # Otherwise the watch would wait forever.
    if (plural in _FLAT and "/" in rest) or (plural in _SOLE and rest not in ("", EVERYTHING)):
        there = plural if plural in _SOLE else f"{plural}/{rest.partition('/')[0]}"
        message = f"nothing exists below {there[:80]!r} (encode a slash within a name as %2F)"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field=field)
    if plural == "kv":
        from raftlog.limits import KEY_PREFIX  # Commands import this module, and need no limits.

        if wrong := KEY_PREFIX.error(rest.removesuffix(EVERYTHING)):
            raise ApiError(ErrorCode.INVALID_REQUEST, wrong, field=field)
    if not slash or rest in ("", EVERYTHING):
        exact.add(plural)
        prefixes.add(f"{plural}/")
    elif text.endswith(EVERYTHING):
        prefixes.add(text[:-1])
    elif text.endswith("/"):
        prefixes.add(text)
    else:
        if plural == "configs":
            _check_type(rest, field)
        exact.add(text)
        prefixes.add(f"{text}/")


def _check_type(rest: str, field: str) -> None:
    type_ = rest.partition("/")[0]
    if type_ not in RESOURCE_TYPES.values():
        message = f"{type_[:80]!r} has no configs: use one of {', '.join(RESOURCE_TYPES.values())}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field=field)


def _unknown(plural: str, text: str) -> str:
    meant = _NAMED_LIKE.get(plural)
    hint = (
        f"did you mean {meant + text[len(plural) :]!r}?"
        if meant
        else f"use one of {', '.join(KINDS)}"
    )
    return f"a selector must begin with a kind of entity, not {plural[:80]!r}: {hint}"


_ALIASES = {**KINDS, "cursor": "export_cursor", "cursors": "export_cursor", "quorum": "cluster"}
_CLUSTER = frozenset({"leader", "voters", "feature"})
_NO_HISTORY = frozenset({"leader", "voters", "client_result"})
HISTORY_KINDS = (*(kind for kind in PLURAL if kind not in _NO_HISTORY), "cluster")
"""Kinds that have a history: the kinds of entities, and ``cluster`` for leaders, voters and
features.
"""


class Query(NamedTuple):
    """A query. ``kinds``: kinds of entities to examine. ``matches``: function that returns whether
    (kind, key) is selected.
    """

    kinds: frozenset[str]
    matches: Callable[[str, str], bool]


def query_of(kind: str, key: str = "") -> Query:
    """Return the query for ``kind`` and ``key``, or for the whole kind if there is no key. Raises
    ValueError.

    A topic includes its partitions and configs, and a broker its configs.
    """
    kind = _ALIASES.get(kind, kind)
    if kind not in HISTORY_KINDS:
        raise ValueError(f"there is no history of {kind!r}: use one of {', '.join(HISTORY_KINDS)}")
    if kind == "cluster":
        if key:
            raise ValueError(f"cluster takes no key, but {key!r} is given")
        return Query(_CLUSTER, lambda of, _: True)
    if not key:
        return Query(frozenset({kind}), lambda of, _: True)
    return _OF_KEY.get(kind, _plain)(kind, key)


def _plain(kind: str, key: str) -> Query:
    return Query(frozenset({kind}), lambda of, at: at == key)


def _topic(_: str, key: str) -> Query:
    configs = f"topic:{key}:"

    def matches(of: str, at: str) -> bool:
        if of == "config":
            return at.startswith(configs)
        return at == key if of == "topic" else at.rpartition("-")[0] == key

    return Query(frozenset({"topic", "partition", "config"}), matches)


def _partition(kind: str, key: str) -> Query:
    name, _, index = key.rpartition("-")
    if name and index.isdigit():
        return _plain(kind, key)
    # A topic selects all its partitions.
    return Query(frozenset({kind}), lambda of, at: at.rpartition("-")[0] == key)


def _broker(kind: str, key: str) -> Query:
    if not key.isdigit():
        raise ValueError(f"broker {key!r} is not a broker id")
    configs = f"broker:{key}:"
    return Query(
        frozenset({kind, "config"}),
        lambda of, at: at.startswith(configs) if of == "config" else at == key,
    )


def _config(kind: str, key: str) -> Query:
    type_, _, rest = key.partition(":")
    if type_ not in TYPE_NUMBERS or not rest:
        raise ValueError(
            f"config {key!r} is not TYPE NAME, TYPE:NAME or TYPE:NAME:KEY with TYPE one of"
            f" {', '.join(TYPE_NUMBERS)}"
        )
    return Query(frozenset({kind}), lambda of, at: at == key or at.startswith(f"{key}:"))


_OF_KEY: dict[str, Callable[[str, str], Query]] = {
    "topic": _topic,
    "partition": _partition,
    "broker": _broker,
    "config": _config,
}
