"""Result of the job churn: bounded, typed, ready for JSON."""

from __future__ import annotations

import msgspec


class BrokerChurn(msgspec.Struct, frozen=True):
    """One broker: how often it left ISRs (``leaves_by_leader``: because it lagged), came back, and
    lost and gained leaderships.

    ``p50_out_ms``, ``max_out_ms``: how long it had been out of an ISR when it came back; None: it
    never did.
    """

    broker_id: int
    leaves: int
    leaves_by_leader: int
    joins: int
    returns: int
    p50_out_ms: int | None
    max_out_ms: int | None
    leaderships_lost: int
    leaderships_gained: int


class PartitionChurn(msgspec.Struct, frozen=True):
    """One partition: as of a broker; ``leader_moves``: how often its leader became another."""

    topic_id: str
    topic_name: str
    partition_id: int
    leaves: int
    leaves_by_leader: int
    joins: int
    returns: int
    p50_out_ms: int | None
    max_out_ms: int | None
    leader_moves: int


class ConfigChurn(msgspec.Struct, frozen=True):
    """One key of a resource.

    ``reversals``: changes back to the value before the last. ``last_value`` None: deleted.
    """

    resource_type: int
    resource_name: str
    config_name: str
    changes: int
    reversals: int
    principals: int
    last_offset: int
    last_ms: int
    last_principal: str
    last_value: str | None


class TypeGrowth(msgspec.Struct, frozen=True):
    """One record type.

    ``bytes``: of the records' bodies, without what a batch adds; ``per_day``: records, at the pace
    of all the time.
    """

    type_name: str
    records: int
    bytes: int
    per_day: float


class PeriodGrowth(msgspec.Struct, frozen=True):
    """One hour or day: records written in it; and at its end the state's entities, and about the
    bytes of a snapshot of it.
    """

    period_ms: int
    records: int
    entities: int
    snapshot_bytes: int


class Forecast(msgspec.Struct, frozen=True):
    """Sizes in bytes in ``days`` days: of the log if nothing is deleted, and of a snapshot."""

    days: int
    log_bytes: int
    snapshot_bytes: int


class ChurnResult(msgspec.Struct, frozen=True):
    """Result of the job for a stretch of time, ``since_ms`` to ``until_ms``.

    Lists are the worst first, cut at the limit, of ``…_total``; ``periods``: the last ones.

    ``log_bytes`` and ``snapshot_bytes`` are as of the end; ``forecasts`` is empty if there are
    fewer than two periods. ``origin``: what kind of cluster's log it is, empty for raftlog's own.
    """

    since_ms: int
    until_ms: int
    brokers_total: int
    brokers: list[BrokerChurn]
    partitions_total: int
    partitions: list[PartitionChurn]
    configs_total: int
    configs: list[ConfigChurn]
    types: list[TypeGrowth]
    period_length_ms: int
    periods: list[PeriodGrowth]
    log_bytes: int
    snapshot_bytes: int
    forecasts: list[Forecast]
    origin: str = ""
