"""Selections of entities: selectors of watchers, as paths, and questions for history.

Every entity has one path: its kind in the plural, and its key in segments
(``configs/topic/orders/retention.ms``, ``topics/orders``, ``partitions/orders/0``, ``brokers/5``).
A selector is

* a path: that entity, and all below it (``configs/topic/orders``: every key of the topic);
* the beginning of paths, with a star or a slash at its end (``topics/ord*``);
* a kind (``brokers``);
* nothing or a star: everything but the log's own book-keeping, which has to be named.

A slash or a percent sign within a name is percent-encoded; a key of the key-value store has its
slashes as they are (``kv/locks/orders``, ``kv/locks/``).

A question is a kind and perhaps a key: ``topic orders``, ``broker 4``, ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.kinds import KINDS as ALL_KINDS
from raftlog.metadata.words import RESOURCE_TYPES, TYPE_NUMBERS

KINDS = {kind.plural: kind.name for kind in ALL_KINDS if kind.plural}
"""The first segment of a path -> the kind of entity."""
PLURAL = {kind: plural for plural, kind in KINDS.items()}
BOOK_KEEPING = frozenset(kind.plural for kind in ALL_KINDS if kind.book_keeping)
"""Kinds that change without a user's request: shown only to a selector that names them."""
_FLAT = KINDS.keys() - {"configs", "partitions", "kv", "client_results"}
"""Entities with nothing below them."""
EVERYTHING = "*"
_NAMED_LIKE = {
    "config": "configs",
    "kvs": "kv",
    **PLURAL,
}


class Selection(NamedTuple):
    """The entities that one watcher wants: those with a path in ``exact``, and those whose path
    begins with one of ``prefixes``.
    """

    exact: frozenset[str]
    prefixes: tuple[str, ...]
    """Sorted prefixes, without duplicates."""

    def matches(self, path: str) -> bool:
        """Return whether a change of the entity at this path is wanted."""
        return path in self.exact or path.startswith(self.prefixes)


def path_of(kind: str, key: str, value: Any) -> str:
    """Return the path of an entity. ``key``: as in ``raftlog.metadata.changes``; ``value``: present
    or last.
    """
    if kind == "config":
        type_, _, rest = key.partition(":")
        # No config key has a colon; names of groups may.
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
    """Return (kind, key) of the single entity that a parsed selector names, for the rights on it;
    the key is empty if it names many, or an entity without a key.

    For a topic's configs or partitions the topic counts.
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
    """Return a name as one segment of a path."""
    if "/" in name or "%" in name:
        return name.replace("%", "%25").replace("/", "%2F")
    return name


def unquoted(segment: str) -> str:
    """Return the name in a segment."""
    return segment.replace("%2F", "/").replace("%25", "%") if "%" in segment else segment


def parse_selectors(texts: Iterable[str], field: str = "selectors") -> Selection:
    """Parse selectors into one selection; none: everything. Raises ApiError INVALID_REQUEST."""
    exact: set[str] = set()
    prefixes: set[str] = set()
    for index, text in enumerate(texts):
        _add(text, exact, prefixes, f"{field}[{index}]")
    if not exact and not prefixes:
        _add(EVERYTHING, exact, prefixes, field)
    # A prefix below another one adds nothing.
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
    if plural in _FLAT and "/" in rest:
        # It would be a watch that waits for ever.
        there = f"{plural}/{rest.partition('/')[0]}"
        message = f"there is nothing below {there[:80]!r} (a slash within a name is %2F)"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field=field)
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
        message = f"{type_[:80]!r} has no configs: one of {', '.join(RESOURCE_TYPES.values())}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message, field=field)


def _unknown(plural: str, text: str) -> str:
    meant = _NAMED_LIKE.get(plural)
    hint = (
        f"did you mean {meant + text[len(plural) :]!r}?" if meant else f"one of {', '.join(KINDS)}"
    )
    return f"a selector begins with a kind of entity, and {plural[:80]!r} is none: {hint}"


_ALIASES = {**KINDS, "cursor": "export_cursor", "cursors": "export_cursor", "quorum": "cluster"}
_CLUSTER = frozenset({"leader", "voters", "feature"})
_NO_QUESTION = frozenset({"leader", "voters", "client_result", "progress", "applied"})
QUESTION_KINDS = (*(kind for kind in PLURAL if kind not in _NO_QUESTION), "cluster")
"""What has a history: the kinds of entities, and ``cluster`` for leaders, voters and features."""


class Question(NamedTuple):
    """A question. ``kinds``: of entities to examine; ``matches``: whether (kind, key) counts."""

    kinds: frozenset[str]
    matches: Callable[[str, str], bool]


def question(kind: str, key: str = "") -> Question:
    """Return the question for ``kind`` and ``key``; without a key, for all of the kind. Raises
    ValueError.

    A topic includes its partitions and configs, and a broker its configs.
    """
    kind = _ALIASES.get(kind, kind)
    if kind not in QUESTION_KINDS:
        raise ValueError(
            f"there is no history of {kind!r}; it is one of {', '.join(QUESTION_KINDS)}"
        )
    if kind == "cluster":
        if key:
            raise ValueError(f"there is one cluster: it has no key like {key!r}")
        return Question(_CLUSTER, lambda of, _: True)
    if not key:
        return Question(frozenset({kind}), lambda of, _: True)
    return _OF_KEY.get(kind, _plain)(kind, key)


def _plain(kind: str, key: str) -> Question:
    return Question(frozenset({kind}), lambda of, at: at == key)


def _topic(_: str, key: str) -> Question:
    configs = f"topic:{key}:"

    def matches(of: str, at: str) -> bool:
        if of == "config":
            return at.startswith(configs)
        return at == key if of == "topic" else at.rpartition("-")[0] == key

    return Question(frozenset({"topic", "partition", "config"}), matches)


def _partition(kind: str, key: str) -> Question:
    name, _, index = key.rpartition("-")
    if name and index.isdigit():
        return _plain(kind, key)
    # A topic: all its partitions.
    return Question(frozenset({kind}), lambda of, at: at.rpartition("-")[0] == key)


def _broker(kind: str, key: str) -> Question:
    if not key.isdigit():
        raise ValueError(f"broker {key!r} is not a broker id")
    configs = f"broker:{key}:"
    return Question(
        frozenset({kind, "config"}),
        lambda of, at: at.startswith(configs) if of == "config" else at == key,
    )


def _config(kind: str, key: str) -> Question:
    type_, _, rest = key.partition(":")
    if type_ not in TYPE_NUMBERS or not rest:
        raise ValueError(
            f"config {key!r} is not TYPE NAME, TYPE:NAME or TYPE:NAME:KEY with TYPE one of"
            f" {', '.join(TYPE_NUMBERS)}"
        )
    return Question(frozenset({kind}), lambda of, at: at == key or at.startswith(f"{key}:"))


_OF_KEY: dict[str, Callable[[str, str], Question]] = {
    "topic": _topic,
    "partition": _partition,
    "broker": _broker,
    "config": _config,
}
