"""Model of a report: small, typed, bounded.

Times are milliseconds since 1970, UTC; offsets are of the log. Every list has a bound that does not
grow with the history; a count beside it says how many there are.
"""

from __future__ import annotations

import msgspec

from replay.jobs.audit import AuditResult
from replay.jobs.availability import AvailabilityResult
from replay.jobs.lao import LaoResult

MAX_BUCKETS = 480
"""Steps of the time axis. A plot is about 1,000 pixels wide: finer would not be seen."""
MAX_LANES = 24
"""Number of brokers with a lane."""
MAX_EXACT_SPANS = 1500
"""Number of spans that are drawn one by one; above it, spans of one state that begin close together
become one.
"""
MAX_INCIDENTS = 12
MAX_EVENTS = 8
"""Events shown of one incident."""

CRITICAL, WARNING, NOTICE, PLANNED = 3, 2, 1, 0
"""Severities: data could not be served; redundancy or progress was lost; worth knowing; done on
purpose.
"""


class Axis(msgspec.Struct, frozen=True):
    """The time axis of all plots: from the first record to the last, in ``buckets`` steps."""

    begins_ms: int
    ends_ms: int
    bucket_ms: int

    @property
    def buckets(self) -> int:
        """Number of steps; at least one."""
        return (self.ends_ms - self.begins_ms) // self.bucket_ms + 1


class Header(msgspec.Struct, frozen=True):
    """The owner of the log, and its range. Offsets and epochs are inclusive.

    ``origin``: the kind of cluster that wrote it, empty for raftlog.
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
    """A stretch of a lane.

    ``state``: the reign of a controller, or of a broker: serving, leaving (in controlled shutdown),
    stopped (after it), fenced, starting (registered, not yet unfenced), or holding (LAO waited for
    it). ``count`` above 1: the number of spans that are drawn as one; ``total_ms``: the sum of
    their lengths.
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
    """The most partitions at one time within a step of the axis: ``leaderless``, and ``short`` of
    members in the ISR.
    """

    at_ms: int
    leaderless: int
    short: int


class Wait(msgspec.Struct, frozen=True):
    """From commit to visible everywhere, for the ``records`` written in a step of the axis; None:
    no record of it was visible by the end. ``waiting``: the number of those that were not.
    """

    at_ms: int
    records: int
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waiting: int


class Event(msgspec.Struct, frozen=True):
    """An event.

    ``count`` partitions or brokers; ``ends_ms`` null: it had not ended when the log did;
    ``broker_ids``: the brokers that it concerns.
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

    ``number``: the rank, from 1 for the gravest. ``total`` counts all events, of which the gravest
    are here, by time. ``ends_ms`` null: some event had not ended when the log did. ``before``: what
    was changed shortly before, on purpose.

    Extent: ``leaderless`` and ``short``, the most partitions at one time that had no leader, or an
    incomplete ISR, beyond those that had it before; ``leaderless_ms`` and ``short_ms``, how long
    they did, summed over partitions; ``brokers``, the number of brokers concerned.
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
    """The cluster over time. ``lanes``: the controllers, and brokers of ``brokers_total``.
    ``incidents``: the gravest first, of ``incidents_total``.
    """

    axis: Axis
    lanes: list[Lane]
    brokers_total: int
    levels: list[Level]
    waits: list[Wait]
    incidents: list[Incident]
    incidents_total: int


class ReportResult(msgspec.Struct, frozen=True):
    """All that the page shows. ``output``: where it was written."""

    output: str
    header: Header
    timeline: Timeline
    audit: AuditResult
    lao: LaoResult
    availability: AvailabilityResult

    @property
    def passed(self) -> bool:
        """True if the audit found nothing."""
        return self.audit.passed
