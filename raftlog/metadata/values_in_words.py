"""Values of entities in one line, for people, made from the JSON object of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftlog.metadata import acl_words
from raftlog.metadata.kafka_ids import kafka_id


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def _topic(value: dict[str, Any]) -> str:
    return f"id {value['id']}"


def _partition(value: dict[str, Any]) -> str:
    leader = value["leader"]
    text = f"leader {leader if leader >= 0 else 'none'}, replicas {_ids(value['replicas'])}"
    if value["isr"] != value["replicas"]:
        text += f", ISR {_ids(value['isr'])}"
    for name in ("adding", "removing"):
        if value[f"{name}_replicas"]:
            text += f", {name} {_ids(value[f'{name}_replicas'])}"
    return text


def _broker(value: dict[str, Any]) -> str:
    at = ", ".join(f"{one['host']}:{one['port']}" for one in value["listeners"])
    rack = f", rack {value['rack']}" if value["rack"] else ""
    # Kafka's log says no reason.
    why = f" ({value['reason']})" if value["reason"] else ""
    state = f"fenced{why}" if value["fenced"] else "unfenced"
    return f"at {at}{rack}, {state}, broker epoch {value['epoch']}"


def _partition_detail(value: dict[str, Any]) -> str:
    """Return the details of an imported partition: directories by their ids as Kafka shows them."""
    said = [
        f"{words} {_ids(value[name])}"
        for name, words in (
            ("eligible_leader_replicas", "eligible to lead"),
            ("last_known_elr", "known to have led last"),
        )
        if value.get(name)
    ]
    if directories := value.get("directories"):
        said.append(f"directories {', '.join(map(kafka_id, directories))}")
    return ", ".join(said) or "nothing"


def _leader(value: dict[str, Any]) -> str:
    return f"node {value['leader_id']} in epoch {value['epoch']}, voters {_ids(value['voters'])}"


def _voters(value: dict[str, Any]) -> str:
    return ", ".join(f"{one['id']}@{one['endpoint']}" for one in value["voters"])


IN_WORDS: dict[str, Callable[[Any], str]] = {
    "acl": acl_words.in_words,
    "broker": _broker,
    "leader": _leader,
    "partition": _partition,
    "partition_detail": _partition_detail,
    "topic": _topic,
    "voters": _voters,
}
"""Kind -> its values in words, for kinds whose JSON is hard to read."""
