"""What people and programs changed, what that did to partitions, and when nothing was written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from raftlog.incident.evidence import Evidence, decoded
from raftlog.incident.line import Line, Weight, took
from raftlog.metadata.changes import Changed
from raftlog.metadata.differences import field_changes, raw, words
from raftlog.plural import counted

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
        together: list[Changed] = []
        for change in seen.changes(kind):
            if together and (
                change.principal != together[-1].principal
                or change.timestamp_ms - together[-1].timestamp_ms > TOGETHER_MS
            ):
                yield from _told(together)
                together = []
            together.append(change)
        yield from _told(together)


def _told(changes: list[Changed]) -> Iterator[Line]:
    if not changes:
        return
    first, last = changes[0], changes[-1]
    by = first.principal or "the controller"
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
    burst: list[Changed] = []
    for change in seen.changes("partition"):
        if change.before is None or change.after is None:
            continue
        if decoded(change.before)["leader"] == decoded(change.after)["leader"]:
            continue
        if burst and change.timestamp_ms - burst[-1].timestamp_ms > BURST_MS:
            yield _burst(burst)
            burst = []
        burst.append(change)
    if burst:
        yield _burst(burst)


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
