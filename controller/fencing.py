"""Fencing and unfencing one broker: the registration change, and what it means for the partitions of that broker alone.

One broker a decision, so that each decision sees the effect of the one before it.
"""

from __future__ import annotations

from controller.elections import MAX_REMOVALS, elections_on_join, removals
from raftlog.metadata.entities import Broker
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

SESSION_TIMED_OUT = "session timed out"
PROCESS_GONE = "process gone: its listener refuses connections"
METADATA_LAG = "metadata lag above broker.metadata.lag.max.ms"
ASKED_TO_BE_FENCED = "asked to be fenced"
CONTROLLED_SHUTDOWN = "controlled shutdown"
CAUGHT_UP = "caught up"
WITHOUT_HEARTBEATS = "active without heartbeats"
"""Below broker.heartbeat.version 1; nobody knows what it had applied when it was unfenced. Goes before other reasons."""


def has_left(broker: Broker) -> bool:
    """Whether the broker took its leave: its process said that it ends, and is final for its epoch.

    Fenced *and* in controlled shutdown is written by a graceful leave alone, so that a new controller knows it too; all other
    fencing takes the second flag back.
    """
    return broker.fenced and broker.in_controlled_shutdown


def fence(view: ImageView, broker: Broker, reason: str) -> list[Record]:
    """Fence a broker, and take it out of every ISR and leadership; ``leaving`` goes on where that is more than MAX_REMOVALS."""
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=True, in_controlled_shutdown=False, reason=reason
    )
    return [record(change), *removals(view, broker.id, limit=MAX_REMOVALS)]


def unfence(view: ImageView, broker: Broker, reason: str = CAUGHT_UP) -> list[Record]:
    """Unfence a broker, and give it the leaderless partitions that waited for it."""
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=False, reason=reason
    )
    return [record(change), *elections_on_join(view, broker.id)]


def begin_shutdown(view: ImageView, broker: Broker) -> list[Record]:
    """Move everything off a broker that goes on serving reads until the others know the new leaders; MAX_REMOVALS partitions at a time."""
    moved = removals(view, broker.id, on_purpose=True, limit=MAX_REMOVALS)
    if broker.in_controlled_shutdown:
        return moved
    unvouched = f"{WITHOUT_HEARTBEATS}, " if broker.reason.startswith(WITHOUT_HEARTBEATS) else ""
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        in_controlled_shutdown=True,
        reason=unvouched + CONTROLLED_SHUTDOWN,
    )
    return [record(change), *moved]


def take_leave(view: ImageView, broker: Broker) -> list[Record]:
    """The last record of a broker that leaves gracefully: see :func:`has_left`."""
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=True,
        in_controlled_shutdown=True,
        reason=CONTROLLED_SHUTDOWN,
    )
    return [record(change), *removals(view, broker.id, on_purpose=True)]
