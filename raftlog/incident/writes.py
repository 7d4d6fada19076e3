"""What people and programs changed, what that did to partitions, and when nothing was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import TypeVar

from raftlog.incident.evidence import Evidence, decoded
from raftlog.incident.line import Line, Weight, took
from raftlog.metadata.authors import author
from raftlog.metadata.changes import Changed
from raftlog.metadata.differences import field_changes, raw, words
from raftlog.plural import counted

T = TypeVar("T")

ALONE_MAX = 3
"""More changes of a kind by one principal at a time are told as a number."""
TOGETHER_MS = 5_000
BURST_MS = 2_000
GAP_MIN_MS = 1_000
GAP_FACTOR = 20
RECENT_WRITES = 50
"""A gap is one if the writes before it came often."""
_TOLD = ("topic", "config", "acl", "voters", "feature", "hostname")


def alterations(seen: Evidence) -> Iterator[Line]:
    """Changes of topics, configs, ACLs, voters, features and hostnames."""
    for kind in _TOLD:
        for together in groups(seen.changes(kind), _belong):
            yield from _told(together)


def groups(items: Iterable[T], belong: Callable[[T, T], bool]) -> Iterator[list[T]]:
    """Neighbours that belong together; each is compared with the one before it."""
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


def _told(changes: list[Changed]) -> Iterator[Line]:
    first, last = changes[0], changes[-1]
    by = _author(first)
    if len(changes) <= ALONE_MAX:
        for one in changes:
            what = f"{one.kind} {one.key}".rstrip()
            fields = field_changes(one.before, one.after)
            said = words(raw(one.before), raw(one.after), fields, one.kind).replace("\n", "; ")
            yield _line(one, f"{by} changed {what}: {said}", one.timestamp_ms)
        return
    keys = sorted({one.key for one in changes})
    names = ", ".join(keys[:2]) + (", …" if len(keys) > 2 else "")
    kinds = counted(len(changes), "change")
    yield _line(first, f"{by} made {kinds} of {first.kind} {names}", last.timestamp_ms)


def _line(one: Changed, text: str, until_ms: int) -> Line:
    weight = Weight.CHANGE if one.principal else Weight.NOTE
    return Line(one.timestamp_ms, "CHANGED", weight, one.kind, text, until_ms)


def partitions(seen: Evidence) -> Iterator[Line]:
    """Leaders of partitions that moved or were missing, a line for each burst."""
    moved = (
        one
        for one in seen.changes("partition")
        if one.before is not None
        and one.after is not None
        and decoded(one.before)["leader"] != decoded(one.after)["leader"]
    )
    yield from map(_burst, groups(moved, _near))


def _near(before: Changed, one: Changed) -> bool:
    return one.timestamp_ms - before.timestamp_ms <= BURST_MS


def _burst(changes: list[Changed]) -> Line:
    last = {one.key: decoded(one.after)["leader"] for one in changes}
    without = [key for key, leader in last.items() if leader < 0]
    text = f"{counted(len(last), 'partition')} got another leader"
    if without:
        text = (
            f"{counted(len(without), 'partition')} lost the last leader that could serve:"
            f" {', '.join(sorted(without)[:3])}{', …' if len(without) > 3 else ''}"
        )
    return Line(
        changes[0].timestamp_ms,
        "PARTITIONS_OFFLINE" if without else "PARTITIONS_MOVED",
        Weight.TROUBLE if without else Weight.NOTE,
        "partitions",
        text,
        changes[-1].timestamp_ms,
    )


def gaps(seen: Evidence) -> Iterator[Line]:
    """Times without a write, where writes had come often and came again."""
    times = seen.log.writes_ms
    pauses: list[int] = []
    for before, after in pairwise(times):
        pause = after - before
        if len(pauses) >= RECENT_WRITES // 2:
            usual = median(pauses[-RECENT_WRITES:])
            if pause >= max(GAP_MIN_MS, GAP_FACTOR * usual):
                yield Line(
                    before,
                    "WRITE_GAP",
                    Weight.TROUBLE,
                    "cluster",
                    f"no write was committed for {took(pause)}; before, one came every"
                    f" {took(round(usual))}",
                    after,
                )
                continue
        pauses.append(pause)
