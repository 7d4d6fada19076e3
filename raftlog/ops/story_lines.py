"""The lines of a story about elections, nodes, brokers and changes, by rules without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, TypeVar

from raftlog.metadata.changes import Changed
from raftlog.metadata.entities import PLANNED
from raftlog.metadata.words import author, field_changes, raw, recovery_in_words, words
from raftlog.node.observability.journal import Kind, NodeEvent
from raftlog.ops.evidence import Timeline, decoded
from raftlog.text import brokers as broker_list
from raftlog.text import counted, nodes


class Weight(IntEnum):
    """The importance of a line."""

    NOTE = 1
    """A normal event."""
    CHANGE = 2
    """A planned event, or a change by a principal."""
    TROUBLE = 3
    """Something failed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a story."""

    at_ms: int
    code: str
    """Stable identifier; it never changes, though ``text`` may."""
    weight: Weight
    subject: str
    text: str
    until_ms: int = 0
    """End of the line in ms; at or before ``at_ms`` for an instant, -1 if no end is known."""
    because: tuple[str, ...] = ()
    """Further evidence that explains the line."""

    @property
    def lasted_ms(self) -> int:
        """Duration in ms; 0 for an instant or if no end is known."""
        return max(0, self.until_ms - self.at_ms) if self.until_ms > 0 else 0


def took(ms: int) -> str:
    """Return a duration as text, such as 120 ms, 9.3 s, 4 min 10 s, 2 h 5 min."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


_LIFE = (Kind.STARTED, Kind.STOPPED)
"""Events that end every state of a process."""


class Span(NamedTuple):
    """A period in which one node was in a state. ``ended``: the event that closed it, or None if it
    is still open.
    """

    begun: NodeEvent
    ended: NodeEvent | None

    @property
    def until_ms(self) -> int:
        """End of the span in ms, or -1 if it is open at the end of the evidence."""
        return -1 if self.ended is None else self.ended.at_ms

    def lasted_ms(self, to_ms: int) -> int:
        """Return the duration in ms. ``to_ms``: the end of the evidence."""
        return (to_ms if self.ended is None else self.ended.at_ms) - self.begun.at_ms


def spans(timeline: Timeline, opens: Kind, closes: Iterable[Kind], subject: str = "") -> list[Span]:
    """Return all spans that one kind of event opens, sorted by start.

    A span is closed only by the node that opened it: by an event in ``closes`` with the same
    ``subject`` (a detail), or by the node's own start or stop. If the node's journal omitted
    events, the closing event may be among them: the span then has no known length, and is dropped
    (the story reports the missing events).
    """
    closing = frozenset(closes)
    open_: dict[tuple[str, int, int], NodeEvent] = {}
    found = []
    for event in timeline.events():
        key = (event.role, event.node_id, event.number(subject))
        mine = [one for one in open_ if one[:2] == key[:2]]
        if event.left_out:
            for one in mine:
                del open_[one]
        elif event.kind in _LIFE:
            found += [Span(open_.pop(one), event) for one in mine]
        elif event.kind in closing and key in open_:
            found.append(Span(open_.pop(key), event))
        if event.kind == opens:
            open_.setdefault(key, event)
    found += [Span(begun, None) for begun in open_.values()]
    return sorted(found, key=lambda one: one.begun.at_ms)


def overlapping(found: Iterable[Span]) -> Iterator[list[Span]]:
    """Yield groups of overlapping spans, in ascending order."""
    group: list[Span] = []
    for one in found:
        if group and one.begun.at_ms > until_ms(group) >= 0:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def until_ms(group: list[Span]) -> int:
    """Return the end of a group's last span, or -1 if one is open at the end."""
    ends = [one.until_ms for one in group]
    return -1 if -1 in ends else max(ends)


def for_how_long(group: list[Span], before_ms: int = 0) -> str:
    """Return text such as ``for 22 s``, or ``for up to 22 s`` if the durations of the closed spans
    differ.

    ``before_ms``: time for which each span had lasted when it was detected.
    """
    lengths = sorted(one.lasted_ms(0) + before_ms for one in group if one.ended is not None)
    most = "" if took(lengths[0]) == took(lengths[-1]) else "up to "
    return f"for {most}{took(lengths[-1])}"


BEFORE_MS = 60_000
"""Time in ms before an election within which events of the old leader may explain it."""


_LEADER_KNOWN = (Kind.BECAME_LEADER, Kind.LEADER_CHANGED)


class Elected(NamedTuple):
    """An election. ``before``: the leader of the previous epoch, or -1 if there was none or it is
    unknown.
    """

    at_ms: int
    epoch: int
    leader_id: int
    before: int


def elected(timeline: Timeline) -> list[Elected]:
    """Return the elections in the log, and those in the journals where the log cannot be read."""
    found: dict[int, Elected] = {}
    for change in timeline.changes("leader"):
        new, old = decoded(change.after), decoded(change.before)
        if new:
            found[new["epoch"]] = Elected(
                change.timestamp_ms, new["epoch"], new["leader_id"], old.get("leader_id", -1)
            )
    for event in timeline.events(Kind.BECAME_LEADER):
        epoch = event.number("epoch")
        if epoch not in found:
            # The winner of an epoch without evidence is unknown.
            before = found.get(epoch - 1)
            before_id = before.leader_id if before is not None else -1
            found[epoch] = Elected(event.at_ms, epoch, event.node_id, before_id)
    return sorted(found.values(), key=lambda one: one.epoch)


def elections(timeline: Timeline) -> Iterator[Line]:
    """Yield a line for each new leader."""
    known = elected(timeline)
    for earlier, one in zip((None, *known), known, strict=False):
        won = _last_of_epoch(timeline.of_node(one.leader_id, Kind.BECAME_LEADER), one.epoch)
        active = _last_of_epoch(timeline.of_node(one.leader_id, Kind.ACTIVE_CONTROLLER), one.epoch)
        lost = [
            event
            for event in timeline.of_node(one.before, Kind.LOST_LEADERSHIP)
            if _since(earlier).epoch <= event.number("epoch") < one.epoch
            and one.at_ms - event.at_ms < BEFORE_MS
        ]
        reason = won.text("reason") if won is not None else ""
        begun_ms, is_known = _begun_ms(timeline, one, lost, _since(earlier).at_ms)
        until_ms = active.at_ms if active is not None else one.at_ms
        text = f"node {one.leader_id} leads epoch {one.epoch}"
        lasted_ms = until_ms - begun_ms
        if one.before >= 0 and lasted_ms > 0:
            most = "" if is_known else "at most "
            text += f", after {most}{took(lasted_ms)} without a leader"
        yield Line(
            min(begun_ms, one.at_ms) if is_known else one.at_ms,
            "ELECTION",
            _weight(one, reason, lost),
            f"controller-{one.leader_id}",
            f"{text}: {_why(one, reason, lost)}",
            # An upper bound is not a duration.
            until_ms if is_known else one.at_ms,
        )


def outages(timeline: Timeline) -> Iterator[Line]:
    """Yield a line for each period of more than a second without a leader, by the nodes'
    journals.
    """
    found = spans(timeline, Kind.NO_LEADER, _LEADER_KNOWN)
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
    """Return the previous election, or a very old one if none is known.

    Earlier events of its leader concern another leadership. (Otherwise, if a node led, was
    restarted and led again, there would seem to have been no leader all that time.)
    """
    return Elected(0, -1, -1, -1) if earlier is None else earlier


def _begun_ms(
    timeline: Timeline, one: Elected, lost: list[NodeEvent], since_ms: int
) -> tuple[int, bool]:
    """Return the start of the time without a leader, and whether it is known exactly.

    It is known if the old leader resigned, stopped, hung, or was missed. Otherwise the start is
    that leader's last write, until which it certainly led. ``since_ms``: time of the previous
    election. Earlier events of that leader do not count, nor does its report after its successor's
    election, as a leader that hung reports the loss only once it continues.
    """

    def belongs(at_ms: int) -> bool:
        return since_ms <= at_ms <= one.at_ms and one.at_ms - at_ms < BEFORE_MS

    begun = [event.at_ms for event in lost]
    begun += [event.at_ms for event in timeline.of_node(one.before, Kind.STOPPED)]
    begun += [
        event.at_ms - event.number("gap_ms", 0)
        for event in timeline.of_node(one.before, Kind.LOOP_STALL)
        if event.at_ms >= one.at_ms
    ]
    begun += [
        event.at_ms
        for event in timeline.events(Kind.CAMPAIGN_BEGAN)
        # A voter that need not ask others first is already in the new epoch.
        if event.number("epoch") in (one.epoch - 1, one.epoch)
    ]
    if begun := [at_ms for at_ms in begun if belongs(at_ms)]:
        return min(begun), True
    writes = [at_ms for at_ms in timeline.log.writes_ms if at_ms < one.at_ms]
    recent = writes and one.before >= 0 and one.at_ms - writes[-1] < BEFORE_MS
    return (writes[-1], False) if recent else (one.at_ms, False)


def _why(one: Elected, reason: str, lost: list[NodeEvent]) -> str:
    before = f"node {one.before}" if one.before >= 0 else "the leader"
    if reason == "leader gone":
        return f"the process of {before} had exited: its port refused connections"
    if reason == "leader resigned":
        said = lost[-1].text("reason") if lost else ""
        return f"{before} resigned{f' ({said})' if said else ''}"
    if reason == "fetch timeout":
        return (
            f"{before} had not answered a fetch within the fetch timeout: it hung, or the network"
            " was partitioned"
        )
    if reason == "another voter asked":
        return f"another voter no longer heard {before}"
    if reason == "cold start":
        return "no leader was known when the nodes started"
    if reason == "election timeout":
        return "no leader was known for the election timeout"
    if lost and lost[-1].details.get("handed_over") is True:
        return f"{before} transferred the leadership ({lost[-1].text('reason')})"
    if lost:
        return f"{before} no longer led ({lost[-1].text('reason')})"
    return "cause unknown: there is no evidence from the winner"


def _weight(one: Elected, reason: str, lost: list[NodeEvent]) -> Weight:
    if one.before < 0 or reason == "cold start":
        return Weight.NOTE
    # One of the two journals suffices to recognise a transfer.
    handed_over = bool(lost) and lost[-1].details.get("handed_over") is True
    return Weight.CHANGE if reason == "leader resigned" or handed_over else Weight.TROUBLE


def _last_of_epoch(events: list[NodeEvent], epoch: int) -> NodeEvent | None:
    return next((one for one in reversed(events) if one.number("epoch") == epoch), None)


AROUND_MS = 15_000
"""Time in ms before a fencing within which events of the broker may explain it: more than a
session.
"""
ALONE_MS = 2_000
"""Minimum time in ms without a controller for which a line is written; a failover takes less."""


def fences(timeline: Timeline) -> Iterator[Line]:
    """Yield lines about brokers that are fenced, registered or removed."""
    changes = timeline.changes("broker")
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
            yield _fence(timeline, change, new, changes[at + 1 :])


def _fence(timeline: Timeline, change: Changed, new: dict[str, Any], later: list[Changed]) -> Line:
    back_ms = next(
        (
            one.timestamp_ms
            for one in later
            if one.key == change.key and not decoded(one.after).get("fenced", True)
        ),
        -1,
    )
    cause = new.get("cause", 0)
    # A broker that registers again is fenced until it has caught up.
    again = change.type_name == "REGISTER_BROKER"
    text = f"broker {change.key} was fenced"
    if again:
        text += ": its process had restarted, and registered again"
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
        tuple(_own_words(timeline, int(change.key), change.timestamp_ms, back_ms)),
    )


def _own_words(timeline: Timeline, broker_id: int, at_ms: int, back_ms: int) -> Iterator[str]:
    """Yield the broker's own journal entries from around the time of a fencing."""
    until_ms = back_ms if back_ms > 0 else at_ms + AROUND_MS
    for event in timeline.of_node(
        broker_id, Kind.LOOP_STALL, Kind.CONTROLLER_LOST, Kind.STOPPED, Kind.STARTED, Kind.SPACE_LOW
    ):
        if at_ms - AROUND_MS <= event.at_ms <= until_ms + 1_000 and (said := _in_words(event)):
            yield said


def _in_words(event: NodeEvent) -> str:
    match event.kind:
        case Kind.LOOP_STALL:
            return f"its process was paused for {took(event.number('gap_ms', 0))}"
        case Kind.CONTROLLER_LOST:
            return "it reached no controller"
        case Kind.STOPPED:
            return f"it ended: {event.text('reason')}"
        case Kind.STARTED if event.text("after") == "crash":
            return "it started again after a crash or a kill"
        case Kind.SPACE_LOW:
            return "its disk was below the reserve"
    return ""


def alone(timeline: Timeline) -> Iterator[Line]:
    """Yield the periods in which brokers reached no controller, one line for overlapping periods.
    No other node has evidence of dead controllers.
    """
    found = spans(
        timeline,
        Kind.CONTROLLER_LOST,
        (Kind.CONTROLLER_FOUND, Kind.REGISTERED, Kind.UNFENCED, Kind.LEASE_GRANTED),
    )
    long = [one for one in found if one.lasted_ms(timeline.to_ms) >= ALONE_MS]
    return (_alone(timeline, group) for group in overlapping(long))


def _alone(timeline: Timeline, group: list[Span]) -> Line:
    ids = {one.begun.node_id for one in group}
    still = {one.begun.node_id for one in group if one.ended is None}
    from_ms, end_ms = group[0].begun.at_ms, until_ms(group)
    last_ms = end_ms if end_ms > 0 else timeline.to_ms
    fenced = {
        event.node_id
        for event in timeline.events(Kind.FENCED)
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


def lao_stalls(timeline: Timeline) -> Iterator[Line]:
    """Yield the periods in which LAO made no progress, and the brokers that held it back."""
    for begun, ended in spans(timeline, Kind.LAO_STALLED, (Kind.LAO_RESUMED, Kind.LOST_LEADERSHIP)):
        if ended is None:
            yield _stall(begun, begun.at_ms - 1_000, -1)
        else:
            stood_ms = ended.number("stood_ms", 0) or ended.at_ms - begun.at_ms + 1_000
            yield _stall(begun, ended.at_ms - stood_ms, ended.at_ms)


def _stall(begun: NodeEvent, from_ms: int, until_ms: int) -> Line:
    who = begun.text("brokers").split(",")
    ids = [int(one) for one in who if one.isascii() and one.isdecimal()]
    by = f"held back by {broker_list(ids)}" if ids else begun.text("reason")
    lasted = f" for {took(until_ms - from_ms)}" if until_ms > 0 else ", and still does not advance"
    offset = begun.number("offset")
    stood = f"was stuck at {offset}" if offset >= 0 else "was unknown"
    return Line(
        from_ms,
        "LAO_STALL",
        Weight.TROUBLE,
        "cluster",
        f"the lowest acknowledged offset {stood}{lasted}: {by}",
        until_ms,
    )


NOTICED_MS = 1_000
"""Silence of a peer in ms after which its loss is recorded."""
SLOW_TOGETHER_MS = 5_000
"""Largest gap in ms between a node's slow flushes that share a line."""


def processes(timeline: Timeline) -> Iterator[Line]:
    """Yield starts and stops of processes. A crash is known only from the next start."""
    for node in timeline.nodes:
        for event in node.events:
            if timeline.from_ms <= event.at_ms <= timeline.to_ms:
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


def links(timeline: Timeline) -> Iterator[Line]:
    """Yield a line for each node that others did not reach, whatever the number of witnesses."""
    by_peer: dict[int, list[Span]] = defaultdict(list)
    for one in spans(timeline, Kind.PEER_LOST, (Kind.PEER_REGAINED,), subject="peer_id"):
        by_peer[one.begun.number("peer_id")].append(one)
    for peer, found in by_peer.items():
        # Negative: an address of the configuration, where a voter may be that has its own line.
        for group in overlapping(found) if peer >= 0 else ():
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


def stalls(timeline: Timeline) -> Iterator[Line]:
    """Yield lines about paused processes, slow, hung or full disks, and wrong clocks."""
    slow: dict[int, list[NodeEvent]] = defaultdict(list)
    for event in timeline.events():
        name = f"{event.role}-{event.node_id}"
        if event.kind == Kind.LOOP_STALL:
            gap_ms = event.number("gap_ms", 0)
            text = f"{name} was paused for {took(gap_ms)}: stopped, swapped out, or starved of CPU"
            yield Line(event.at_ms - gap_ms, "LOOP_STALL", Weight.TROUBLE, name, text, event.at_ms)
        elif event.kind == Kind.DISK_STALL:
            busy_ms = event.number("busy_ms", 0)
            text = f"the disk of {name} had not answered for {took(busy_ms)}"
            yield Line(event.at_ms - busy_ms, "DISK_STALL", Weight.TROUBLE, name, text, event.at_ms)
        elif event.kind == Kind.SLOW_FLUSH:
            earlier = slow[event.node_id]
            if earlier and event.at_ms - earlier[-1].at_ms > SLOW_TOGETHER_MS:
                yield _slow(earlier)
                earlier.clear()
            earlier.append(event)
        elif event.kind == Kind.CLOCK_OVERRULED:
            ahead_ms = event.number("ahead_ms", 0)
            side = "ahead" if ahead_ms > 0 else "behind"
            text = f"the clock of {name} was {took(abs(ahead_ms))} {side}, and was ignored"
            yield Line(event.at_ms, "CLOCK_WRONG", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.SPACE_LOW:
            free = event.number("free_bytes", 0) >> 20
            text = f"the disk of {name} fell below its reserve: {free} MiB were free"
            yield Line(event.at_ms, "SPACE_LOW", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.DIRECTORY_REPLACED:
            where = event.text("set_aside")
            text = (
                f"the log of {name} was damaged: the node started with an empty log, and the "
                f"damaged data is in {where}"
            )
            yield Line(event.at_ms, "LOG_DAMAGED", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.LOG_MENDED:
            where = event.text("set_aside")
            text = (
                f"the log of {name} was damaged and has been repaired; the damaged log is in "
                f"{where}"
            )
            yield Line(event.at_ms, "LOG_DAMAGED", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.SPACE_REGAINED:
            text = f"the disk of {name} had enough space again"
            yield Line(event.at_ms, "SPACE_REGAINED", Weight.NOTE, name, text, event.at_ms)
        elif event.kind == Kind.WRITES_REFUSED:
            text = f"{name} refused writes: {event.text('reason')}"
            yield Line(event.at_ms, "WRITES_REFUSED", Weight.TROUBLE, name, text, -1)
        elif event.kind == Kind.WRITES_RESUMED:
            text = f"{name} accepted writes again"
            yield Line(event.at_ms, "WRITES_RESUMED", Weight.NOTE, name, text, event.at_ms)
        elif event.kind == Kind.SNAPSHOT_LOADED:
            text = (
                f"{name} loaded its state from a snapshot, up to offset "
                f"{event.number('end_offset')}"
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


T = TypeVar("T")

ALONE_MAX = 3
"""Number of simultaneous changes of one kind by one principal above which a single line counts
them.
"""
TOGETHER_MS = 5_000
BURST_MS = 2_000
GAP_MIN_MS = 1_000
GAP_FACTOR = 20
RECENT_WRITES = 50
"""Number of writes before a gap that define the usual rate."""
_TOLD = ("topic", "config", "acl", "voters", "feature", "hostname")


def alterations(timeline: Timeline) -> Iterator[Line]:
    """Yield the changes to topics, configs, ACLs, voters, features and hostnames."""
    for kind in _TOLD:
        changes = [
            one
            for one in timeline.changes(kind)
            # Setting the same value again is not a change.
            if one.before != one.after and not _autopilot_reason(one)
        ]
        for together in groups(changes, _belong):
            yield from _changed_lines(together)


def autopilot(timeline: Timeline) -> Iterator[Line]:
    """Yield the changes to the voter set that the controller made by itself."""
    for one in timeline.changes("voters"):
        if reason := _autopilot_reason(one):
            before, after = _voter_ids(one.before), _voter_ids(one.after)
            joined, left = sorted(after - before), sorted(before - after)
            what = f"made {nodes(joined)} a voter" if joined else f"removed {nodes(left)}"
            text = f"autopilot {what}: {reason}"
            yield Line(one.timestamp_ms, "AUTOPILOT", Weight.CHANGE, "voters", text)


def _autopilot_reason(one: Changed) -> str:
    """Return why the controller changed the voter set by itself, or "" if it did not."""
    if one.kind != "voters" or one.after is None:
        return ""
    reason: str = decoded(one.after).get("reason", "")
    return reason


def _voter_ids(text: str | None) -> set[int]:
    return set() if text is None else {one["id"] for one in decoded(text)["voters"]}


def groups(items: Iterable[T], belong: Callable[[T, T], bool]) -> Iterator[list[T]]:
    """Yield runs of items in which each item belongs with the previous one."""
    group: list[T] = []
    for one in items:
        if group and not belong(group[-1], one):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _belong(before: Changed, one: Changed) -> bool:
    near = one.timestamp_ms - before.timestamp_ms <= TOGETHER_MS
    return near and _author(one) == _author(before)


def _author(one: Changed) -> str:
    return author(one.principal, one.client_id)


def _changed_lines(changes: list[Changed]) -> Iterator[Line]:
    first, last = changes[0], changes[-1]
    by = _author(first)
    if len(changes) <= ALONE_MAX:
        for one in changes:
            what = f"{one.kind} {one.key}".rstrip()
            fields = field_changes(one.before, one.after)
            said = words(raw(one.before), raw(one.after), fields, one.kind).replace("\n", "; ")
            yield _changed_line(one, f"{by} changed {what}: {said}", one.timestamp_ms)
        return
    keys = sorted({one.key for one in changes})
    names = ", ".join(keys[:2]) + (", …" if len(keys) > 2 else "")
    kinds = counted(len(changes), "change")
    yield _changed_line(first, f"{by} made {kinds} to {first.kind} {names}", last.timestamp_ms)


def _changed_line(one: Changed, text: str, until_ms: int) -> Line:
    weight = Weight.CHANGE if one.principal else Weight.NOTE
    return Line(one.timestamp_ms, "CHANGED", weight, one.kind, text, until_ms)


def partitions(timeline: Timeline) -> Iterator[Line]:
    """Yield moves and losses of partition leaders, one line per burst."""
    moved = (
        one
        for one in timeline.changes("partition")
        if one.before is not None
        and one.after is not None
        and decoded(one.before)["leader"] != decoded(one.after)["leader"]
    )
    by_kind: dict[str, list[Changed]] = {}
    for one in moved:
        by_kind.setdefault(_election_kind(one), []).append(one)
    yield from map(_burst, groups(by_kind.pop("", ()), _near))
    for kind, elected_ in by_kind.items():
        for together in groups(elected_, _near):
            yield from _outside_isr(kind, together)


def _election_kind(one: Changed) -> str:
    """Return the code of an election from outside the ISR, or "" for any other change."""
    before, after = decoded(one.before), decoded(one.after)
    leader = after["leader"]
    if leader < 0 or leader in before.get("isr", ()):
        return ""
    if leader in before.get("elr", ()) and not one.recovery:
        return "ELECTED_FROM_ELR"
    return "UNCLEAN_ELECTION" if after.get("leader_recovery_state") else ""


def _outside_isr(kind: str, changes: list[Changed]) -> Iterator[Line]:
    """Yield the lines of simultaneous elections from outside ISRs: each one, or their number."""
    first, last = changes[0], changes[-1]
    if kind == "ELECTED_FROM_ELR":
        keys = _some({one.key for one in changes})
        text = f"{keys}: led by an eligible leader replica; no records are lost"
        yield Line(first.timestamp_ms, kind, Weight.NOTE, "partitions", text, last.timestamp_ms)
        return
    told = changes if len(changes) <= ALONE_MAX else []
    for one in told:
        text = f"{one.key}: broker {decoded(one.after)['leader']} leads after an unclean election"
        because: tuple[str, ...] = (
            "elected without reports from replicas: records that it lacks are lost",
        )
        weight = Weight.TROUBLE
        if one.recovery:
            recovery = decoded(one.recovery)
            because = tuple(recovery_in_words(recovery).split("; "))
            weight = Weight.TROUBLE if recovery.get("loss") else Weight.NOTE
        yield Line(one.timestamp_ms, kind, weight, "partitions", text, one.timestamp_ms, because)
    if not told:
        text = f"{counted(len(changes), 'unclean election')}: {_some({o.key for o in changes})}"
        lossy = sum(not one.recovery or bool(decoded(one.recovery).get("loss")) for one in changes)
        because = (f"{counted(lossy, 'partition')} may have lost records",)
        yield Line(
            first.timestamp_ms, kind, Weight.TROUBLE, "partitions", text, last.timestamp_ms, because
        )


def _some(keys: Iterable[str]) -> str:
    names = sorted(keys)
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _near(before: Changed, one: Changed) -> bool:
    return one.timestamp_ms - before.timestamp_ms <= BURST_MS


def _burst(changes: list[Changed]) -> Line:
    states = {one.key: decoded(one.after) for one in changes}
    without = [key for key, state in states.items() if state["leader"] < 0]
    text = f"{counted(len(states), 'partition')} changed leaders"
    if without:
        its = "its" if len(without) == 1 else "their"
        text = (
            f"{counted(len(without), 'partition')} lost {its} last available leader:"
            f" {_some(without)}"
        )
    return Line(
        changes[0].timestamp_ms,
        "PARTITIONS_OFFLINE" if without else "PARTITIONS_MOVED",
        Weight.TROUBLE if without else Weight.NOTE,
        "partitions",
        text,
        changes[-1].timestamp_ms,
        tuple(_waited_for(key, states[key]) for key in sorted(without)[:ALONE_MAX]),
    )


def _waited_for(key: str, state: dict[str, Any]) -> str:
    if members := state.get("isr") or state.get("elr"):
        if len(members) == 1:
            return f"{key} waits for {broker_list(members)}, which has all acknowledged records"
        return f"{key} waits for one of {broker_list(members)}: each has all acknowledged records"
    if last := state.get("last_known_elr"):
        return (
            f"{key} waits for {broker_list(last)}, its last leader, or for reports from all "
            "replicas"
        )
    return f"{key} waits for reports from all replicas: the disk of its last leader is lost"


def gaps(timeline: Timeline) -> Iterator[Line]:
    """Yield periods without a write after frequent writes, if no write could be committed.

    Idle clients also write nothing: at least half of the period must be explained by nodes
    reporting no leader, a stopped or silent leader, or refused writes.
    """
    halts = list(_halts(timeline))
    pauses: list[int] = []
    for before, after in pairwise(timeline.log.writes_ms):
        pause = after - before
        if len(pauses) < RECENT_WRITES // 2:
            pauses.append(pause)
            continue
        usual = median(pauses[-RECENT_WRITES:])
        if pause < max(GAP_MIN_MS, GAP_FACTOR * usual):
            pauses.append(pause)
            continue
        longest: dict[str, int] = {}
        for from_ms, until_ms, what in halts:
            if (both_ms := min(after, until_ms) - max(before, from_ms)) > 0:
                longest[what] = max(longest.get(what, 0), both_ms)
        if 2 * max(longest.values(), default=0) >= pause:
            yield Line(
                before,
                "WRITE_GAP",
                Weight.TROUBLE,
                "cluster",
                f"no write was committed for {took(pause)}; before that, one arrived every "
                f"{took(round(usual))}",
                after,
                tuple(f"for {took(ms)} of it {what}" for what, ms in longest.items()),
            )


def _halts(timeline: Timeline) -> Iterator[tuple[int, int, str]]:
    """Yield the periods in which no write could be committed: start, end, and the cause."""
    known = elected(timeline)

    def led(node_id: int, at_ms: int) -> bool:
        leaders = [one.leader_id for one in known if one.at_ms <= at_ms]
        return leaders[-1:] == [node_id]

    for line in elections(timeline):
        if line.at_ms < line.until_ms:
            yield line.at_ms, line.until_ms, "no node led"
    for group in overlapping(spans(timeline, Kind.NO_LEADER, _LEADER_KNOWN)):
        until = until_ms(group)
        yield group[0].begun.at_ms, timeline.to_ms if until < 0 else until, "no node led"
    for event in timeline.events(Kind.LOOP_STALL, Kind.DISK_STALL):
        name = "gap_ms" if event.kind == Kind.LOOP_STALL else "busy_ms"
        begin_ms = event.at_ms - event.number(name, 0)
        if event.role == "controller" and led(event.node_id, begin_ms):
            what = "was paused" if event.kind == Kind.LOOP_STALL else "waited for its disk"
            yield begin_ms, event.at_ms, f"the leader, node {event.node_id}, {what}"
    for one in spans(timeline, Kind.PEER_LOST, (Kind.PEER_REGAINED,), subject="peer_id"):
        peer, begin_ms = one.begun.number("peer_id"), one.begun.at_ms - NOTICED_MS
        if led(peer, begin_ms):
            end_ms = begin_ms + NOTICED_MS + one.lasted_ms(timeline.to_ms)
            yield begin_ms, end_ms, f"the leader, node {peer}, did not answer the others"
    for one in spans(timeline, Kind.WRITES_REFUSED, (Kind.WRITES_RESUMED, Kind.LOST_LEADERSHIP)):
        end_ms = one.begun.at_ms + one.lasted_ms(timeline.to_ms)
        yield one.begun.at_ms, end_ms, "writes were refused"


RULES = (
    elections,
    outages,
    fences,
    lao_stalls,
    alone,
    processes,
    links,
    stalls,
    alterations,
    autopilot,
    partitions,
    gaps,
)
