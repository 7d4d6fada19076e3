"""What clients have stored, from a node's image: keys, locks, leases and partitions.

Every list is bounded, and so is the reading: of a map with more than MAX_READ entries only the
first ones that it yields are read, and ``partial`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import islice
from typing import Any, TypeVar

from raftlog.console.sentences import shortened_value
from raftlog.metadata.entities import KeyValue, Partition
from raftlog.metadata.image import Image

T = TypeVar("T")

MAX_SHOWN = 200
MAX_READ = 5_000
VALUE_MAX_BYTES = 120
_QUEUES = {"locks": "lock", "elections": "election"}
_PLACE_DIGITS = 20


def stored(image: Image) -> dict[str, Any]:
    """Return the four lists of the document, by name."""
    read = list(islice(image.key_values.values(), MAX_READ))
    total = len(image.key_values)
    return {
        "keys": _listed(read, total, lambda one: one.key, _key),
        "locks": _locks(read, total),
        "leases": _listed(
            list(islice(image.leases.values(), MAX_READ)),
            len(image.leases),
            lambda one: one.id,
            lambda one: {
                "id": one.id,
                "name": one.name,
                "ttl_ms": one.ttl_ms,
                "principal": one.principal,
            },
        ),
        "partitions": _partitions(image),
    }


def _listed(
    read: list[T], total: int, order: Callable[[T], Any], row: Callable[[T], dict[str, Any]]
) -> dict[str, Any]:
    return {
        "total": total,
        "partial": total > len(read),
        "shown": [row(one) for one in nsmallest(MAX_SHOWN, read, key=order)],
    }


def _key(one: KeyValue) -> dict[str, Any]:
    return {
        "key": one.key,
        "value": shortened_value(one.value, VALUE_MAX_BYTES),
        "bytes": len(one.value),
        "offset": one.offset,
        "lease_id": one.lease_id or None,
    }


def _locks(read: Iterable[KeyValue], total: int) -> dict[str, Any]:
    """Locks and elections: the place with the lowest create_offset holds, the others wait."""
    queues: dict[tuple[str, str], list[KeyValue]] = {}
    count = 0
    for one in read:
        count += 1
        directory, _, rest = one.key.partition("/")
        name, _, place = rest.rpartition("/")
        if directory in _QUEUES and name and len(place) == _PLACE_DIGITS and place.isdigit():
            queues.setdefault((_QUEUES[directory], name), []).append(one)
    rows = [
        {
            "kind": kind,
            "name": name,
            "holder": shortened_value(first.value, VALUE_MAX_BYTES),
            "lease_id": first.lease_id or None,
            "waiting": len(places) - 1,
        }
        for (kind, name), places in sorted(queues.items())
        for first in (min(places, key=lambda one: one.create_offset),)
    ]
    return {"total": len(rows), "partial": total > count, "shown": rows[:MAX_SHOWN]}


def _partitions(image: Image) -> dict[str, Any]:
    """Partitions without a leader come first, then those with replicas out of sync."""
    read = list(islice(image.partitions.values(), MAX_READ))

    def name(one: Partition) -> str:
        topic = image.topics.get(one.topic_id)
        return one.topic_id.hex() if topic is None else topic.name

    def order(one: Partition) -> tuple[bool, bool, str, int]:
        return (one.leader >= 0, len(one.isr) >= len(one.replicas), name(one), one.index)

    return _listed(
        read,
        len(image.partitions),
        order,
        lambda one: {
            "topic": name(one),
            "index": one.index,
            "leader": one.leader if one.leader >= 0 else None,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "state": "offline"
            if one.leader < 0
            else "under-replicated"
            if len(one.isr) < len(one.replicas)
            else "in sync",
        },
    )
