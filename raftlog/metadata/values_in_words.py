"""Values of entities in one line, for people: what they come as is the JSON object of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftlog.metadata import acl_words


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
    state = f"fenced ({value['reason']})" if value["fenced"] else "unfenced"
    return f"at {at}{rack}, {state}, broker epoch {value['epoch']}"


def _leader(value: dict[str, Any]) -> str:
    return f"node {value['leader_id']} in epoch {value['epoch']}, voters {_ids(value['voters'])}"


def _voters(value: dict[str, Any]) -> str:
    return ", ".join(f"{one['id']}@{one['endpoint']}" for one in value["voters"])


IN_WORDS: dict[str, Callable[[Any], str]] = {
    "acl": acl_words.in_words,
    "broker": _broker,
    "leader": _leader,
    "partition": _partition,
    "topic": _topic,
    "voters": _voters,
}
"""Kinds whose JSON says little to people."""
