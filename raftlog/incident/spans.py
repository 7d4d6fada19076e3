"""Spans of time that events of one node open and close, and those that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raftlog.incident.evidence import Evidence
from raftlog.incident.line import took
from raftlog.journal.event import Kind, NodeEvent

_LIFE = (Kind.STARTED, Kind.STOPPED)
"""No state of a process outlives it."""


class Span(NamedTuple):
    """A state of one node. ``ended``: the event that closed it; None: it is open at the end."""

    begun: NodeEvent
    ended: NodeEvent | None

    @property
    def until_ms(self) -> int:
        """When it ended; -1: it is open at the end."""
        return -1 if self.ended is None else self.ended.at_ms

    def lasted_ms(self, to_ms: int) -> int:
        """Its length; ``to_ms``: the end of the evidence."""
        return (to_ms if self.ended is None else self.ended.at_ms) - self.begun.at_ms


def spans(seen: Evidence, opens: Kind, closes: Iterable[Kind], subject: str = "") -> list[Span]:
    """All spans that one kind of event opens, by their beginnings.

    Only the node that opened a span closes it, by an event of ``closes`` about the same
    ``subject`` (a detail), or by its own start or stop. Where its journal left events out, the
    closing event may be among them: such a span has no length, and is dropped [the story names the
    gap as missing].
    """
    closing = frozenset(closes)
    open_: dict[tuple[str, int, int], NodeEvent] = {}
    found = []
    for event in seen.events():
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
    """Groups of spans, ascending, each of which overlaps with one before it."""
    group: list[Span] = []
    for one in found:
        if group and one.begun.at_ms > until_ms(group) >= 0:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def until_ms(group: list[Span]) -> int:
    """When the last of them ended; -1: one is open at the end."""
    ends = [one.until_ms for one in group]
    return -1 if -1 in ends else max(ends)


def for_how_long(group: list[Span], before_ms: int = 0) -> str:
    """``for 22 s``, ``for up to 22 s`` where their lengths differ; of spans that have ended.

    ``before_ms``: how long each had lasted when it was noticed.
    """
    lengths = sorted(one.lasted_ms(0) + before_ms for one in group if one.ended is not None)
    most = "" if took(lengths[0]) == took(lengths[-1]) else "up to "
    return f"for {most}{took(lengths[-1])}"
