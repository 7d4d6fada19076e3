"""Processes, disks and links: what nodes told of themselves and of each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from raftlog.incident.evidence import Evidence
from raftlog.incident.line import Line, Weight, took
from raftlog.incident.spans import Span, for_how_long, overlapping, spans, until_ms
from raftlog.journal.event import Kind, NodeEvent

NOTICED_MS = 1_000
"""How long a peer is silent before its loss is noted."""
TOGETHER_MS = 5_000
"""Slow flushes of a node that are no farther apart are told together."""


def processes(seen: Evidence) -> Iterator[Line]:
    """Starts and ends. A crash is told where the next life begins: nobody writes down a kill."""
    for node in seen.nodes:
        for event in node.events:
            if seen.from_ms <= event.at_ms <= seen.to_ms:
                line = _process(event, node.name)
                if line is not None:
                    yield line


def _process(event: NodeEvent, name: str) -> Line | None:
    at = event.at_ms
    if event.kind == Kind.STOPPED:
        clean = event.details.get("clean") is True
        return Line(
            at,
            "STOPPED",
            Weight.CHANGE if clean else Weight.TROUBLE,
            name,
            f"{name} stopped{'' if clean else ' itself'}: {event.text('reason')}",
            at,
        )
    if event.kind != Kind.STARTED:
        return None
    after = event.text("after")
    if after == "crash":
        text = f"{name} started again: its process had been killed, or had crashed"
        return Line(at, "CRASHED", Weight.TROUBLE, name, text, at)
    first = " for the first time" if after == "format" else " again"
    return Line(at, "STARTED", Weight.NOTE, name, f"{name} started{first}", at)


def links(seen: Evidence) -> Iterator[Line]:
    """Nodes that others did not reach: one line for each, however many noticed."""
    by_peer: dict[int, list[Span]] = defaultdict(list)
    for one in spans(seen, Kind.PEER_LOST, (Kind.PEER_REGAINED,), subject="peer_id"):
        by_peer[one.begun.number("peer_id")].append(one)
    for peer, found in by_peer.items():
        for group in overlapping(found):
            yield _link(peer, group)


def _link(peer: int, group: list[Span]) -> Line:
    first, end_ms = group[0].begun, until_ms(group)
    by = sorted({one.begun.node_id for one in group})
    lasted = f" {for_how_long(group, NOTICED_MS)}" if end_ms > 0 else ", and still does not"
    return Line(
        first.at_ms - NOTICED_MS,
        "UNREACHABLE",
        Weight.TROUBLE,
        f"controller-{peer}",
        f"controller-{peer} did not answer node{'s' if len(by) > 1 else ''}"
        f" {', '.join(map(str, by))}{lasted}: {first.text('reason')}",
        end_ms,
    )


def stalls(seen: Evidence) -> Iterator[Line]:
    """Nodes that did not run, disks that were slow, hung or full, and clocks that were wrong."""
    slow: dict[int, list[NodeEvent]] = defaultdict(list)
    for event in seen.events():
        name = f"{event.role}-{event.node_id}"
        if event.kind == Kind.LOOP_STALL:
            gap_ms = event.number("gap_ms", 0)
            text = f"{name} did not run for {took(gap_ms)}: stopped, swapped out, or starved of CPU"
            yield Line(event.at_ms - gap_ms, "LOOP_STALL", Weight.TROUBLE, name, text, event.at_ms)
        elif event.kind == Kind.DISK_STALL:
            busy_ms = event.number("busy_ms", 0)
            text = f"the disk of {name} had not answered for {took(busy_ms)}"
            yield Line(event.at_ms - busy_ms, "DISK_STALL", Weight.TROUBLE, name, text, event.at_ms)
        elif event.kind == Kind.SLOW_FLUSH:
            earlier = slow[event.node_id]
            if earlier and event.at_ms - earlier[-1].at_ms > TOGETHER_MS:
                yield _slow(earlier)
                earlier.clear()
            earlier.append(event)
        elif event.kind == Kind.CLOCK_OVERRULED:
            ahead_ms = event.number("ahead_ms", 0)
            side = "ahead" if ahead_ms > 0 else "behind"
            text = f"the clock of {name} was {took(abs(ahead_ms))} {side}, and was not used"
            yield Line(event.at_ms, "CLOCK_WRONG", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.SPACE_LOW:
            free = event.number("free_bytes", 0) >> 20
            text = f"the disk of {name} fell below its reserve: {free} MiB were free"
            yield Line(event.at_ms, "SPACE_LOW", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.SPACE_REGAINED:
            text = f"the disk of {name} had space again"
            yield Line(event.at_ms, "SPACE_REGAINED", Weight.NOTE, name, text, event.at_ms)
        elif event.kind == Kind.WRITES_REFUSED:
            text = f"{name} refused writes: {event.text('reason')}"
            yield Line(event.at_ms, "WRITES_REFUSED", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.WRITES_RESUMED:
            text = f"{name} took writes again"
            yield Line(event.at_ms, "WRITES_RESUMED", Weight.NOTE, name, text, event.at_ms)
        elif event.kind == Kind.SNAPSHOT_LOADED:
            text = (
                f"{name} took its state from a snapshot, up to offset {event.number('end_offset')}"
            )
            yield Line(event.at_ms, "SNAPSHOT_LOADED", Weight.NOTE, name, text, event.at_ms)
    for events in slow.values():
        if events:
            yield _slow(events)


def _slow(events: list[NodeEvent]) -> Line:
    first, count = events[0], sum(one.number("count", 1) for one in events)
    name = f"{first.role}-{first.node_id}"
    syncs = f"{count} syncs of the log" if count > 1 else "a sync of the log"
    return Line(
        first.at_ms,
        "SLOW_FLUSH",
        Weight.TROUBLE,
        name,
        f"{syncs} of {name} took more than {took(first.number('above_ms', 0))}",
        events[-1].at_ms,
    )
