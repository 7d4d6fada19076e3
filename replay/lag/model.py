"""Result of the job lao: bounded, typed, ready for JSON."""

from __future__ import annotations

import msgspec


class LaoPoint(msgspec.Struct, frozen=True):
    """One progress record. Null: LAO was unknown, or nothing that is waited for was newly covered.

    ``lag_ms``: the age of the oldest record that was not acknowledged then. ``covered``: records
    that it is the first to cover; ``waited_ms``: how long the oldest of them had waited.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    lowest_acknowledged_offset: int | None
    high_watermark: int
    lag_offsets: int | None
    lag_ms: int | None
    covered: int
    waited_ms: int | None


class LaoStall(msgspec.Struct, frozen=True):
    """One time that LAO was held back for long, as in :func:`replay.lag.hold_ups.hold_ups`.

    ``broker_ids``: whom it waited for, all at once; empty: the log does not tell. ``cause``:
    FENCED, NO_BROKER, FAILOVER, BEHIND or UNKNOWN. ``broker_cause``: of a FENCED one, the name of
    the ``BrokerCause`` that ``reason`` says to people; None: it was unregistered. ``records``: how
    many waited. ``last_offset``: of the progress record that ended it; None: it goes on where the
    log ends.
    """

    broker_ids: list[int]
    cause: str
    reason: str | None
    broker_cause: str | None
    began_ms: int
    ended_ms: int
    held_ms: int
    waited_ms: int
    records: int
    samples: int
    first_offset: int | None
    last_offset: int | None

    @property
    def offset(self) -> int:
        """Offset at which to look for it in the log."""
        return next((at for at in (self.first_offset, self.last_offset) if at is not None), 0)


class BrokerLag(msgspec.Struct, frozen=True):
    """One broker over all times in which it was unfenced and had reported.

    ``reports``: progress records that name it. ``max_lag_offsets`` and ``max_lag_ms`` (age of the
    oldest record that it had not applied): as far as progress records show them. ``hold_ups``,
    ``held_ms``: how often it held LAO back, and for how long in all; ``longest_ms``: the longest
    that a record waited for it.
    """

    broker_id: int
    reports: int
    last_applied_offset: int
    p50_lag_offsets: int
    max_lag_offsets: int
    max_lag_ms: int
    hold_ups: int
    held_ms: int
    longest_ms: int


class Hour(msgspec.Struct, frozen=True):
    """From commit to visible everywhere, for what was written in one hour; None: nothing of it was
    visible by the end.
    """

    hour_ms: int
    records: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waiting: int


class Measured(msgspec.Struct, frozen=True):
    """Durations of ``records`` records from their commit on, as controllers have measured them.

    Percentiles are up to 19 % too high, the others exact.
    """

    records: int
    mean_us: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int


class LaoResult(msgspec.Struct, frozen=True):
    """``records`` are those that LAO is waited for; ``waiting`` of them were not visible everywhere
    by the end.

    ``hold_ups``: the longest first, of ``hold_ups_total``; ``held_ms``: how long LAO was held back
    in all. ``brokers``: those that did so the longest first. ``hours`` and ``timeline``: the last
    ones, oldest first, of ``hours_total`` and ``samples``; ``unknown``: samples in which LAO was
    unknown. ``end_ms``: of the last record. ``acknowledged``, ``told``: what controllers have
    measured until all brokers had applied a record, and until all knew; None: the
    log does not say.
    """

    end_ms: int
    stall_ms: int
    records: int
    waiting: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    hold_ups_total: int
    held_ms: int
    hold_ups: list[LaoStall]
    brokers_total: int
    brokers: list[BrokerLag]
    hours_total: int
    hours: list[Hour]
    samples: int
    unknown: int
    p50_lag_offsets: int | None
    p99_lag_offsets: int | None
    max_lag_offsets: int | None
    max_lag_ms: int | None
    timeline: list[LaoPoint]
    acknowledged: Measured | None = None
    told: Measured | None = None
