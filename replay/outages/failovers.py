"""Controllers, their changes, and the gaps without one."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import NamedTuple

from raftlog.metadata.records import RecordType
from replay.kernels.census import Census
from replay.kernels.passes import Rows
from replay.outages.model import Failover

_COLUMNS = (
    "offset",
    "epoch",
    "leader_id",
    "timestamp_ms",
    "last_heard_epoch",
    "last_heard_age_ms",
    "last_heard_by_all",
)


class Controller(NamedTuple):
    """The reign of a controller, which ends where the next one's begins (None: it lasts).

    ``last_ms``: of the last record of the epoch: no record follows it. ``due_ms``: until when it
    would have written had it been active, as an active controller of Kafka does (None: the log does
    not say). ``last_heard_…``: of the leaders before, as its first record says.
    """

    epoch: int
    leader_id: int
    begins: int
    ends: int | None
    begins_ms: int
    last_ms: int
    due_ms: int | None
    ends_ms: int | None
    last_heard_epoch: int | None
    last_heard_age_ms: int | None
    last_heard_by_all: bool | None


class Absence(NamedTuple):
    """Duration without a controller: its lower and upper bound (None: the log does not say)."""

    least_ms: int
    most_ms: int | None


def controllers(log: Rows, counted: Census, origin: str = "") -> list[Controller]:
    """Return the reigns, in order. ``origin``: whose log it is; controllers of raftlog write
    nothing while nothing happens.
    """
    idle = counted.idle if origin else {}
    due_ms = {epoch: each.due_ms for epoch, each in idle.items()}
    last_ms = {each.epoch: each.last_ms for each in counted.epochs}
    rows = log.table(_COLUMNS, (RecordType.LEADER_CHANGE,)).to_pylist()
    return [
        Controller(
            row["epoch"],
            row["leader_id"],
            row["offset"],
            None if after is None else after["offset"],
            row["timestamp_ms"],
            last_ms[row["epoch"]],
            due_ms.get(row["epoch"]),
            None if after is None else after["timestamp_ms"],
            row["last_heard_epoch"],
            row["last_heard_age_ms"],
            row["last_heard_by_all"],
        )
        for row, after in zip_longest(rows, rows[1:])
    ]


def absence(old: Controller, new: Controller) -> Absence:
    """Return the absence between two reigns: by the voters that elected the new controller, else by
    the time when the old one would have written. Silence alone proves nothing.
    """
    silent_ms = max(0, new.begins_ms - old.last_ms)
    if old.due_ms is not None:
        return Absence(min(silent_ms, max(0, new.begins_ms - old.due_ms)), silent_ms)
    age = new.last_heard_age_ms
    heard = None if age is None else min(age, silent_ms)
    known = new.last_heard_epoch is not None and new.last_heard_epoch >= old.epoch
    return Absence((heard or 0) if new.last_heard_by_all else 0, heard if known else None)


def failovers(reigns: list[Controller], counted: Census) -> list[Failover]:
    """Return one failover for each reign but the first.

    ``silent_since_ms`` (the old controller's last record) and ``silent_ms`` from it to the new
    one's first: a period without records, though on a quiet cluster the old controller may have
    lived for most of it. ``absent_least_ms`` and ``absent_most_ms``: see :func:`absence`;
    ``epochs_without_leader``: elections without a winner; ``lao_known_ms``: from the beginning
    until LAO was recorded again (None: never).
    """
    found = []
    for old, new in pairwise(reigns):
        silent_ms = new.begins_ms - old.last_ms
        known_ms, absent = counted.known_ms.get(new.epoch), absence(old, new)
        found.append(
            Failover(
                new.epoch,
                new.leader_id,
                new.begins,
                new.begins_ms,
                old.leader_id,
                old.last_ms,
                silent_ms,
                absent.least_ms,
                absent.most_ms,
                new.epoch - old.epoch - 1,
                None if known_ms is None else known_ms - new.begins_ms,
            )
        )
    return found
