"""Model of a report: small, typed, bounded.

Times are milliseconds since 1970, UTC; offsets are of the log.

Every list has a bound that does not grow with the history; a count beside it tells how much was
left out.
"""

from __future__ import annotations

import msgspec

from replay.churn.result import ChurnResult
from replay.jobs.audit import AuditResult
from replay.lag.result import LaoResult
from replay.outages.result import AvailabilityResult

MAX_BUCKETS = 480
"""Steps of the time axis. A plot is about 1,000 pixels wide: finer would not be seen."""
MAX_LANES = 24
"""Brokers that get a lane of their own."""
MAX_EXACT_SPANS = 1500
"""Number of spans that are drawn one by one; beyond, spans that lie closer together than a step of
the axis become one.
"""
MAX_INCIDENTS = 12
MAX_EVENTS = 8
"""Events shown of one incident."""
MAX_PERIODS = 400
"""Hours or days of a plot: the last ones."""
MAX_TYPES = 7
"""Record types told apart in the plot of the log's growth."""

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


class ControllerSpan(msgspec.Struct, frozen=True):
    """A controller's reign.

    ``gap_ms``: from the last record of the epoch before to the first of this one; a reign that
    follows none: 0.

    ``epochs`` above 1: that number of short reigns, drawn as one; ``leader_id`` is then the last
    one's.
    """

    leader_id: int
    first_epoch: int
    last_epoch: int
    epochs: int
    begins_ms: int
    ends_ms: int
    gap_ms: int


class BrokerSpan(msgspec.Struct, frozen=True):
    """A stretch of a broker's life.

    ``state``: serving, leaving (in controlled shutdown), stopped (left so), fenced, or starting
    (registered, not yet unfenced); and, beside these, holding (LAO waited for it).

    ``spans`` above 1: that number, drawn as one; ``total_ms`` is their sum, and ``reason`` the last
    one's.
    """

    state: str
    begins_ms: int
    ends_ms: int
    spans: int
    total_ms: int
    reason: str
    offset: int


class BrokerLane(msgspec.Struct, frozen=True):
    """One broker.

    ``fencings``: times it was fenced while it was registered; ``held_ms``: how long LAO waited for
    it in all.
    """

    broker_id: int
    rack: str
    registrations: int
    fencings: int
    fenced_ms: int
    held_ms: int
    spans: list[BrokerSpan]


class Level(msgspec.Struct, frozen=True):
    """The most partitions at one time within a step of the axis: ``leaderless``, and ``short`` of
    members in the ISR.
    """

    at_ms: int
    leaderless: int
    short: int


class Wait(msgspec.Struct, frozen=True):
    """From commit to visible everywhere, for the ``records`` written in a step of the axis; None:
    nothing of it was visible by the end.

    ``waiting``: those that were not visible everywhere by the end.
    """

    at_ms: int
    records: int
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waiting: int


class Growth(msgspec.Struct, frozen=True):
    """Records of one type within a step of the axis."""

    at_ms: int
    type_name: str
    records: int


class Event(msgspec.Struct, frozen=True):
    """One thing that happened.

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
    """The cluster at a glance. ``incidents``: the gravest first.

    ``brokers_total`` counts those without a lane of their own too, ``incidents_total`` those not
    listed.
    """

    axis: Axis
    controllers: list[ControllerSpan]
    failovers: int
    brokers: list[BrokerLane]
    brokers_total: int
    levels: list[Level]
    waits: list[Wait]
    growth: list[Growth]
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
    churn: ChurnResult

    @property
    def passed(self) -> bool:
        """True if the audit found nothing."""
        return self.audit.passed
