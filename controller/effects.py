"""What decisions change besides the log: the soft state of one controller epoch, each change a value.

An effect takes force once its decision's records are in the pending image, or at once if it writes none; it is dropped with a
decision that can't be proposed, so that soft state never runs ahead of the log. ``controller/state/apply.py`` says what each does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.metadata.causes import Cause
from raftlog.metadata.image import PartitionKey
from raftlog.wire.records.v1 import records_pb2 as pb


class Registered(NamedTuple):
    """A process has registered under this id, under a new broker epoch: what was known of an earlier one is void."""

    broker_id: int
    broker_epoch: int


class RegisteredAgain(NamedTuple):
    """The process that is registered has sent its registration once more."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class Unregistered(NamedTuple):
    """The registration is gone."""

    broker_id: int


class Fenced(NamedTuple):
    """A broker was fenced for this cause. ``record_count``: of the batch that says so."""

    broker_id: int
    cause: Cause
    record_count: int = 1


class Unfenced(NamedTuple):
    """A broker was unfenced."""

    broker_id: int


class ShutdownBegun(NamedTuple):
    """A broker that stops has lost leaderships. ``last_offset``: of the records that moved the last of them; None: some are left."""

    broker_id: int
    last_offset: int | None


class Left(NamedTuple):
    """A broker has taken its leave: its session is over, so that a successor can register at once."""

    broker_id: int


class LeaseGranted(NamedTuple):
    """A broker may answer strict reads for a lease from now on."""

    broker_id: int


class LeaseStopped(NamedTuple):
    """A broker's lease for strict reads is not renewed any more."""

    broker_id: int


class AllLeasesStopped(NamedTuple):
    """No lease for strict reads is renewed any more."""


class FeatureLevelsUpdated(NamedTuple):
    """Levels were changed while heartbeats were not in force: they may be now."""


class IsrsLeft(NamedTuple):
    """A fenced broker was taken out of the ISRs of the first ``done`` of the partitions that it held."""

    broker_id: int
    keys: Sequence[PartitionKey]
    done: int


class LeaderEpochsRaised(NamedTuple):
    """So many more of the partitions that were below the leader epochs of this generation are not any more."""

    partition_count: int


class ProgressRecorded(NamedTuple):
    """The progress of LAO was written down."""

    message: pb.ProgressRecord


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
)
