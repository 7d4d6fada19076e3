"""Events and incidents. Simultaneous changes with the same reason form one event. Troubles that
began close together form one incident; incidents are ranked by gravity, and list the planned
changes that preceded them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.metadata.words import RESOURCE_TYPES, acl_in_words, author
from replay.kernels.arrays import NEVER
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding
from replay.kernels.intervals import Names
from replay.kernels.passes import Pass, Rows
from replay.lag.hold_ups import FAILOVER, NO_BROKER, HoldUp
from replay.outages.partitions import Moments, Troubled
from replay.outages.service import (
    REGISTERED_ANEW,
    Controller,
    Fencing,
    Service,
    absence,
    fencings,
)
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

_TOGETHER_MS = 1_000
_LONG_MS = 10_000
"""Minimum duration, in ms, at which a hold-up of LAO is a warning; shorter ones appear only in the
curve.
"""
_MAX_IDS = 8
"""Maximum number of broker ids that an event lists."""
GAP_MS = 60_000
"""Longest gap between the beginnings of events of one incident, in ms."""
BEFORE_MS = 600_000
"""Time in ms before an incident from which planned changes are listed with it."""
Row = dict[str, Any]
One = TypeVar("One")


def of_controllers(reigns: list[Controller], served: list[Service]) -> Iterator[Event]:
    """Yield an event for each change of the controller. It lasts as long as there was no
    controller, or only an instant if the log does not show that, as silence alone proves nothing. A
    change before the first broker is in service affects no broker, so it is only a notice.
    """
    first_ms = min((each.begins_ms for each in served if not each.fenced), default=NEVER)
    for old, new in pairwise(reigns):
        since_ms = new.begins_ms - (absence(old, new).most_ms or 0)
        text = f"controller {old.leader_id} → {new.leader_id}, epoch {new.epoch}"
        severity = NOTICE if new.begins_ms < first_ms else WARNING
        yield Event("failover", severity, since_ms, new.begins_ms, new.begins, 1, text)


def of_brokers(served: list[Service]) -> Iterator[Event]:
    """Yield events for brokers that were out of service, and for first registrations. Brokers lost
    at the same time for the same reason (e.g. in the outage of a site) form one event.
    """
    lost: dict[str, list[Fencing]] = defaultdict(list)
    for out in fencings(served):
        times, ids = (out.begins_ms, out.ends_ms, out.begins), [out.broker_id]
        reason = out.reason or "reason not recorded"
        if out.planned:
            yield Event("left", PLANNED, *times, 1, f"broker {out.broker_id} left: {reason}", ids)
        elif out.reason == REGISTERED_ANEW:
            text = f"broker {out.broker_id} restarted, without being fenced first"
            yield Event("restarted", WARNING, *times, 1, text, ids)
        else:
            lost[reason].append(out)
    for reason, every in lost.items():
        for some in _close([(out.begins_ms, out) for out in every]):
            ids = sorted({out.broker_id for out in some})
            ends = [out.ends_ms for out in some]
            ends_ms = None if None in ends else max(end for end in ends if end is not None)
            text, offset = f"{_brokers(ids)} fenced: {reason}", min(out.begins for out in some)
            yield Event("fenced", WARNING, some[0].begins_ms, ends_ms, offset, len(ids), text, ids)
    for each in served:
        if each.fenced and not each.follows:
            text = f"broker {each.broker_id} registered"
            yield Event("joined", PLANNED, each.begins_ms, each.ends_ms, each.begins, 1, text)


def _brokers(ids: list[int]) -> str:
    """Return brokers as text, such as: brokers 1, 2, 3."""
    listed = ", ".join(map(str, ids[:_MAX_IDS]))
    more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
    return f"broker{'s' if len(ids) > 1 else ''} {listed}{more}"


def of_hold_ups(hold_ups: Iterable[HoldUp]) -> Iterator[Event]:
    """Yield an event for each period in which LAO was held back."""
    for up in hold_ups:
        if up.broker_ids:
            text = f"LAO held back by {_brokers(up.broker_ids)}"
        elif up.cause == FAILOVER:
            text = "LAO unknown while brokers reported to a new controller"
        elif up.cause == NO_BROKER:
            text = "LAO unknown: no broker was in service"
        else:
            text = "LAO held back by an unknown broker"
        severity = WARNING if up.waited_ms >= _LONG_MS else NOTICE
        ends_ms = None if up.last_offset is None else up.ended_ms
        yield Event(
            "held_back", severity, up.began_ms, ends_ms, up.offset, up.records, text, up.broker_ids
        )


def of_findings(findings: Iterable[Finding]) -> Iterator[Event]:
    """Yield an event for each audit finding with a known time."""
    for each in findings:
        if each.timestamp_ms is not None:
            text = f"rule broken: {each.rule}, {each.subject}: {each.found}"
            at_ms = each.timestamp_ms
            yield Event("offence", CRITICAL, at_ms, at_ms, each.offset, 1, text)


def of_leaderless(found: Troubled, names: Names) -> Iterator[Event]:
    """Yield an event for partitions that lost their leaders at the same time."""
    yield from _at_once(found.leaderless.moments, "leaderless", CRITICAL, "no leader for ", names)


def _at_once(
    moments: Moments, kind: str, severity: int, words: str, names: Names
) -> Iterator[Event]:
    """Yield an event for moments in quick succession, such as those of a decision's batches."""
    rows = zip(*(values.tolist() for values in moments), strict=True)
    for group in _close([(row[0], row) for row in rows]):
        begins_ms, _, begins, _, key, *_ = group[0]
        ends_ms, spells = max(row[1] for row in group), sum(row[3] for row in group)
        more = f" and {spells - 1} more" if spells > 1 else ""
        text = f"{words}{names.name(key)}{more}"
        ended = None if ends_ms == NEVER else ends_ms
        yield Event(kind, severity, begins_ms, ended, begins, spells, text)


def _close(rows: list[tuple[int, One]]) -> list[list[One]]:
    """Group values whose times are close together, in order of time."""
    groups: list[list[One]] = []
    last_ms = -NEVER
    for at_ms, value in sorted(rows, key=lambda row: row[0]):
        if at_ms - last_ms > _TOGETHER_MS:
            groups.append([])
        groups[-1].append(value)
        last_ms = at_ms
    return groups


_ON_PURPOSE = (
    RecordType.CONFIG,
    RecordType.TOPIC,
    RecordType.REMOVE_TOPIC,
    RecordType.FEATURE_LEVEL,
    RecordType.ACCESS_CONTROL_ENTRY,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
)
_ENTRY = ("resource_name", "pattern_type", "host", "operation", "permission_type")
_COLUMNS = (
    *("offset", "timestamp_ms", "type", "type_name", "principal", "group_id", *_ENTRY),
    *("resource_type", "config_name", "config_value", "topic_id", "topic_name"),
    *("feature_name", "feature_level", "acl_resource_type", "acl_principal"),
)


class _Within:
    """Part of a pass that collects the records in some time ranges, both ends inclusive."""

    def __init__(self, times: list[tuple[int, int]]) -> None:
        self._times = times
        self._found: list[Row] = []

    def take(self, table: pa.Table) -> None:
        at_ms = table["timestamp_ms"]
        chosen = pc.and_(False, pc.equal(at_ms, 0))
        for since_ms, until_ms in self._times:
            inside = pc.and_(pc.greater_equal(at_ms, since_ms), pc.less_equal(at_ms, until_ms))
            chosen = pc.or_(chosen, inside)
        self._found += table.filter(chosen).to_pylist()

    def end(self) -> list[Row]:
        return self._found


def changes_on_purpose(
    log: Rows, facts: Facts, times: list[tuple[int, int]], origin: str = ""
) -> list[Event]:
    """Return planned changes to configs, topics, feature levels and access control entries in some
    time ranges, both ends inclusive: one event per kind, principal and moment.

    ``origin``: the kind of cluster that wrote the log; other systems' logs do not name principals.
    """
    if not times:
        return []
    rows = [
        row
        for part in log.run(Pass(partial(_Within, times), _COLUMNS, _ON_PURPOSE))
        for row in part
    ]
    known = {each.topic_id: each.topic_name for each in facts.topics} | {
        row["group_id"]: _entry(row) for row in facts.of(RecordType.ACCESS_CONTROL_ENTRY)
    }
    grouped: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["offset"]):
        grouped[row["timestamp_ms"], row["type"], row["principal"]].append(row)
    events = []
    for (at_ms, _, principal), some in grouped.items():
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        who = "" if origin else f", by {author(principal)}"
        text = f"{_change(some[0], known)}{more}{who}"
        kind = some[0]["type_name"].lower()
        events.append(Event(kind, PLANNED, at_ms, at_ms, some[0]["offset"], len(some), text))
    return events


def _change(row: Row, known: dict[str, Any]) -> str:
    """Return a text about a planned change. ``known``: topic names, and texts about ACL entries, by
    id.
    """
    match row["type"]:
        case RecordType.CONFIG:
            resource = RESOURCE_TYPES.get(row["resource_type"], str(row["resource_type"]))
            value = "(deleted)" if row["config_value"] is None else row["config_value"]
            return f"{resource} {row['resource_name'] or '(all)'}: {row['config_name']} = {value}"
        case RecordType.TOPIC:
            return f"topic {row['topic_name']} created"
        case RecordType.REMOVE_TOPIC:
            return f"topic {known.get(row['topic_id']) or row['topic_id'][:8] + '…'} deleted"
        case RecordType.FEATURE_LEVEL:
            return f"{row['feature_name']} = {row['feature_level']}"
        case RecordType.ACCESS_CONTROL_ENTRY:
            return _entry(row)
    return f"removed: {known.get(row['group_id'], 'entry ' + str(row['group_id']))}"


def _entry(row: Row) -> str:
    fields = {"resource_type": row["acl_resource_type"], "principal": row["acl_principal"]}
    return acl_in_words(row | fields)


class Session:
    """Events that began close together."""

    def __init__(self, first: Event) -> None:
        self.begins, self.severity = first.offset, first.severity
        self.begins_ms = self.last_begins_ms = first.begins_ms
        self.ends_ms, self.open = first.begins_ms, False
        self.leaderless = self.short = self.leaderless_ms = self.short_ms = 0
        """Extent of the incident; see :class:`Incident`."""
        self._brokers: set[int] = set()

    @property
    def near_ms(self) -> tuple[int, int]:
        """The times between which another event of the session must begin, inclusive."""
        return self.begins_ms - GAP_MS, self.last_begins_ms + GAP_MS

    @property
    def brokers(self) -> int:
        """Number of affected brokers."""
        return len(self._brokers)

    @property
    def gravity(self) -> tuple[int, int, int, int, int]:
        """Sort key: severity, then extent, then length."""
        length = self.ends_ms - self.begins_ms
        return self.severity, self.leaderless_ms, self.short_ms, self.brokers, length

    def add(self, event: Event, axis: Axis) -> None:
        """Add an event that began no earlier than those before."""
        self.begins = min(self.begins, event.offset)
        self.last_begins_ms = event.begins_ms
        self.severity = max(self.severity, event.severity)
        self._brokers.update(event.broker_ids)
        self.open |= event.ends_ms is None
        self.ends_ms = max(self.ends_ms, axis.ends_ms if event.ends_ms is None else event.ends_ms)


def find_sessions(
    troubles: Iterable[Event], axis: Axis, found: Troubled
) -> tuple[list[Session], int]:
    """Return the most severe sessions, worst first, and the total number of sessions.

    Events below WARNING do not form an incident, but are listed with one.
    """
    sessions: list[Session] = []
    grave = (event for event in troubles if event.severity >= WARNING)
    for event in sorted(grave, key=lambda each: (each.begins_ms, each.offset)):
        if not sessions or event.begins_ms - sessions[-1].last_begins_ms > GAP_MS:
            sessions.append(Session(event))
        sessions[-1].add(event, axis)
    for one in sessions:
        one.leaderless, one.leaderless_ms = found.leaderless.extent(*one.near_ms, axis.ends_ms)
        one.short, one.short_ms = found.short.extent(*one.near_ms, axis.ends_ms)
    # Equally grave sessions stay in order of time.
    sessions.sort(key=lambda each: (each.begins_ms, each.begins))
    worst = sorted(sessions, key=lambda each: each.gravity, reverse=True)
    return worst[:MAX_INCIDENTS], len(sessions)


def incident_of(
    number: int,
    session: Session,
    troubles: list[Event],
    planned: list[Event],
    found: Troubled,
    names: Names,
) -> Incident:
    """Return a session's incident. ``troubles``: all events. ``planned``: planned changes."""
    since_ms, until_ms = session.near_ms
    mine = [
        event
        for event in troubles
        if event.severity != PLANNED and since_ms <= event.begins_ms <= until_ms
    ]
    short = found.short.began(since_ms, until_ms)
    mine += _at_once(short, "short", NOTICE, "ISR short of replicas: ", names)
    # A change after the incident began cannot have caused it.
    before = [
        event
        for event in (*planned, *troubles)
        if event.severity == PLANNED
        and session.begins_ms - BEFORE_MS <= event.begins_ms <= session.begins_ms
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
    length = (NEVER if event.ends_ms is None else event.ends_ms) - event.begins_ms
    return -event.severity, -event.count, -length, event.offset


def _in_order(event: Event) -> tuple[int, int, str]:
    return event.begins_ms, event.offset, event.kind


def _title(events: list[Event]) -> str:
    """Return the name of an incident, made of its two most severe kinds of events."""
    grave = (event for event in events if event.severity >= WARNING)
    gravest = sorted(grave, key=lambda event: (-event.severity, event.begins_ms, event.offset))
    texts: dict[str, str] = {}
    for event in gravest:
        texts.setdefault(event.kind, event.text)
    title = "; ".join(list(texts.values())[:2])
    return title[:1].upper() + title[1:]
