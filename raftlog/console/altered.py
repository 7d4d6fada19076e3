"""What people and programs changed, among the incidents: it may be why something went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raftlog.incident.line import Line, Weight
from raftlog.incident.writes import ALONE_MAX, TOGETHER_MS, groups
from raftlog.metadata.records import RecordType
from raftlog.plural import counted

_TOLD: Mapping[str, str] = {
    RecordType.TOPIC.name: "topic",
    RecordType.REMOVE_TOPIC.name: "topic",
    RecordType.CONFIG.name: "config",
    RecordType.FEATURE_LEVEL.name: "feature level",
    RecordType.ACCESS_CONTROL_ENTRY.name: "ACL",
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY.name: "ACL",
    RecordType.VOTERS.name: "voter set",
    RecordType.UNREGISTER_BROKER.name: "broker",
}


def altered(changes: Sequence[Mapping[str, Any]], from_ms: int) -> list[Line]:
    """Lines of the changes since then. ``changes``: rows of the last changes, the newest first.

    What the controller wrote by itself, as the first records of a new cluster, is no incident,
    but a broker that it fenced is: the journals of nodes do not tell of that.
    """
    told = (
        one
        for one in reversed(changes)
        if one["type"] in _TOLD and one["by"] and one["at_ms"] >= from_ms
    )
    fenced = [
        Line(one["at_ms"], "FENCED", Weight.TROUBLE, "broker", one["sentence"], one["at_ms"])
        for one in changes
        if one["trouble"] and one["at_ms"] >= from_ms
    ]
    return fenced + [line for together in groups(told, _belong) for line in _lines(together)]


def _belong(before: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    near = one["at_ms"] - before["at_ms"] <= TOGETHER_MS
    return near and (before["who"], before["type"]) == (one["who"], one["type"])


def _lines(together: Sequence[Mapping[str, Any]]) -> list[Line]:
    if len(together) > ALONE_MAX:
        first, last = together[0], together[-1]
        made = f"{counted(len(together), 'change')} of {_TOLD[first['type']]}"
        text = f"{first['who']} made {made}; the last: {last['sentence']}"
        return [_line(first, text, last["at_ms"])]
    return [_line(one, f"{one['who']}: {one['sentence']}", one["at_ms"]) for one in together]


def _line(one: Mapping[str, Any], text: str, until_ms: int) -> Line:
    return Line(one["at_ms"], "CHANGED", Weight.CHANGE, _TOLD[one["type"]], text, until_ms)
