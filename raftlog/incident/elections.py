"""Who led, since when, why the one before did not any more, and for how long nobody did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raftlog.incident.evidence import Evidence, decoded
from raftlog.incident.line import Line, Weight, took
from raftlog.incident.spans import Span, for_how_long, overlapping, spans, until_ms
from raftlog.journal.event import Kind, NodeEvent

BEFORE_MS = 60_000
"""What happened to a leader so long before its successor was elected may have to do with it."""


class Elected(NamedTuple):
    """``before``: who led before, -1: nobody, or it is not known."""

    at_ms: int
    epoch: int
    leader_id: int
    before: int


def elected(seen: Evidence) -> list[Elected]:
    """By the log, and by the journals where the log cannot be read."""
    found: dict[int, Elected] = {}
    for change in seen.changes("leader"):
        new, old = decoded(change.after), decoded(change.before)
        if new:
            found[new["epoch"]] = Elected(
                change.timestamp_ms, new["epoch"], new["leader_id"], old.get("leader_id", -1)
            )
    for event in seen.events(Kind.BECAME_LEADER):
        epoch = event.number("epoch")
        if epoch not in found:
            # Who won an epoch that nobody here tells of is not known.
            before = found.get(epoch - 1)
            before_id = before.leader_id if before is not None else -1
            found[epoch] = Elected(event.at_ms, epoch, event.node_id, before_id)
    return sorted(found.values(), key=lambda one: one.epoch)


def elections(seen: Evidence) -> Iterator[Line]:
    """One line for each new leader."""
    known = elected(seen)
    for earlier, one in zip((None, *known), known, strict=False):
        won = _last(seen.of_node(one.leader_id, Kind.BECAME_LEADER), one.epoch)
        active = _last(seen.of_node(one.leader_id, Kind.ACTIVE_CONTROLLER), one.epoch)
        lost = [
            event
            for event in seen.of_node(one.before, Kind.LOST_LEADERSHIP)
            if _since(earlier).epoch <= event.number("epoch") < one.epoch
            and one.at_ms - event.at_ms < BEFORE_MS
        ]
        reason = won.text("reason") if won is not None else ""
        begun_ms, is_known = _begun_ms(seen, one, lost, _since(earlier).at_ms)
        until_ms = active.at_ms if active is not None else one.at_ms
        text = f"node {one.leader_id} leads epoch {one.epoch}"
        lasted_ms = until_ms - begun_ms
        if one.before >= 0 and lasted_ms > 0:
            most = "" if is_known else "at most "
            text += f", after {most}{took(lasted_ms)} without a leader"
        yield Line(
            min(begun_ms, one.at_ms),
            "ELECTION",
            _weight(one, reason, lost),
            f"controller-{one.leader_id}",
            f"{text}: {_why(one, reason, lost)}",
            until_ms,
        )


def outages(seen: Evidence) -> Iterator[Line]:
    """Times of more than a second without a leader, as the nodes saw them."""
    found = spans(seen, Kind.NO_LEADER, (Kind.BECAME_LEADER, Kind.LEADER_CHANGED))
    return (_outage(group) for group in overlapping(found))


def _outage(group: list[Span]) -> Line:
    first, end_ms = group[0].begun, until_ms(group)
    nodes = ", ".join(sorted({f"{one.begun.role}-{one.begun.node_id}" for one in group}))
    lasted = f" {for_how_long(group)}" if end_ms > 0 else ", and there is none yet"
    return Line(
        first.at_ms,
        "NO_LEADER",
        Weight.TROUBLE,
        "cluster",
        f"{nodes} {'know' if ',' in nodes else 'knows'} no leader{lasted}: {first.text('reason')}",
        end_ms,
    )


def _since(earlier: Elected | None) -> Elected:
    """The election before; one of old where none is known.

    What befell its leader sooner ended another leadership [a node that led, was restarted, led
    again and handed over had been without a leader for all of that time].
    """
    return Elected(0, -1, -1, -1) if earlier is None else earlier


def _begun_ms(
    seen: Evidence, one: Elected, lost: list[NodeEvent], since_ms: int
) -> tuple[int, bool]:
    """Since when there was no leader, and whether that is known: when the one before resigned,
    stopped, hung, or was missed. Else when it wrote last: it led until then at least.

    ``since_ms``: when the one before was elected. What befell it sooner, and what it says later
    than its successor was elected [a leader that hung finds out when it goes on], began nothing.
    """

    def belongs(at_ms: int) -> bool:
        return since_ms <= at_ms <= one.at_ms and one.at_ms - at_ms < BEFORE_MS

    begun = [event.at_ms for event in lost]
    begun += [event.at_ms for event in seen.of_node(one.before, Kind.STOPPED)]
    begun += [
        event.at_ms - event.number("gap_ms", 0)
        for event in seen.of_node(one.before, Kind.LOOP_STALL)
        if event.at_ms >= one.at_ms
    ]
    begun += [
        event.at_ms
        for event in seen.events(Kind.CAMPAIGN_BEGAN)
        # Who has to ask nobody before is in the new epoch already.
        if event.number("epoch") in (one.epoch - 1, one.epoch)
    ]
    if begun := [at_ms for at_ms in begun if belongs(at_ms)]:
        return min(begun), True
    writes = [at_ms for at_ms in seen.log.writes_ms if at_ms < one.at_ms]
    recent = writes and one.before >= 0 and one.at_ms - writes[-1] < BEFORE_MS
    return (writes[-1], False) if recent else (one.at_ms, False)


def _why(one: Elected, reason: str, lost: list[NodeEvent]) -> str:
    before = f"node {one.before}" if one.before >= 0 else "the leader"
    if reason == "leader gone":
        return f"the process of {before} had ended, its port refused connections"
    if reason == "leader resigned":
        said = lost[-1].text("reason") if lost else ""
        return f"{before} resigned{f' ({said})' if said else ''}"
    if reason == "fetch timeout":
        return (
            f"{before} had answered no fetch for the fetch timeout: it hung, or the network was cut"
        )
    if reason == "another voter asked":
        return f"another voter heard {before} no more"
    if reason == "cold start":
        return "no leader was known when the nodes started"
    if reason == "election timeout":
        return "no leader was known for the election timeout"
    if lost and lost[-1].details.get("handed_over") is True:
        return f"{before} handed over ({lost[-1].text('reason')})"
    if lost:
        return f"{before} led no more ({lost[-1].text('reason')})"
    return "why is not known: the node that won was not heard"


def _weight(one: Elected, reason: str, lost: list[NodeEvent]) -> Weight:
    if one.before < 0 or reason == "cold start":
        return Weight.NOTE
    # Of a transfer one of the two journals is enough.
    handed_over = bool(lost) and lost[-1].details.get("handed_over") is True
    return Weight.CHANGE if reason == "leader resigned" or handed_over else Weight.TROUBLE


def _last(events: list[NodeEvent], epoch: int) -> NodeEvent | None:
    return next((one for one in reversed(events) if one.number("epoch") == epoch), None)
