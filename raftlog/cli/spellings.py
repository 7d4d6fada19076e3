"""Other words for commands, before anything is looked up: ``config`` for ``configs``, ``broker``
for ``brokers``, ``topic`` for ``topics``, ``help topics`` for ``topics --help``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WORDS: Mapping[str, str] = {
    "acl": "acls",
    "cursor": "cursors",
    "feature": "features",
    "hostname": "hostnames",
    "partition": "partitions",
    "status": "doctor",
    "topic": "topics",
}
_BY_SECOND: Mapping[tuple[str, str], str] = {
    ("broker", "list"): "brokers",
    ("broker", "unregister"): "brokers",
    ("brokers", "run"): "broker",
    ("config", "alter"): "configs",
    ("config", "describe"): "configs",
    ("configs", "check"): "config",
    ("configs", "keys"): "config",
}
"""Where both words are commands, the second word says which is meant."""


def respelled(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the first one as its command is called."""
    if not arguments:
        return []
    first, *rest = arguments
    if first == "help":
        return [*respelled(rest), "--help"]
    second = rest[0] if rest else ""
    return [_BY_SECOND.get((first, second), _WORDS.get(first, first)), *rest]
