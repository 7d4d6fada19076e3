"""Incidents: troubles that began close together, the gravest first, with the changes shortly
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from replay.report.model import MAX_EVENTS, MAX_INCIDENTS, PLANNED, WARNING, Axis, Event, Incident
from replay.report.moments import Moments, Rise

GAP_MS = 60_000
"""Events that begin no further apart than this belong together."""
BEFORE_MS = 600_000
"""Longest time before an incident at which a planned change is listed, in ms."""
_NEVER = 2**62
Near = Callable[[int, int], Iterable[Event]]
"""Events that begin within a time, both ends inclusive."""


class Extent(NamedTuple):
    """Partitions of one condition: how many had it over time, and how long it lasted."""

    rise: Rise
    moments: Moments

    def within(self, since_ms: int, until_ms: int, end_ms: int) -> tuple[int, int]:
        """Return the most partitions at one time, and the partition-time in ms, of what began
        between two times, both inclusive. ``end_ms``: where the log ends.
        """
        most = self.rise.within(since_ms, until_ms)
        return most, self.moments.within(since_ms, until_ms).partition_ms(end_ms)


class Extents(NamedTuple):
    """Partitions that lost their leader, and those whose ISR became incomplete."""

    leaderless: Extent
    short: Extent


class Session:
    """Events that began close together."""

    def __init__(self, first: Event) -> None:
        self.begins, self.severity = first.offset, first.severity
        self.begins_ms = self.last_begins_ms = first.begins_ms
        self.ends_ms, self.open = first.begins_ms, False
        self.leaderless = self.short = self.leaderless_ms = self.short_ms = 0
        """Extent, with the fields of :class:`Incident`."""
        self._brokers: set[int] = set()

    @property
    def near_ms(self) -> tuple[int, int]:
        """The times between which an event that belongs to it begins, inclusive."""
        return self.begins_ms - GAP_MS, self.last_begins_ms + GAP_MS

    @property
    def brokers(self) -> int:
        """Number of brokers that its events concern."""
        return len(self._brokers)

    @property
    def gravity(self) -> tuple[int, int, int, int, int]:
        """Rank of the session: severity, then extent, then length."""
        length = self.ends_ms - self.begins_ms
        return self.severity, self.leaderless_ms, self.short_ms, self.brokers, length

    def measure(self, extents: Extents, end_ms: int) -> None:
        """Find the extent of the session."""
        self.leaderless, self.leaderless_ms = extents.leaderless.within(*self.near_ms, end_ms)
        self.short, self.short_ms = extents.short.within(*self.near_ms, end_ms)

    def add(self, event: Event, axis: Axis) -> None:
        """One that began no earlier."""
        self.begins = min(self.begins, event.offset)
        self.last_begins_ms = event.begins_ms
        self.severity = max(self.severity, event.severity)
        self._brokers.update(event.broker_ids)
        self.open |= event.ends_ms is None
        self.ends_ms = max(self.ends_ms, axis.ends_ms if event.ends_ms is None else event.ends_ms)


def find_sessions(
    troubles: Iterable[Event], axis: Axis, extents: Extents
) -> tuple[list[Session], int]:
    """Return the gravest, the gravest first, and the number of all.

    A lesser event (severity below WARNING) makes no incident, but is listed with one.
    """
    found: list[Session] = []
    grave = (event for event in troubles if event.severity >= WARNING)
    for event in sorted(grave, key=lambda each: (each.begins_ms, each.offset)):
        if not found or event.begins_ms - found[-1].last_begins_ms > GAP_MS:
            found.append(Session(event))
        found[-1].add(event, axis)
    for each in found:
        each.measure(extents, axis.ends_ms)
    # The first of equal ones first.
    found.sort(key=lambda each: (each.begins_ms, each.begins))
    return sorted(found, key=lambda each: each.gravity, reverse=True)[:MAX_INCIDENTS], len(found)


def incidents_of(
    sessions: list[Session], troubles: list[Event], notices: Near, on_purpose: list[Event]
) -> list[Incident]:
    """Return the incident of each session. ``notices``: lesser events of its time; ``on_purpose``:
    planned changes.
    """
    planned = [*on_purpose, *(event for event in troubles if event.severity == PLANNED)]
    others = [event for event in troubles if event.severity != PLANNED]
    return [
        _incident(number, session, others, notices, planned)
        for number, session in enumerate(sessions, 1)
    ]


def _incident(
    number: int, session: Session, others: list[Event], notices: Near, planned: list[Event]
) -> Incident:
    since_ms, until_ms = session.near_ms
    mine = [event for event in others if since_ms <= event.begins_ms <= until_ms]
    mine += notices(since_ms, until_ms)
    # A change after the incident began is no reason for it.
    before = [
        event
        for event in planned
        if session.begins_ms - BEFORE_MS <= event.begins_ms <= session.begins_ms
    ]
    mine.sort(key=_grave)
    before.sort(key=lambda event: (-event.offset, *_grave(event)))
    events = sorted(mine[:MAX_EVENTS], key=_in_order)
    return Incident(
        number=number,
        severity=session.severity,
        begins_ms=session.begins_ms,
        ends_ms=None if session.open else session.ends_ms,
        offset=session.begins,
        title=_title(events),
        total=len(mine),
        events=events,
        before=sorted(before[:MAX_EVENTS], key=_in_order),
        leaderless=session.leaderless,
        short=session.short,
        leaderless_ms=session.leaderless_ms,
        short_ms=session.short_ms,
        brokers=session.brokers,
    )


def _grave(event: Event) -> tuple[int, int, int, int]:
    length = (_NEVER if event.ends_ms is None else event.ends_ms) - event.begins_ms
    return -event.severity, -event.count, -length, event.offset


def _in_order(event: Event) -> tuple[int, int, str]:
    return event.begins_ms, event.offset, event.kind


def _title(events: list[Event]) -> str:
    """Return the gravest two kinds in words: what an operator would call it."""
    grave = (event for event in events if event.severity >= WARNING)
    gravest = sorted(grave, key=lambda event: (-event.severity, event.begins_ms, event.offset))
    texts: dict[str, str] = {}
    for event in gravest:
        texts.setdefault(event.kind, event.text)
    title = "; ".join(list(texts.values())[:2])
    return title[:1].upper() + title[1:]
