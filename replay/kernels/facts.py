"""Facts, derived from rare records, against which many others are checked: the registered brokers,
the topics and the feature levels at each offset. Their size grows only with the number of rare
records, and every worker receives all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.entities import Cause
from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import METADATA_VERSION
from replay.kernels.arrays import NEVER, Bools, Ints, Known, typed

BROKER_TYPES = (
    RecordType.REGISTER_BROKER,
    RecordType.BROKER_REGISTRATION_CHANGE,
    RecordType.UNREGISTER_BROKER,
)
RARE = frozenset(
    {
        *BROKER_TYPES,
        RecordType.TOPIC,
        RecordType.REMOVE_TOPIC,
        RecordType.FEATURE_LEVEL,
        RecordType.LEADER_CHANGE,
        RecordType.RECOVERY,
        RecordType.VOTERS,
        RecordType.OPEN_CLIENT,
        RecordType.CLOSE_CLIENT,
        RecordType.HOSTNAME,
        RecordType.REMOVE_LEASE,
        RecordType.ACCESS_CONTROL_ENTRY,
        RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
        RecordType.IMPORTED,
    }
)
"""Record types that many rules need and few records have."""
RARE_COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "batch_base_offset",
    "batch_last_offset",
    "type",
    "group_id",
    "broker_id",
    "broker_epoch",
    "incarnation_id",
    "rack",
    "fenced",
    "in_controlled_shutdown",
    "reason",
    "cause",
    "topic_id",
    "topic_name",
    "feature_name",
    "feature_level",
    "leader_id",
    "voters",
    "client_principal",
    "acl_resource_type",
    "resource_name",
    "pattern_type",
    "acl_principal",
    "host",
    "operation",
    "permission_type",
    "imported_name",
    "imported_fields",
    "supported_features",
    "log_dirs",
)
Row = dict[str, Any]


class BrokerSpan(NamedTuple):
    """A period during which a registration was unchanged; ``ends`` is exclusive, NEVER if the
    period is open.

    ``registration``: whether the period starts with a registration rather than a change to one.
    ``batch_…``: the batch of the record that starts the period, inclusive. ``supported_features``:
    ranges as registered. ``log_dirs``: all directories that the broker has registered until then;
    None if unknown.
    """

    broker_id: int
    broker_epoch: int
    begins: int
    begins_ms: int
    epoch: int
    fenced: bool | None
    in_controlled_shutdown: bool | None
    rack: str | None
    reason: str | None
    cause: str | None
    registration: bool
    incarnation_id: str | None
    principal: str | None
    batch_base_offset: int
    batch_last_offset: int
    supported_features: list[Row] | None
    log_dirs: list[str] | None
    ends: int = NEVER
    ends_ms: int | None = None


class TopicLife(NamedTuple):
    """The life of a topic, from its creation to its removal (exclusive, NEVER if it exists)."""

    topic_id: str
    topic_name: str | None
    begins: int
    begins_ms: int
    ends: int = NEVER
    ends_ms: int | None = None


BROKER_SPANS = typed(
    "broker_id", "broker_epoch", "begins", "ends", "begins_ms", "ends_ms", "epoch", "fenced",
    "in_controlled_shutdown", "rack", "reason", "cause", "registration", "incarnation_id",
    "principal", "batch_base_offset", "batch_last_offset", "supported_features", "log_dirs",
    registration=pa.bool_(),
)  # fmt: skip
"""Columns of broker spans; ``ends`` is null if a span has not ended."""
TOPIC_LIVES = typed("topic_id", "topic_name", "begins", "ends", "begins_ms", "ends_ms")
"""Columns of topic lives; ``ends`` is null if the topic exists."""


def spans_table(spans: Iterable[BrokerSpan | TopicLife], schema: pa.Schema) -> pa.Table:
    """Return spans as rows of BROKER_SPANS or TOPIC_LIVES."""
    rows = [span._asdict() | ({"ends": None} if span.ends == NEVER else {}) for span in spans]
    return pa.Table.from_pylist(rows, schema)


@dataclass
class Facts:
    """Facts of a log. ``rare``: the records of the types RARE below ``end_offset``, in order, with
    the columns RARE_COLUMNS.

    For a history given in pieces, ``brokers_before`` has each broker's last span before this piece,
    ended or not, and ``topics_before`` the topics that existed then. Only findings at or after
    ``since`` count. ``super_users``, ``allow_everyone_if_no_acl_found``: the nodes' configuration,
    which the log does not record. ``state_from``: records below this offset are a state, not
    history.
    """

    rare: pa.Table
    end_offset: int
    since: int = 0
    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    brokers_before: list[BrokerSpan] = field(default_factory=list)
    topics_before: list[TopicLife] = field(default_factory=list)
    state_from: int = 0

    def of(self, *types: RecordType, columns: Iterable[str] = RARE_COLUMNS) -> list[Row]:
        """Return the records of some types, with some of their columns."""
        chosen = pc.is_in(self.rare["type"], pa.array([int(each) for each in types], pa.int32()))
        return self.rare.select(list(columns)).filter(chosen).to_pylist()

    @cached_property
    def brokers(self) -> list[BrokerSpan]:
        """The spans of all brokers, in order within each broker."""
        return list(_broker_spans(self.brokers_before, self.of(*BROKER_TYPES), self.state_from))

    @cached_property
    def standings(self) -> Standings:
        """The same spans, for lookups of many brokers at once."""
        return Standings(self.brokers)

    @cached_property
    def topics(self) -> list[TopicLife]:
        """The lives of all topics, in order within each topic."""
        columns = ("type", "topic_id", "topic_name", "offset", "timestamp_ms")
        rows = self.of(RecordType.TOPIC, RecordType.REMOVE_TOPIC, columns=columns)
        return list(_topic_lives(self.topics_before, rows))

    @cached_property
    def lives_of(self) -> dict[str, list[TopicLife]]:
        """Topic id -> its lives."""
        lives: dict[str, list[TopicLife]] = defaultdict(list)
        for life in self.topics:
            lives[life.topic_id].append(life)
        return dict(lives)

    @cached_property
    def numbers_of(self) -> dict[str, int]:
        """Topic id -> the topic's number, which is the same in all tasks."""
        return {topic_id: number for number, topic_id in enumerate(self.lives_of)}

    @cached_property
    def cleared(self) -> tuple[Ints, dict[str, Ints]]:
        """The offsets at which the eligible leader replicas of all topics were cleared; and by
        topic id, those of single topics. Only Kafka's logs contain such records.
        """
        of_all: list[int] = []
        of_topic: dict[str, list[int]] = defaultdict(list)
        columns = ("imported_name", "imported_fields", "offset")
        for row in self.of(RecordType.IMPORTED, columns=columns):
            if row["imported_name"] != "ClearElrRecord" or row["imported_fields"] is None:
                continue
            name, offset = msgspec.json.decode(row["imported_fields"])["topic_name"], row["offset"]
            if not name:
                of_all.append(offset)
            for life in self.topics if name else ():
                if life.topic_name == name and life.begins < offset < life.ends:
                    of_topic[life.topic_id].append(offset)
        return (
            np.array(of_all, np.int64),
            {topic_id: np.array(each, np.int64) for topic_id, each in of_topic.items()},
        )

    @cached_property
    def levels(self) -> list[tuple[int, int]]:
        """Offset and level of each change to metadata.version."""
        rows = self.of(
            RecordType.FEATURE_LEVEL, columns=("feature_name", "offset", "feature_level")
        )
        return [
            (row["offset"], row["feature_level"])
            for row in rows
            if row["feature_name"] == METADATA_VERSION
        ]

    def level_at(self, offset: int) -> int | None:
        """Return the metadata.version that applies at an offset, or None if there is none yet."""
        level = None
        for begins, value in self.levels:
            if begins > offset:
                break
            level = value
        return level


def _broker_spans(
    before: list[BrokerSpan], rows: list[Row], state_from: int
) -> Iterator[BrokerSpan]:
    of_broker: dict[int, list[Row | BrokerSpan]] = defaultdict(list)
    for span in before:
        of_broker[span.broker_id].append(span)
    for row in rows:
        of_broker[row["broker_id"]].append(row)
    for events in of_broker.values():
        yield from _spans_of_one(events, state_from)


def _spans_of_one(events: list[Row | BrokerSpan], state_from: int) -> Iterator[BrokerSpan]:
    current: BrokerSpan | None = None
    known: Row = {}
    for event in events:
        if isinstance(event, BrokerSpan):
            known = event._asdict()
            current = event if event.ends == NEVER else None
            if current is None:
                yield event
            continue
        if current is not None:
            yield current._replace(ends=event["offset"], ends_ms=event["timestamp_ms"])
        known["log_dirs"] = _log_dirs(known, event, state_from)
        for name in _KEPT:
            if event[name] is not None:
                known[name] = event[name]
        current = None
        if event["type"] != RecordType.UNREGISTER_BROKER:
            current = _span(event, known)
    if current is not None:
        yield current


_KEPT = ("fenced", "in_controlled_shutdown", "rack", "incarnation_id", "supported_features")


def _log_dirs(known: Row, event: Row, state_from: int) -> list[str] | None:
    """Return all directories registered so far, or None if they are unknown because the log begins
    with a state.
    """
    before = known.get("log_dirs", None if event["offset"] < state_from else [])
    return None if before is None else sorted({*before, *(event["log_dirs"] or ())})


def _span(event: Row, known: Row) -> BrokerSpan:
    registered = event["type"] == RecordType.REGISTER_BROKER
    return BrokerSpan(
        broker_id=event["broker_id"],
        broker_epoch=event["broker_epoch"],
        begins=event["offset"],
        begins_ms=event["timestamp_ms"],
        epoch=event["epoch"],
        fenced=known.get("fenced"),
        in_controlled_shutdown=known.get("in_controlled_shutdown"),
        rack=known.get("rack"),
        reason="registered" if registered else event["reason"],
        cause=Cause.REGISTERED.name if registered else event["cause"],
        registration=registered,
        incarnation_id=known.get("incarnation_id"),
        principal=event["principal"],
        batch_base_offset=event["batch_base_offset"],
        batch_last_offset=event["batch_last_offset"],
        supported_features=known.get("supported_features"),
        log_dirs=known["log_dirs"],
    )


def _topic_lives(before: list[TopicLife], rows: list[Row]) -> Iterator[TopicLife]:
    alive = {life.topic_id: life for life in before}
    for row in rows:
        life = alive.pop(row["topic_id"], None)
        if life is not None:
            yield life._replace(ends=row["offset"], ends_ms=row["timestamp_ms"])
        if row["type"] == RecordType.TOPIC:
            alive[row["topic_id"]] = TopicLife(
                row["topic_id"], row["topic_name"], row["offset"], row["timestamp_ms"]
            )
    yield from alive.values()


class Standings:
    """A lookup of the broker spans that apply at given offsets, for many brokers at once."""

    def __init__(self, spans: list[BrokerSpan]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.broker_id, span.begins))
        self._brokers = np.array([span.broker_id for span in self.spans], np.int64)
        self.begins = np.array([span.begins for span in self.spans], np.int64)
        self.ends = np.array([span.ends for span in self.spans], np.int64)
        self.epochs = np.array([span.broker_epoch for span in self.spans], np.int64)
        self.inactive = np.array(
            [bool(span.fenced or span.in_controlled_shutdown) for span in self.spans], np.bool_
        )
        self._known = Known(self._brokers)

    def near(self, first: int, last: int) -> Near:
        """Return the spans that apply anywhere in a range of offsets, both ends inclusive."""
        return Near(self, np.flatnonzero((self.ends > first) & (self.begins <= last)), first)


class Near:
    """The spans that apply within a slice of the log: few, so lookups are cheap."""

    def __init__(self, standings: Standings, chosen: Ints, first: int) -> None:
        self._first = first
        self._chosen = chosen
        self._ends = standings.ends[chosen]
        self._known = standings._known
        codes, _ = self._known.find(standings._brokers[chosen])
        self._keys = (codes << 40) + np.maximum(standings.begins[chosen] - first, 0)

    def at(self, brokers: Ints, offsets: Ints) -> tuple[Ints, Bools]:
        """Return, for each broker, the index of its span that applies at the given offset, and
        whether there is one.
        """
        count = len(self._chosen)
        if not count:
            return np.zeros(len(brokers), np.int64), np.zeros(len(brokers), np.bool_)
        code, known = self._known.find(brokers)
        keys = (code << 40) + np.maximum(offsets - self._first, 0)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        found = np.maximum(at, 0)
        there = known & (at >= 0) & ((self._keys[found] >> 40) == code)
        there &= offsets < self._ends[found]
        return self._chosen[found], there
