"""Brokers that came, went and were fenced, with what they said of themselves; and LAO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftlog.incident.evidence import Evidence, decoded
from raftlog.incident.line import Line, Weight, took
from raftlog.incident.spans import Span, for_how_long, overlapping, spans, until_ms
from raftlog.journal.event import Kind, NodeEvent
from raftlog.metadata.authors import author
from raftlog.metadata.causes import PLANNED, cause_of
from raftlog.metadata.changes import Changed
from raftlog.words import brokers as broker_list

AROUND_MS = 15_000
"""Longer than a session: what a broker met so long before it was fenced may be the cause."""
ALONE_MS = 2_000
"""A failover takes less: brokers that reach no controller for longer are worth a line."""


def fences(seen: Evidence) -> Iterator[Line]:
    """Fenced, unfenced, registered, unregistered."""
    changes = seen.changes("broker")
    for at, change in enumerate(changes):
        old, new = decoded(change.before), decoded(change.after)
        name = f"broker-{change.key}"
        if not new:
            yield Line(
                change.timestamp_ms,
                "UNREGISTERED",
                Weight.CHANGE,
                name,
                f"broker {change.key} was unregistered by"
                f" {author(change.principal, change.client_id)}",
                change.timestamp_ms,
            )
        elif not old:
            yield Line(
                change.timestamp_ms,
                "REGISTERED",
                Weight.NOTE,
                name,
                f"broker {change.key} registered for the first time",
                change.timestamp_ms,
            )
        elif new["fenced"] and not old["fenced"]:
            yield _fence(seen, change, new, changes[at + 1 :])


def _fence(seen: Evidence, change: Changed, new: dict[str, Any], later: list[Changed]) -> Line:
    back_ms = next(
        (
            one.timestamp_ms
            for one in later
            if one.key == change.key and not decoded(one.after).get("fenced", True)
        ),
        -1,
    )
    cause = cause_of(new.get("said_cause", 0), new["reason"])
    # A broker that registers anew is fenced until it has caught up.
    again = change.type_name == "REGISTER_BROKER"
    text = f"broker {change.key} was fenced"
    if again:
        text += ": its process had begun anew, and registered"
    elif new["reason"]:
        text += f": {new['reason']}"
    text += f"; unfenced after {took(back_ms - change.timestamp_ms)}" if back_ms > 0 else ""
    return Line(
        change.timestamp_ms,
        "FENCED",
        Weight.CHANGE if cause in PLANNED else Weight.TROUBLE,
        f"broker-{change.key}",
        text,
        back_ms,
        tuple(_own_words(seen, int(change.key), change.timestamp_ms, back_ms)),
    )


def _own_words(seen: Evidence, broker_id: int, at_ms: int, back_ms: int) -> Iterator[str]:
    """What the broker met itself around the time."""
    until_ms = back_ms if back_ms > 0 else at_ms + AROUND_MS
    for event in seen.of_node(
        broker_id, Kind.LOOP_STALL, Kind.CONTROLLER_LOST, Kind.STOPPED, Kind.STARTED, Kind.SPACE_LOW
    ):
        if at_ms - AROUND_MS <= event.at_ms <= until_ms + 1_000 and (said := _said(event)):
            yield said


def _said(event: NodeEvent) -> str:
    match event.kind:
        case Kind.LOOP_STALL:
            return f"it did not run for {took(event.number('gap_ms', 0))}"
        case Kind.CONTROLLER_LOST:
            return "it heard no controller"
        case Kind.STOPPED:
            return f"it ended: {event.text('reason')}"
        case Kind.STARTED if event.text("after") == "crash":
            return "it started again after a crash or a kill"
        case Kind.SPACE_LOW:
            return "its disk was below the reserve"
    return ""


def alone(seen: Evidence) -> Iterator[Line]:
    """Times in which brokers reached no controller: one line for those that overlap. Of controllers
    that are all dead nobody else tells.
    """
    found = spans(
        seen,
        Kind.CONTROLLER_LOST,
        (Kind.CONTROLLER_FOUND, Kind.REGISTERED, Kind.UNFENCED, Kind.LEASE_GRANTED),
    )
    long = [one for one in found if one.lasted_ms(seen.to_ms) >= ALONE_MS]
    return (_alone(seen, group) for group in overlapping(long))


def _alone(seen: Evidence, group: list[Span]) -> Line:
    ids = {one.begun.node_id for one in group}
    still = {one.begun.node_id for one in group if one.ended is None}
    from_ms, end_ms = group[0].begun.at_ms, until_ms(group)
    last_ms = end_ms if end_ms > 0 else seen.to_ms
    fenced = {
        event.node_id
        for event in seen.events(Kind.FENCED)
        if event.node_id in ids and from_ms <= event.at_ms <= last_ms
    }
    if still:
        who = "" if still == ids else f"{broker_list(still)} "
        lasted = f", and {who}still {'does' if len(still) == 1 else 'do'} not"
    else:
        lasted = f" {for_how_long(group)}"
    return Line(
        from_ms,
        "NO_CONTROLLER",
        Weight.TROUBLE,
        f"broker-{min(ids)}" if len(ids) == 1 else "cluster",
        f"{broker_list(ids)} reached no controller{lasted}",
        end_ms,
        (f"{broker_list(fenced)} fenced {'itself' if len(fenced) == 1 else 'themselves'}",)
        if fenced
        else (),
    )


def lao_stalls(seen: Evidence) -> Iterator[Line]:
    """Times in which LAO stood still, and who held it back."""
    for begun, ended in spans(seen, Kind.LAO_STALLED, (Kind.LAO_RESUMED, Kind.LOST_LEADERSHIP)):
        if ended is None:
            yield _stall(begun, begun.at_ms - 1_000, -1)
        else:
            stood_ms = ended.number("stood_ms", 0) or ended.at_ms - begun.at_ms + 1_000
            yield _stall(begun, ended.at_ms - stood_ms, ended.at_ms)


def _stall(begun: NodeEvent, from_ms: int, until_ms: int) -> Line:
    who = begun.text("brokers").split(",")
    ids = [int(one) for one in who if one.isascii() and one.isdecimal()]
    by = f"held back by {broker_list(ids)}" if ids else begun.text("reason")
    lasted = f" for {took(until_ms - from_ms)}" if until_ms > 0 else ", and stands still"
    offset = begun.number("offset")
    stood = f"stood at {offset}" if offset >= 0 else "was not known"
    return Line(
        from_ms,
        "LAO_STALL",
        Weight.TROUBLE,
        "cluster",
        f"the lowest acknowledged offset {stood}{lasted}: {by}",
        until_ms,
    )
