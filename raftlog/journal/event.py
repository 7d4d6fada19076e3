"""The events of a node's journal, and what each of them says."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

Value = str | int | bool


class Kind(StrEnum):
    """What has happened. A name never changes its meaning."""

    STARTED = "started"
    STOPPED = "stopped"
    CAMPAIGN_BEGAN = "campaign_began"
    BECAME_LEADER = "became_leader"
    ACTIVE_CONTROLLER = "active_controller"
    LOST_LEADERSHIP = "lost_leadership"
    LEADER_CHANGED = "leader_changed"
    NO_LEADER = "no_leader"
    PEER_LOST = "peer_lost"
    PEER_REGAINED = "peer_regained"
    SLOW_FLUSH = "slow_flush"
    DISK_STALL = "disk_stall"
    LOOP_STALL = "loop_stall"
    CLOCK_OVERRULED = "clock_overruled"
    CLOCK_AGREES = "clock_agrees"
    SNAPSHOT_TAKEN = "snapshot_taken"
    SNAPSHOT_LOADED = "snapshot_loaded"
    LOG_START_ADVANCED = "log_start_advanced"
    SPACE_LOW = "space_low"
    SPACE_REGAINED = "space_regained"
    WRITES_REFUSED = "writes_refused"
    WRITES_RESUMED = "writes_resumed"
    LAO_STALLED = "lao_stalled"
    LAO_RESUMED = "lao_resumed"
    REGISTERED = "registered"
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLER_LOST = "controller_lost"
    CONTROLLER_FOUND = "controller_found"
    LEASE_GRANTED = "lease_granted"
    LEASE_LOST = "lease_lost"


class About(NamedTuple):
    """One kind: the types of its details, and what it means."""

    details: Mapping[str, type[str] | type[int] | type[bool]]
    meaning: str


KINDS: Mapping[Kind, About] = {
    Kind.STARTED: About(
        {"after": str},
        "The process serves. `after`: how the life before ended: `stop` (in order), `error` (it"
        " stopped itself), `crash`; or `format`: this is the first.",
    ),
    Kind.STOPPED: About(
        {"reason": str, "clean": bool}, "The process ends: in order, or by an error that it names."
    ),
    Kind.CAMPAIGN_BEGAN: About(
        {"epoch": int, "reason": str, "last_leader_id": int},
        "The voter asks for an election, and why.",
    ),
    Kind.BECAME_LEADER: About(
        {"epoch": int, "reason": str, "start_offset": int},
        "The voter has won the election; `reason` is that of its campaign.",
    ),
    Kind.ACTIVE_CONTROLLER: About(
        {"epoch": int, "offset": int}, "The leader has folded its log, and decides requests."
    ),
    Kind.LOST_LEADERSHIP: About(
        {"epoch": int, "reason": str, "handed_over": bool},
        "The node leads no more. `handed_over`: by a transfer that it completed.",
    ),
    Kind.LEADER_CHANGED: About(
        {"epoch": int, "leader_id": int}, "The node follows another leader."
    ),
    Kind.NO_LEADER: About(
        {"epoch": int, "reason": str}, "The node has known no leader for a second."
    ),
    Kind.PEER_LOST: About(
        {"peer_id": int, "reason": str}, "Another node has not answered for a second."
    ),
    Kind.PEER_REGAINED: About({"peer_id": int, "after_ms": int}, "It answers again."),
    Kind.SLOW_FLUSH: About(
        {"above_ms": int, "count": int}, "Syncs of the log took longer than `above_ms`."
    ),
    Kind.DISK_STALL: About(
        {"busy_ms": int}, "One call to the disk of the log has not returned for so long."
    ),
    Kind.LOOP_STALL: About(
        {"gap_ms": int}, "The process did not run: it was stopped, swapped out, or busy."
    ),
    Kind.CLOCK_OVERRULED: About(
        {"ahead_ms": int},
        "The wall clock of the node differs from those of a majority of the voters, whose time it"
        " uses instead. `ahead_ms`: by how much; negative: it is behind.",
    ),
    Kind.CLOCK_AGREES: About({}, "It agrees with them again."),
    Kind.SNAPSHOT_TAKEN: About({"end_offset": int, "bytes": int}, "A snapshot was taken here."),
    Kind.SNAPSHOT_LOADED: About(
        {"end_offset": int}, "The node began with a snapshot, or had one installed by the leader."
    ),
    Kind.LOG_START_ADVANCED: About({"offset": int}, "The log below was dropped."),
    Kind.SPACE_LOW: About({"free_bytes": int}, "The disk fell below its free-space reserve."),
    Kind.SPACE_REGAINED: About({"free_bytes": int}, "The disk is above its reserve again."),
    Kind.WRITES_REFUSED: About({"reason": str}, "The active controller takes no writes."),
    Kind.WRITES_RESUMED: About({}, "It takes writes again."),
    Kind.LAO_STALLED: About(
        {"offset": int, "brokers": str, "reason": str},
        "The lowest acknowledged offset has stood still for a second, and who holds it back.",
    ),
    Kind.LAO_RESUMED: About({"offset": int, "stood_ms": int}, "It goes on."),
    Kind.REGISTERED: About({"broker_epoch": int}, "The broker has registered."),
    Kind.FENCED: About({"reason": str}, "The broker knows that it is fenced, or fences itself."),
    Kind.UNFENCED: About({"broker_epoch": int}, "The broker knows that it is unfenced."),
    Kind.CONTROLLER_LOST: About(
        {"controller_id": int}, "The broker follows no active controller any more."
    ),
    Kind.CONTROLLER_FOUND: About(
        {"controller_id": int, "epoch": int}, "The broker follows this active controller."
    ),
    Kind.LEASE_GRANTED: About({}, "The broker holds a read lease, and answers strict reads."),
    Kind.LEASE_LOST: About({"reason": str}, "It holds none any more."),
}
"""Of every kind."""


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of one node.

    ``seq`` grows by one for each event of a data directory, across restarts. ``at_ms``: the time at
    the node, which is the quorum's as far as the node knows it. ``repeats``: how often the same
    happened since the last line of its kind, without a line of its own; ``left_out``: how many
    events before this one have no line, as there were too many.
    """

    seq: int
    at_ms: int
    node_id: int
    role: str
    kind: str
    details: dict[str, Value] = {}
    repeats: int = 0
    left_out: int = 0

    def text(self, name: str) -> str:
        """A detail as text; empty: it has none of this name."""
        return str(self.details.get(name, ""))

    def number(self, name: str, default: int = -1) -> int:
        """A detail that is a number."""
        value = self.details.get(name, default)
        return value if isinstance(value, int) else default


def checked_details(kind: Kind, details: Mapping[str, Any]) -> dict[str, Value]:
    """The details, if they are those of this kind. Raises TypeError for others."""
    wanted = KINDS[kind].details
    if details.keys() != wanted.keys():
        raise TypeError(f"{kind} has the details {sorted(wanted)}, not {sorted(details)}")
    for name, type_ in wanted.items():
        if type(details[name]) is not type_:
            raise TypeError(f"{kind}.{name} is no {type_.__name__}: {details[name]!r}")
    return dict(details)


def typed_details(kind: str, texts: Mapping[str, str]) -> dict[str, Value]:
    """Details that came as texts. Those of a kind that this build does not know stay texts."""
    about = KINDS[Kind(kind)].details if kind in list(Kind) else {}
    found: dict[str, Value] = {}
    for name, text in texts.items():
        type_ = about.get(name, str)
        if type_ is bool:
            found[name] = text == "true"
        elif type_ is int and text.removeprefix("-").isdigit():
            found[name] = int(text)
        else:
            found[name] = text
    return found


def as_text(value: Value) -> str:
    """A detail as it travels."""
    return str(value).lower() if isinstance(value, bool) else str(value)
