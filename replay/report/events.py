"""Events of the log, and incidents. Changes at one moment for one reason are one event; troubles
that began close together are one incident, the gravest first, with the changes shortly before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.metadata.words import RESOURCE_TYPES, acl_in_words, author
from replay.kernels.arrays import NEVER, Ints
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding
from replay.kernels.intervals import Names
from replay.kernels.passes import Pass, Rows
from replay.lag.result import FAILOVER, NO_BROKER, LaoStall
from replay.outages.result import Fencing
from replay.outages.service import REGISTERED_ANEW, Controller, Service, absence, fencings
from replay.report.model import (
    CRITICAL,
    MAX_EVENTS,
    MAX_INCIDENTS,
    NOTICE,
    PLANNED,
    WARNING,
    Axis,
    Event,
    Incident,
)
from replay.report.moments import Flaps, Moments, Rise, Troubled

_ON_PURPOSE = (
    RecordType.CONFIG,
    RecordType.TOPIC,
    RecordType.REMOVE_TOPIC,
    RecordType.FEATURE_LEVEL,
    RecordType.ACCESS_CONTROL_ENTRY,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
)
_COLUMNS = (
    "offset",
    "timestamp_ms",
    "type",
    "type_name",
    "principal",
    "group_id",
    "resource_type",
    "resource_name",
    "config_name",
    "config_value",
    "topic_id",
    "topic_name",
    "feature_name",
    "feature_level",
    "acl_resource_type",
    "pattern_type",
    "acl_principal",
    "host",
    "operation",
    "permission_type",
)
_TOGETHER_MS = 1_000
_LONG_MS = 10_000
"""Duration from which a hold-up of LAO is a warning, in ms: shorter ones show in the curve."""
_MAX_IDS = 8
"""Number of broker ids that an event lists."""
Row = dict[str, Any]


def of_controllers(reigns: list[Controller], served: list[Service]) -> Iterator[Event]:
    """Yield an event for each change of the controller, for as long as there was none; where the
    log does not say, only when the new one began: silence alone proves nothing. Before the first
    broker is in service, a change concerns nobody.
    """
    first_ms = min((each.begins_ms for each in served if not each.fenced), default=NEVER)
    for old, new in pairwise(reigns):
        since_ms = new.begins_ms - (absence(old, new).most_ms or 0)
        text = f"controller {old.leader_id} → {new.leader_id}, epoch {new.epoch}"
        severity = NOTICE if new.begins_ms < first_ms else WARNING
        yield Event("failover", severity, since_ms, new.begins_ms, new.begins, 1, text)


def of_brokers(served: list[Service]) -> Iterator[Event]:
    """Brokers out of service, and those that registered for the first time."""
    lost: dict[str, list[Fencing]] = defaultdict(list)
    for out in fencings(served):
        reason = out.reason or "the log does not say why"
        if out.planned:
            kind, severity, text = "left", PLANNED, f"broker {out.broker_id} left: {reason}"
        elif out.reason == REGISTERED_ANEW:
            kind, severity = "restarted", WARNING
            text = f"broker {out.broker_id} restarted, without being fenced first"
        else:
            lost[reason].append(out)
            continue
        yield Event(
            kind, severity, out.begins_ms, out.ends_ms, out.begins, 1, text, [out.broker_id]
        )
    for reason, some in lost.items():
        yield from _fenced(reason, some)
    for each in served:
        if each.fenced and not each.follows:
            text = f"broker {each.broker_id} registered"
            yield Event("joined", PLANNED, each.begins_ms, each.ends_ms, each.begins, 1, text)


def _fenced(reason: str, lost: list[Fencing]) -> Iterator[Event]:
    """Brokers that are lost at once, for one reason, are one event: an outage of a site."""
    rows: list[tuple[int, ...]] = [(out.begins_ms, index) for index, out in enumerate(lost)]
    for group in _close(rows, at=0):
        some = [lost[index] for _, index in group]
        ids = sorted({out.broker_id for out in some})
        ends = [out.ends_ms for out in some]
        text = f"{_brokers(ids)} fenced: {reason}"
        yield Event(
            "fenced",
            WARNING,
            some[0].begins_ms,
            None if None in ends else max(end for end in ends if end is not None),
            min(out.begins for out in some),
            len(ids),
            text,
            ids,
        )


def _brokers(ids: list[int]) -> str:
    """Brokers 1, 2, 3."""
    listed = ", ".join(map(str, ids[:_MAX_IDS]))
    more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
    return f"broker{'s' if len(ids) > 1 else ''} {listed}{more}"


def of_hold_ups(hold_ups: Iterable[LaoStall]) -> Iterator[Event]:
    """Yield the times at which LAO was held back."""
    for up in hold_ups:
        yield Event(
            "held_back",
            WARNING if up.waited_ms >= _LONG_MS else NOTICE,
            up.began_ms,
            None if up.last_offset is None else up.ended_ms,
            up.offset,
            up.records,
            _holders(up),
            up.broker_ids,
        )


def _holders(up: LaoStall) -> str:
    if up.broker_ids:
        return f"LAO held back by {_brokers(up.broker_ids)}"
    if up.cause == FAILOVER:
        return "LAO unknown while brokers reported to a new controller"
    if up.cause == NO_BROKER:
        return "LAO unknown, no broker was in service"
    return "LAO held back, the log does not say by which broker"


def of_findings(findings: Iterable[Finding]) -> Iterator[Event]:
    """Findings of the audit, so that an incident tells of the rule that was broken in it; those
    whose time is not known are left to the audit's table.
    """
    for each in findings:
        if each.timestamp_ms is not None:
            text = f"rule broken: {each.rule}, {each.subject}: {each.found}"
            at_ms = each.timestamp_ms
            yield Event("offence", CRITICAL, at_ms, at_ms, each.offset, 1, text)


def of_partitions(found: Troubled, names: Names) -> Iterator[Event]:
    """Partitions without a leader, and those whose ISR flapped."""
    yield from _at_once(found.leaderless, "leaderless", CRITICAL, "no leader for ", names)
    yield from _flapping(found.flaps, names)


def _flapping(flaps: Flaps, names: Names) -> Iterator[Event]:
    """Yield an event for flaps that began close together, as those of a broker that hangs and
    recovers do.
    """
    for group in _close(list(zip(*(values.tolist() for values in flaps), strict=True)), at=2):
        key, begins, begins_ms = group[0][:3]
        times = [row[5] for row in group]
        several = f"ISRs of {names.name(key)} and {len(group) - 1} more flapped"
        if len(group) == 1:
            text = f"ISR of {names.name(key)} flapped {times[0]} times"
        elif min(times) == max(times):
            text = f"{several} {times[0]} times each"
        else:
            text = f"{several} {min(times)} to {max(times)} times each"
        ends_ms = max(row[4] for row in group)
        yield Event("flapping", WARNING, begins_ms, ends_ms, begins, len(group), text)


def short_isrs(found: Troubled, names: Names, since_ms: int, until_ms: int) -> Iterator[Event]:
    """Yield the ISRs that became smaller than their replicas within a time, both ends inclusive."""
    yield from _at_once(
        found.short.within(since_ms, until_ms), "short", NOTICE, "ISR short of replicas: ", names
    )


def _at_once(
    moments: Moments, kind: str, severity: int, words: str, names: Names
) -> Iterator[Event]:
    """Moments that follow each other closely are one event: of the batches of one decision."""
    rows = zip(*(values.tolist() for values in moments), strict=True)
    for group in _close(list(rows), at=0):
        begins_ms, _, begins, _, key, *_ = group[0]
        ends_ms, spells = max(row[1] for row in group), sum(row[3] for row in group)
        more = f" and {spells - 1} more" if spells > 1 else ""
        text = f"{words}{names.name(key)}{more}"
        ended = None if ends_ms == NEVER else ends_ms
        yield Event(kind, severity, begins_ms, ended, begins, spells, text)


def _close(rows: list[tuple[int, ...]], *, at: int) -> list[list[tuple[int, ...]]]:
    """Return rows in order of the time in their column ``at``, those together that lie close."""
    groups: list[list[tuple[int, ...]]] = []
    for row in sorted(rows, key=lambda row: row[at]):
        if not groups or row[at] - groups[-1][-1][at] > _TOGETHER_MS:
            groups.append([])
        groups[-1].append(row)
    return groups


class _Within:
    """Records within some times."""

    def __init__(self, since_ms: Ints, until_ms: Ints) -> None:
        self._since_ms, self._until_ms = since_ms, until_ms
        self._found: list[Row] = []

    def take(self, table: pa.Table) -> None:
        for since_ms, until_ms in zip(
            self._since_ms.tolist(), self._until_ms.tolist(), strict=True
        ):
            at_ms = table["timestamp_ms"]
            chosen = pc.and_(pc.greater_equal(at_ms, since_ms), pc.less_equal(at_ms, until_ms))
            self._found += table.filter(chosen).to_pylist()

    def end(self) -> list[Row]:
        return self._found


def changes_on_purpose(
    log: Rows, facts: Facts, since_ms: list[int], until_ms: list[int], origin: str = ""
) -> list[Event]:
    """Return the planned changes of configs, topics, feature levels and access control entries
    within some times, both ends inclusive: one event for each kind, principal and moment.
    ``origin``: the kind of cluster that wrote the log; another system's log names no principals.
    """
    if not since_ms:
        return []
    begin = partial(_Within, np.array(since_ms), np.array(until_ms))
    rows = {
        row["offset"]: row for part in log.run(Pass(begin, _COLUMNS, _ON_PURPOSE)) for row in part
    }
    words = _words(facts)
    grouped: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    for _, row in sorted(rows.items()):
        grouped[row["timestamp_ms"], row["type"], row["principal"]].append(row)
    events = []
    for (at_ms, type_, principal), some in grouped.items():
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        what = words[type_](some[0])
        who = "" if origin else f", by {author(principal)}"
        text = f"{what}{more}{who}"
        kind = some[0]["type_name"].lower()
        events.append(Event(kind, PLANNED, at_ms, at_ms, some[0]["offset"], len(some), text))
    return events


def _words(facts: Facts) -> dict[int, Callable[[Row], str]]:
    names = {each.topic_id: each.topic_name for each in facts.topics}
    entries = {row["group_id"]: _entry(row) for row in facts.of(RecordType.ACCESS_CONTROL_ENTRY)}

    def gone(row: Row) -> str:
        return f"topic {names.get(row['topic_id']) or row['topic_id'][:8] + '…'} deleted"

    def removed(row: Row) -> str:
        return f"removed: {entries.get(row['group_id'], 'entry ' + str(row['group_id']))}"

    return {
        RecordType.CONFIG: _config,
        RecordType.TOPIC: lambda row: f"topic {row['topic_name']} created",
        RecordType.REMOVE_TOPIC: gone,
        RecordType.FEATURE_LEVEL: lambda row: f"{row['feature_name']} = {row['feature_level']}",
        RecordType.ACCESS_CONTROL_ENTRY: _entry,
        RecordType.REMOVE_ACCESS_CONTROL_ENTRY: removed,
    }


def _config(row: Row) -> str:
    resource = RESOURCE_TYPES.get(row["resource_type"], str(row["resource_type"]))
    value = "(deleted)" if row["config_value"] is None else row["config_value"]
    return f"{resource} {row['resource_name'] or '(all)'}: {row['config_name']} = {value}"


def _entry(row: Row) -> str:
    said = {"resource_type": row["acl_resource_type"], "principal": row["acl_principal"]}
    return acl_in_words(row | said)


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
