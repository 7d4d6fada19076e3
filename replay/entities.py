"""Entities of the image in words: printable keys, and values as JSON objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from raftlog.metadata.image import Image
from raftlog.metadata.imported import imported_key
from raftlog.metadata.kinds import KINDS, count_of, entities_of
from raftlog.metadata.words import (
    RESOURCE_TYPES,
    config_key,
    plain,
    result_key,
    to_json,
)

__all__ = [
    "RESOURCE_TYPES",
    "config_key",
    "count_entities",
    "entities",
    "plain",
    "result_key",
    "to_json",
]


def count_entities(image: Image) -> dict[str, int]:
    """Return the number of entities of each kind, without kinds that have none."""
    counts = {kind.name: count_of(image, kind) for kind in KINDS if kind.plural}
    counts |= Counter(kind for kind, _ in image.imported)
    return {kind: count for kind, count in counts.items() if count}


def entities(image: Image) -> Iterator[tuple[str, str, Any]]:
    """(kind, key, value) of every entity, each kind sorted by key."""
    for one in KINDS:
        if one.plural:
            for key, value in entities_of(image, one):
                yield one.name, key, image.topics[value.id] if one.name == "topic" else value
    for (kind, key), value in sorted(image.imported.items()):
        yield kind, imported_key(image, kind, key), msgspec.json.decode(value)
