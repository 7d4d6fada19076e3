"""What the page shows, as plain containers: of what was asked of the cluster, and of this node's
image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any

from raftlog.cli.doctor_screen import document as of_doctor
from raftlog.cli.output import known
from raftlog.cli.render import resource_text
from raftlog.console.altered import altered
from raftlog.console.stored import stored
from raftlog.doctor.diagnosis import diagnose, verdict
from raftlog.doctor.evidence import Evidence
from raftlog.incident.line import took
from raftlog.incident.story import Story
from raftlog.metadata.config_keys import without_effect
from raftlog.metadata.image import Image
from raftlog.plural import counted
from raftlog.wire.controller.v1 import controller_pb2

MAX_NODES = 100
MAX_BROKERS = 200
MAX_TOPICS = 200
MAX_CONFIGS = 200
MAX_READ = 5_000
"""Of topics, for one look: which are the first by name among more, it does not find out."""
MAX_LINES = 100
MAX_FINDINGS = 50


def document(
    seen: Evidence,
    image: Image,
    changes: Sequence[Mapping[str, Any]],
    story: Story | None,
    node: Mapping[str, Any],
) -> dict[str, Any]:
    """``node``: who shows it. ``story``: of the last hour; None: not asked yet."""
    findings = diagnose(seen)
    said = of_doctor(seen, findings, verdict(findings))
    said["findings"] = said["findings"][:MAX_FINDINGS]
    said.pop("nodes"), said.pop("brokers")
    return {
        **said,
        "at_ms": seen.at_ms,
        "node": dict(node),
        "quorum": _quorum(seen),
        "lao": _lao(seen),
        "brokers": _brokers(seen, image),
        "topics": {
            "total": len(image.topics),
            "offset": image.offset,
            "shown": [
                {"name": one.name, "partitions": one.partition_count}
                for one in nsmallest(
                    MAX_TOPICS, islice(image.topics.values(), MAX_READ), key=lambda one: one.name
                )
            ],
        },
        "configs": _configs(image),
        **stored(image),
        "changes": list(changes),
        "incidents": _incidents(story, changes),
    }


def _quorum(seen: Evidence) -> list[dict[str, Any]]:
    leader = seen.leader
    return [
        {
            "node_id": known(node.node_id),
            "endpoint": node.endpoint,
            "state": str(node.reach) if one is None else one.role,
            "answers": one is not None,
            "epoch": None if one is None else one.leader_epoch,
            "log_end": None if one is None else one.log_end_offset,
            "lag": None
            if one is None or leader is None
            else max(0, leader.log_end_offset - one.log_end_offset),
            "failure": node.failure,
        }
        for node in seen.nodes[:MAX_NODES]
        for one in (node.description,)
    ]


def _lao(seen: Evidence) -> dict[str, Any]:
    found = seen.brokers
    if found is None:
        return {"offset": None, "why": seen.brokers_failure or "no leader answers"}
    held_by = found.held_back_by
    behind = ", ".join(map(str, held_by[:10])) + (", …" if len(held_by) > 10 else "")
    holds = "holds" if len(held_by) == 1 else "hold"
    held = f" for {took(found.held_back_ms)}" if found.held_back_ms else ""
    return {
        "offset": known(found.lowest_acknowledged_offset),
        "high_watermark": found.high_watermark,
        "why": ("" if found.brokers else "no broker has registered yet")
        or found.lao_unknown_reason
        or (
            f"{counted(len(held_by), 'broker')} ({behind}) {holds} it back{held}" if behind else ""
        ),
    }


def _registered(image: Image) -> dict[str, Any]:
    """What is left without a leader: who was registered when this node heard one last."""
    unknown = dict.fromkeys(("applied", "lag", "leads"))
    ids = sorted(image.brokers)[:MAX_BROKERS]
    return {
        "total": len(image.brokers),
        "shown": [
            {
                **unknown,
                "id": one.id,
                "endpoint": one.endpoint,
                "state": "not known",
                "rack": one.rack,
                "holds_lao": False,
                "replicas": len(image.replicas_of.get(one.id) or ()),
                "reason": "only a leader knows, and none answers",
            }
            for one in (image.brokers[broker_id] for broker_id in ids)
        ],
    }


def _brokers(seen: Evidence, image: Image) -> dict[str, Any]:
    found = seen.brokers
    if found is None:
        return _registered(image)
    held = set(found.held_back_by)
    names = controller_pb2.BrokerLifecycleState
    # Those that need a look first.
    ordered = sorted(
        found.brokers,
        key=lambda one: (
            names.Name(one.state).lower() == "active" and one.broker_id not in held,
            one.broker_id,
        ),
    )
    return {
        "total": len(ordered),
        "partitions": found.partitions.total,
        "offline": found.partitions.offline,
        "shown": [
            {
                "id": one.broker_id,
                "endpoint": one.endpoint,
                "state": names.Name(one.state).lower(),
                "rack": one.rack,
                "applied": known(one.applied_offset),
                "lag": max(0, found.high_watermark - 1 - one.applied_offset)
                if one.applied_offset >= 0
                else None,
                "holds_lao": one.broker_id in held,
                "leads": one.leader_count,
                "replicas": one.replica_count,
                "reason": one.reason,
            }
            for one in ordered[:MAX_BROKERS]
        ],
    }


def _configs(image: Image) -> dict[str, Any]:
    found = [
        {
            "resource": resource_text(type_, name),
            "key": key,
            "value": value,
            "without_effect": without_effect(type_, key, value),
        }
        for (type_, name), entries in islice(image.configs.items(), MAX_CONFIGS)
        for key, value in islice(entries.items(), MAX_CONFIGS)
    ]
    shown = sorted(found[:MAX_CONFIGS], key=lambda one: (one["resource"], one["key"]))
    more = len(found) > MAX_CONFIGS or len(image.configs) > MAX_CONFIGS
    return {"resources": len(image.configs), "more": more, "shown": shown}


def _incidents(story: Story | None, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if story is None:
        return {"summary": [], "missing": [], "shown": None}
    lines = sorted((*story.lines, *altered(changes, story.from_ms)), key=lambda one: one.at_ms)
    return {
        "summary": list(story.summary),
        "missing": list(story.missing[:MAX_NODES]),
        "shown": [
            {
                "at_ms": one.at_ms,
                "weight": one.weight.name.lower(),
                "text": one.text,
                "lasted": took(one.lasted_ms) if one.lasted_ms else "",
                "because": list(one.because),
            }
            for one in reversed(lines[-MAX_LINES:])
        ],
    }
