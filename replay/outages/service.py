"""Brokers and controllers in and out of service: when, why and until when a broker was fenced,
changes of the controller, and times without a controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise, zip_longest
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from raftlog.metadata.entities import PLANNED
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import NEVER, Bools, Ints
from replay.kernels.census import Census
from replay.kernels.facts import BrokerSpan
from replay.kernels.passes import Rows

REGISTERED_ANEW, UNREGISTERED = "registered anew", "unregistered"
"""Reasons that no record states: a new process replaced one that had not been fenced, or the
registration was removed.
"""
_PLANNED = frozenset(each.name for each in PLANNED)


class Stretch(NamedTuple):
    """A period from ``since_ms`` to ``until_ms``."""

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, first_ms: int, last_ms: int, since_ms: int | None) -> Stretch:
        """Return the period of the records, starting at ``since_ms`` if that is within it, or the
        whole period if it is None.
        """
        return cls(first_ms if since_ms is None else min(max(since_ms, first_ms), last_ms), last_ms)

    @property
    def length_ms(self) -> int:
        """Length in ms."""
        return max(0, self.until_ms - self.since_ms)

    def has(self, begins_ms: Ints, ends_ms: Ints) -> Bools:
        """Return which intervals overlap the period; open intervals end at NEVER."""
        return (begins_ms <= self.until_ms) & (ends_ms >= self.since_ms)

    def lengths(self, begins_ms: Ints, ends_ms: Ints) -> Ints:
        """Return how much of the period each interval covers, in ms."""
        begins_ms, ends_ms = (
            np.maximum(begins_ms, self.since_ms),
            np.minimum(ends_ms, self.until_ms),
        )
        return np.maximum(ends_ms - begins_ms, 0)

    def length_of(self, begins_ms: int, ends_ms: int | None) -> int:
        """Return how much of the period an interval covers, in ms; ``ends_ms`` is None if it is
        open.
        """
        ends = self.until_ms if ends_ms is None else min(ends_ms, self.until_ms)
        return max(0, ends - max(begins_ms, self.since_ms))


class Fencing(msgspec.Struct, frozen=True):
    """A period in which a broker was out of service. ``ends``: null if it still is.

    ``reason``: why, as text. ``cause``: why, as the name of a ``BrokerCause``, or null if the text
    is not from a known build. ``planned``: true for a controlled shutdown or a requested fencing.
    ``unregistered``: true if the period ended because the broker was unregistered.
    """

    broker_id: int
    begins: int
    ends: int | None
    begins_ms: int
    ends_ms: int | None
    reason: str
    cause: str | None
    planned: bool
    unregistered: bool


class Failover(msgspec.Struct, frozen=True):
    """A change of the controller.

    No controller led for ``absent_least_ms`` to ``absent_most_ms`` (null if unknown). No record was
    written for ``silent_ms``, which does not prove an absence.
    """

    epoch: int
    leader_id: int
    begins: int
    begins_ms: int
    previous_leader_id: int
    silent_ms: int
    absent_least_ms: int
    absent_most_ms: int | None


class Service(NamedTuple):
    """A period in which a broker was ``fenced``, or was not; neighbouring periods differ in that.

    ``begins``, ``ends``: offsets; ``ends`` is None if the period is open. ``reason``, ``cause``:
    why the period began. ``follows``, ``followed``: whether another period adjoins it; if not, the
    broker was not registered in between.
    """

    broker_id: int
    fenced: bool
    begins: int
    begins_ms: int
    ends: int | None
    ends_ms: int | None
    reason: str | None
    cause: str | None
    follows: bool
    followed: bool = False


class Departure(NamedTuple):
    """A broker's departure from service. ``cause``: None if it was unregistered."""

    broker_id: int
    offset: int
    timestamp_ms: int
    reason: str | None
    cause: str | None


def service(brokers: Iterable[BrokerSpan]) -> list[Service]:
    """Merge the spans of brokers into periods of service, by broker and in order."""
    found: list[Service] = []
    in_order = sorted(brokers, key=attrgetter("broker_id", "begins"))
    for _, spans in groupby(in_order, key=attrgetter("broker_id")):
        found += _of_one(spans)
    return found


def _of_one(spans: Iterable[BrokerSpan]) -> Iterator[Service]:
    current: Service | None = None
    for span in spans:
        follows = current is not None and current.ends == span.begins
        ends = None if span.ends == NEVER else span.ends
        if current is not None and follows and current.fenced == span.fenced:
            current = current._replace(ends=ends, ends_ms=span.ends_ms)
            continue
        if current is not None:
            yield current._replace(followed=follows)
        current = Service(
            span.broker_id,
            bool(span.fenced),
            span.begins,
            span.begins_ms,
            ends,
            span.ends_ms,
            REGISTERED_ANEW if span.registration else span.reason,
            span.cause,
            follows,
        )
    if current is not None:
        yield current


def fencings(served: Iterable[Service]) -> list[Fencing]:
    """Return each period in which a broker was out of service after having been in service."""
    return [
        Fencing(
            each.broker_id,
            each.begins,
            each.ends,
            each.begins_ms,
            each.ends_ms,
            each.reason or "",
            each.cause,
            each.cause in _PLANNED,
            each.ends is not None and not each.followed,
        )
        for each in served
        if each.fenced and each.follows
    ]


def departures(served: list[Service]) -> list[Departure]:
    """Return when brokers left service, for any reason."""
    found = []
    for each, after in zip_longest(served, served[1:]):
        if each.fenced or each.ends is None or each.ends_ms is None:
            continue
        if each.followed and after is not None:
            reason, cause = after.reason, after.cause
        else:
            reason, cause = UNREGISTERED, None
        found.append(Departure(each.broker_id, each.ends, each.ends_ms, reason, cause))
    return found


def broker_time(
    brokers: Iterable[BrokerSpan], fenced: Iterable[Fencing], stretch: Stretch
) -> tuple[int, int]:
    """Return two times in ms, summed over brokers: for how long they were registered within the
    period, and for how much of that they were out of service without a plan. Time before a broker
    was first unfenced does not count as lost.
    """
    unplanned = [each for each in fenced if not each.planned]
    life_ms, lost_ms = (
        sum(stretch.length_of(each.begins_ms, each.ends_ms) for each in spans)
        for spans in (list(brokers), unplanned)
    )
    return life_ms, lost_ms


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
    """The reign of a controller, which lasts until the next one begins (None if it is the last).

    ``last_ms``: time of the epoch's last record. ``due_ms``: time at which an active controller of
    Kafka would have written its next record; None if the log does not show that. ``last_heard_…``:
    what the epoch's first record says about when voters last heard from earlier leaders.
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
    """The time without a controller: a lower bound, and an upper bound or None if the log does not
    show one.
    """

    least_ms: int
    most_ms: int | None


def controllers(log: Rows, counted: Census, origin: str = "") -> list[Controller]:
    """Return the reigns in order. ``origin``: the kind of cluster that wrote the log; raftlog's
    controllers write nothing on an idle cluster.
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
    """Return the absence between two reigns, based on when the new controller's voters last heard
    the old one, or else on when the old one would have written its next record. Silence alone
    proves nothing.
    """
    silent_ms = max(0, new.begins_ms - old.last_ms)
    if old.due_ms is not None:
        return Absence(min(silent_ms, max(0, new.begins_ms - old.due_ms)), silent_ms)
    age = new.last_heard_age_ms
    heard = None if age is None else min(age, silent_ms)
    known = new.last_heard_epoch is not None and new.last_heard_epoch >= old.epoch
    return Absence((heard or 0) if new.last_heard_by_all else 0, heard if known else None)


def failovers(reigns: list[Controller]) -> list[Failover]:
    """Return a failover for each reign except the first."""
    found = []
    for old, new in pairwise(reigns):
        absent = absence(old, new)
        found.append(
            Failover(
                new.epoch,
                new.leader_id,
                new.begins,
                new.begins_ms,
                old.leader_id,
                new.begins_ms - old.last_ms,
                absent.least_ms,
                absent.most_ms,
            )
        )
    return found
