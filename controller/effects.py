"""The changes that a decision makes to the soft state of one controller epoch, each a plain value.

Soft state is not in the log.

An effect is applied once the records of its decision are in the pending image, or at once if the
decision has no records. If a decision cannot be proposed, its effects are dropped with it, so soft
state never runs ahead of the log. ``controller/state/apply.py`` says what each effect does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.metadata.causes import Cause
from raftlog.metadata.image import PartitionKey
from raftlog.wire.records.v1 import records_pb2 as pb


class Registered(NamedTuple):
    """A process has registered this broker id, under a new broker epoch: what was known under an
    earlier epoch is void.
    """

    broker_id: int
    broker_epoch: int


class RegisteredAgain(NamedTuple):
    """The registered process has repeated its registration request."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class Unregistered(NamedTuple):
    """A broker was unregistered."""

    broker_id: int


class Fenced(NamedTuple):
    """A broker was fenced for this cause.

    ``record_count``: how many records the batch that fences it has.
    """

    broker_id: int
    cause: Cause
    record_count: int = 1


class Unfenced(NamedTuple):
    """A broker was unfenced."""

    broker_id: int


class ShutdownBegun(NamedTuple):
    """A broker in controlled shutdown has lost leaderships.

    ``last_offset``: the offset of the record that moved the last of them; None: it still has some.
    """

    broker_id: int
    last_offset: int | None


class Left(NamedTuple):
    """A broker has completed its controlled shutdown.

    Its session is over, so a successor can register at once.
    """

    broker_id: int


class LeaseGranted(NamedTuple):
    """A broker has a read lease that begins now."""

    broker_id: int


class LeaseStopped(NamedTuple):
    """The read lease of a broker is no longer renewed."""

    broker_id: int


class AllLeasesStopped(NamedTuple):
    """No read lease is renewed any longer."""


class FeatureLevelsUpdated(NamedTuple):
    """Feature levels were changed while heartbeats were not in force.

    Heartbeats may be in force now.
    """


class IsrsLeft(NamedTuple):
    """A fenced broker was removed from the ISRs of the first ``done`` partitions of ``keys``, the
    partitions that it held.
    """

    broker_id: int
    keys: Sequence[PartitionKey]
    done: int


class LeaderEpochsRaised(NamedTuple):
    """The leader epochs of ``partition_count`` more partitions were raised into the range of this
    log generation.
    """

    partition_count: int


class ProgressRecorded(NamedTuple):
    """The progress of LAO was written to the log, as a PROGRESS record."""

    message: pb.ProgressRecord


class LeaseBegun(NamedTuple):
    """A lease of the key-value store was granted, and lives its time from now on."""

    lease_id: int
    ttl_ms: int


class LeaseKeptAlive(NamedTuple):
    """A lease lives its whole time again, from now on."""

    lease_id: int
    ttl_ms: int


class LeaseEnded(NamedTuple):
    """A lease was revoked, or has expired."""

    lease_id: int


Effect = (
    Registered
    | RegisteredAgain
    | Unregistered
    | Fenced
    | Unfenced
    | ShutdownBegun
    | Left
    | LeaseGranted
    | LeaseStopped
    | AllLeasesStopped
    | FeatureLevelsUpdated
    | IsrsLeft
    | LeaderEpochsRaised
    | ProgressRecorded
    | LeaseBegun
    | LeaseKeptAlive
    | LeaseEnded
)
