"""Fencing and unfencing of one broker: the changes to its registration and to its partitions.

A decision handles one broker, so that each decision sees the effect of the previous one.
"""

from __future__ import annotations

from typing import Any, cast

from controller.rules.partition_change import MAX_REMOVALS, elections_on_join, removals
from raftlog.metadata.entities import UNVOUCHED, Broker, Cause
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

_WORDS = {
    Cause.CAUGHT_UP: "caught up",
    Cause.ACTIVE_WITHOUT_HEARTBEATS: "active without heartbeats",
    Cause.SESSION_TIMED_OUT: "session timed out",
    Cause.PROCESS_GONE: "process gone: its listener refuses connections",
    Cause.METADATA_LAG: "metadata lag above broker.metadata.lag.max.ms",
    Cause.ASKED_TO_BE_FENCED: "asked to be fenced",
    Cause.LOG_TAKEN_BACK: "the log was restored or recovered",
    Cause.CONTROLLED_SHUTDOWN: "controlled shutdown",
    Cause.DISK_HANGS: "disk hangs longer than broker.disk.hang.timeout.ms",
    Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS: "active without heartbeats, controlled shutdown",
}
"""Descriptions of the causes, for operators."""


def registration_change(broker: Broker, cause: Cause, **standing: bool) -> Record:
    """Return the record that sets the given flags (``standing``: fenced, in_controlled_shutdown) of
    a broker and states the cause. Flags not given keep their value.
    """
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        reason=_WORDS.get(cause, ""),
        cause=cast("Any", int(cause)),
        **cast("Any", standing),
    )
    return record(change)


def fence(view: ImageView, broker: Broker, cause: Cause) -> list[Record]:
    """Fence a broker and remove it from every ISR and leadership, in at most MAX_REMOVALS
    partitions; ``isr_removals`` continues with the others.
    """
    change = registration_change(broker, cause, fenced=True, in_controlled_shutdown=False)
    return [change, *removals(view, broker.id, limit=MAX_REMOVALS)]


def unfence(view: ImageView, broker: Broker, cause: Cause = Cause.CAUGHT_UP) -> list[Record]:
    """Unfence a broker and elect it leader of up to MAX_REMOVALS leaderless partitions that waited
    for it; ``join_elections`` continues with the others.
    """
    change = registration_change(broker, cause, fenced=False)
    return [change, *elections_on_join(view, broker.id, limit=MAX_REMOVALS)]


def begin_shutdown(view: ImageView, broker: Broker) -> list[Record]:
    """Move leaderships and ISR memberships off a broker that shuts down, at most MAX_REMOVALS
    partitions at a time. The broker serves reads until the others know the new leaders.
    """
    moved = removals(view, broker.id, on_purpose=True, limit=MAX_REMOVALS)
    if broker.in_controlled_shutdown:
        return moved
    unvouched = broker.cause in UNVOUCHED
    cause = Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS if unvouched else Cause.CONTROLLED_SHUTDOWN
    return [registration_change(broker, cause, in_controlled_shutdown=True), *moved]


def complete_shutdown(view: ImageView, broker: Broker) -> list[Record]:
    """Return the last records of a broker that completes its controlled shutdown; see
    :func:`raftlog.metadata.entities.has_left`.
    """
    change = registration_change(
        broker, Cause.CONTROLLED_SHUTDOWN, fenced=True, in_controlled_shutdown=True
    )
    return [change, *removals(view, broker.id, on_purpose=True)]
