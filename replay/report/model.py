"""The data of a report: small, typed and bounded.

Times are milliseconds since 1970, UTC; offsets refer to the log. Every list has a bound that does
not grow with the history, and a count of all its items.
"""

from __future__ import annotations

import msgspec

from replay.jobs.audit import AuditResult
from replay.jobs.availability import AvailabilityResult
from replay.jobs.lao import LaoResult

MAX_BUCKETS = 480
"""Maximum number of steps of the time axis. A plot is about 1,000 pixels wide, so finer steps would
not be visible.
"""
MAX_LANES = 24
"""Maximum number of brokers with a lane."""
MAX_EXACT_SPANS = 1500
"""Maximum number of spans drawn individually; above it, spans of one state that begin close
together are merged.
"""
MAX_INCIDENTS = 12
MAX_EVENTS = 8
"""Maximum number of events shown per incident."""

CRITICAL, WARNING, NOTICE, PLANNED = 3, 2, 1, 0
"""Severities: data was unavailable; redundancy or progress was lost; worth knowing; done on
purpose.
"""


class Axis(msgspec.Struct, frozen=True):
    """The time axis of all plots, from the first record to the last, in ``buckets`` steps."""

    begins_ms: int
    ends_ms: int
    bucket_ms: int

    @property
    def buckets(self) -> int:
        """Number of steps; at least 1."""
        return (self.ends_ms - self.begins_ms) // self.bucket_ms + 1


class Header(msgspec.Struct, frozen=True):
    """The kind of cluster that wrote the log, and the log's range. Offsets and epochs are
    inclusive.

    ``origin``: the kind of cluster that wrote it; "" for raftlog.
    """

    cluster_id: str
    generation: int
    first_offset: int
    last_offset: int
    records: int
    first_epoch: int
    last_epoch: int
    metadata_version: int | None
    exported_at: str
    origin: str = ""


class Span(msgspec.Struct, frozen=True):
    """A bar in a lane.

    ``state``: reign of a controller; or a broker's state: serving, leaving (in controlled
    shutdown), stopped (after it), fenced, starting (registered but not yet unfenced), or holding
    (LAO waited for the broker). ``count``: number of spans merged into this one; ``total_ms``:
    their total length.
    """

    state: str
    begins_ms: int
    ends_ms: int
    offset: int
    text: str
    count: int
    total_ms: int


class Lane(msgspec.Struct, frozen=True):
    """The spans of one broker, or of the controllers."""

    name: str
    detail: str
    spans: list[Span]


class Level(msgspec.Struct, frozen=True):
    """The most partitions at once within a step of the axis that were ``leaderless``, or had an
    incomplete ISR (``short``).
    """

    at_ms: int
    leaderless: int
    short: int


class Wait(msgspec.Struct, frozen=True):
    """Time from commit to visible everywhere, for the ``records`` written in a step of the axis;
    null if none of them was visible by the end. ``waiting``: number of those that were not.
    """

    at_ms: int
    records: int
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waiting: int


class Event(msgspec.Struct, frozen=True):
    """An event.

    ``count``: number of affected partitions or brokers. ``ends_ms``: null if the event had not
    ended at the end of the log. ``broker_ids``: affected brokers.
    """

    kind: str
    severity: int
    begins_ms: int
    ends_ms: int | None
    offset: int
    count: int
    text: str
    broker_ids: list[int] = []


class Incident(msgspec.Struct, frozen=True):
    """Events that began close together.

    ``number``: the rank, 1 for the most severe. ``events``: the most severe of ``total``, in order
    of time. ``ends_ms``: null if an event had not ended at the end of the log. ``before``: planned
    changes shortly before.

    Extent: ``leaderless``, ``short``: the most partitions at once without a leader or with an
    incomplete ISR, beyond those affected before; ``leaderless_ms``, ``short_ms``: the time, summed
    over partitions; ``brokers``: number of affected brokers.
    """

    number: int
    severity: int
    begins_ms: int
    ends_ms: int | None
    offset: int
    title: str
    total: int
    events: list[Event]
    before: list[Event]
    leaderless: int = 0
    short: int = 0
    leaderless_ms: int = 0
    short_ms: int = 0
    brokers: int = 0


class Timeline(msgspec.Struct, frozen=True):
    """The cluster over time. ``lanes``: the controllers, and some of ``brokers_total`` brokers.
    ``incidents``: most severe first, of ``incidents_total``.
    """

    axis: Axis
    lanes: list[Lane]
    brokers_total: int
    levels: list[Level]
    waits: list[Wait]
    incidents: list[Incident]
    incidents_total: int


class ReportResult(msgspec.Struct, frozen=True):
    """The content of the page. ``output``: the file to which it was written."""

    output: str
    header: Header
    timeline: Timeline
    audit: AuditResult
    lao: LaoResult
    availability: AvailabilityResult

    @property
    def passed(self) -> bool:
        """Whether the audit has no findings."""
        return self.audit.passed
