"""Partitions and replicas as one writes them: orders:0, orders:0=4,5,6, and plans in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from raftlog.cli import completion
from raftlog.cli.options import arg
from raftlog.errors import ConfigError

PartitionName = tuple[str, int]
Topics = Annotated[
    list[str] | None,
    arg(
        "[TOPIC...]",
        "Only these; default: all.",
        show_default=False,
        autocompletion=completion.topics,
    ),
]


def partition_name(text: str) -> PartitionName:
    """TOPIC:PARTITION; no topic's name has a colon in it. Raises ConfigError."""
    topic, colon, index = text.rpartition(":")
    if not colon or not topic or not (index.isascii() and index.isdigit() and len(index) < 10):
        raise ConfigError(f"{text!r}: write it as TOPIC:PARTITION, for instance orders:0")
    return topic, int(index)


def broker_ids(text: str, separator: str = ",") -> list[int]:
    """Broker ids, the preferred leader first. Raises ConfigError."""
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigError(f"{text!r}: write broker ids as 4{separator}5{separator}6")
    return [int(part) for part in parts]


def assignments(text: str) -> list[list[int]]:
    """The replicas of several partitions in a row: 1:2:3,2:3:1; empty: none. Raises ConfigError."""
    return [broker_ids(part, ":") for part in text.split(",")] if text else []


def assigned(text: str) -> tuple[PartitionName, list[int]]:
    """TOPIC:PARTITION=BROKER,BROKER,.... Raises ConfigError."""
    name, equals, ids = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{text!r}: write it as TOPIC:PARTITION=BROKER,BROKER,..., for instance orders:0=4,5,6"
        )
    return partition_name(name), broker_ids(ids)


def read_plan(path: Path) -> list[tuple[PartitionName, list[int]]]:
    """A plan as Kafka's tools write it: {"version": 1, "partitions": [{"topic", "partition",
    "replicas"}, ...]}. Raises ConfigError.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        entries = [
            (_entry(one["topic"], one["partition"]), _ids(one["replicas"]))
            for one in document["partitions"]
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path} is no plan like {{"version": 1, "partitions": [{{"topic": "orders",'
            f' "partition": 0, "replicas": [4, 5, 6]}}]}}: {type(error).__name__} {error}'
        ) from None
    return entries


def plan_of(entries: Iterable[tuple[PartitionName, Sequence[int]]]) -> dict[str, Any]:
    """What ``read_plan`` reads."""
    return {
        "version": 1,
        "partitions": [
            {"topic": name[0], "partition": name[1], "replicas": list(ids)} for name, ids in entries
        ],
    }


def by_topic(names: Iterable[PartitionName]) -> dict[str, list[int]]:
    """Topic -> its partitions, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, index in names:
        found.setdefault(topic, []).append(index)
    return found


def _entry(topic: Any, index: Any) -> PartitionName:
    if not isinstance(topic, str) or not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"{topic!r} and {index!r} name no partition")
    return topic, index


def _ids(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) for one in values
    ):
        raise TypeError(f"{values!r} is no list of broker ids")
    return values
