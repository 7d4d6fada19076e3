"""Brokers that held LAO back, and for how long.

A *stall* is a sample whose oldest newly covered record had waited for a long time, or the end of
the log if no sample covers such a record. Its cause is the first of these that the log shows:

* ``FENCED``: brokers were fenced, unregistered or replaced while the record waited, and LAO
  advanced without them;
* ``NO_BROKER``: for part of the time no broker was in service, so LAO was not defined. Waiting for
  a cluster's first broker does not count;
* ``FAILOVER``: a controller epoch began during the wait, and LAO is unknown until all brokers have
  reported;
* ``BEHIND``: brokers had applied exactly up to LAO, and less than another broker;
* ``UNKNOWN``: a broker caught up at once and left no trace in the log.

A *hold-up* is a run of stalls in successive samples with overlapping brokers: the outage of a site
is one hold-up, however many brokers it affects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from raftlog.metadata.entities import SHUT_DOWN
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, NEVER, Ints, ints
from replay.kernels.passes import IN_ORDER, Pass, Rows
from replay.lag.samples import entries
from replay.lag.waits import Points
from replay.outages.service import Departure, Service, departures

FENCED, NO_BROKER, FAILOVER, BEHIND, UNKNOWN = (
    "FENCED", "NO_BROKER", "FAILOVER", "BEHIND", "UNKNOWN",
)  # fmt: skip
AT_THE_END = NEVER
"""Offset that stands for the end of the log."""
_ON_ITS_WAY_MS = 250
"""Age of a record, in ms, below which it may simply not have reached a broker yet."""
_SHUT_DOWN = frozenset(each.name for each in SHUT_DOWN)


class Stall(NamedTuple):
    """A stall that ends at the sample at offset ``at``, or AT_THE_END; the previous sample is at
    ``previous_offset``.

    ``lao``, ``most_applied``: the sample's; MISSING if unknown. ``lag_ms``: age of the oldest
    record still waiting after it. ``began_ms``: when the oldest record was written. ``held_ms``:
    the part of the wait after the previous sample, so that the parts do not overlap. ``records``:
    number of records that waited.
    """

    at: int
    epoch: int
    lao: int
    most_applied: int
    lag_ms: int
    previous_offset: int | None
    previous_epoch: int | None
    began_ms: int
    ended_ms: int
    held_ms: int
    records: int

    @property
    def waited_ms(self) -> int:
        """Time in ms that the oldest record waited."""
        return self.ended_ms - self.began_ms

    @property
    def shows_lowest(self) -> bool:
        """Whether LAO must have waited for exactly those brokers that had applied the log up to
        LAO.
        """
        return self.most_applied > self.lao != MISSING and self.lag_ms >= _ON_ITS_WAY_MS


class Attribution(NamedTuple):
    """The cause of a stall and its brokers, each with the reason and cause of its departure."""

    stall: Stall
    cause: str
    brokers: tuple[tuple[int, str | None, str | None], ...] = ()

    @property
    def broker_ids(self) -> set[int]:
        """The brokers' ids."""
        return {each for each, _, _ in self.brokers}


class HoldUp(msgspec.Struct, frozen=True):
    """A period during which LAO was held back.

    ``broker_ids``: the brokers for which LAO waited; empty if unknown. ``reason``,
    ``broker_cause``: why they left, as text and as the name of a ``BrokerCause``; null if
    unregistered, or if they did not leave. ``records``: number of records that waited.
    ``last_offset``: offset of the progress record that ended the period; null if it lasts until the
    end of the log.
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
    first_offset: int | None
    last_offset: int | None

    @property
    def offset(self) -> int:
        """The offset at which to look in the log."""
        return next((at for at in (self.first_offset, self.last_offset) if at is not None), 0)


def stalls(points: Points, *, least_ms: int) -> list[Stall]:
    """Return the stalls in which a record waited for at least ``least_ms``."""
    sampled, waited = points.samples, points.waited
    offset, epoch, at_ms, lao, *_ = (each.tolist() for each in sampled)
    most = np.maximum.accumulate(sampled.most_applied).tolist()

    def stall(place: int, *, oldest_ms: int, ended_ms: int, records: int) -> Stall:
        inside, before = place < len(offset), place - 1
        previous_ms = at_ms[before] if place else oldest_ms
        return Stall(
            offset[place] if inside else AT_THE_END,
            epoch[place] if inside else waited.end_epoch,
            lao[place] if inside else max(lao),
            most[min(place, len(most) - 1)],
            int(points.lag_ms[place]) if inside else ended_ms - oldest_ms,
            offset[before] if place else None,
            epoch[before] if place else None,
            oldest_ms,
            ended_ms,
            max(0, ended_ms - max(oldest_ms, previous_ms)),
            records,
        )

    found = []
    for place in np.flatnonzero(
        (points.oldest_ms != NEVER) & (points.waited_ms >= least_ms)
    ).tolist():
        oldest_ms, records = int(points.oldest_ms[place]), int(points.covered[place])
        ended_ms = oldest_ms + int(points.waited_ms[place])
        found.append(stall(place, oldest_ms=oldest_ms, ended_ms=ended_ms, records=records))
    oldest_ms, records = int(waited.oldest_ms[-1]), int(waited.covered[-1])
    # Without any sample, the log does not record LAO at all.
    if offset and oldest_ms != NEVER and waited.end_ms - oldest_ms >= least_ms:
        end_ms = waited.end_ms
        found.append(stall(len(offset), oldest_ms=oldest_ms, ended_ms=end_ms, records=records))
    return found


class _Lowest:
    """The part of the pass that finds the brokers at LAO for some stalls."""

    def __init__(self, stalled: list[Stall]) -> None:
        self._asked = stalled
        self._last: dict[int, tuple[int, int, int]] = {}
        """Offset, epoch and applied offset of each broker's last entry."""
        self._found: dict[int, list[tuple[int, int]]] = {}

    def take(self, table: pa.Table) -> None:
        offset, epoch = ints(table["offset"]), ints(table["epoch"])
        where, broker, applied = entries(table["applied"])
        entry = np.stack([broker, offset[where], epoch[where], applied])
        reached = 0
        while self._asked and len(offset) and _sample_of(self._asked[0]) <= offset[-1]:
            end = int(np.searchsorted(entry[1], _sample_of(self._asked[0]), side="right"))
            self._note(entry[:, reached:end])
            self._answer(self._asked.pop(0))
            reached = end
        self._note(entry[:, reached:])

    def _note(self, entry: Ints) -> None:
        # In reverse order, so that unique() picks the last entry of each broker.
        _, last = np.unique(entry[0, ::-1], return_index=True)
        for broker, at, epoch, applied in entry[:, ::-1][:, last].T.tolist():
            self._last[broker] = at, epoch, applied

    def _answer(self, stall: Stall) -> None:
        self._found[stall.at] = [
            (broker, at)
            for broker, (at, epoch, applied) in sorted(self._last.items())
            if (epoch, applied) == (stall.epoch, stall.lao)
        ]

    def end(self) -> dict[int, list[tuple[int, int]]]:
        return self._found


def _sample_of(stall: Stall) -> int:
    return (stall.previous_offset or 0) if stall.at == AT_THE_END else stall.at


def lowest(log: Rows, stalled: list[Stall]) -> dict[int, list[tuple[int, int]]]:
    """Return, by ``Stall.at``, the brokers at LAO in each stall that shows them, each with the
    offset of the sample that names it.
    """
    asked = [each for each in stalled if each.shows_lowest]
    if not asked:
        return {}
    columns = ("offset", "epoch", "applied")
    (found,) = log.run(Pass(partial(_Lowest, asked), columns, (RecordType.PROGRESS,), IN_ORDER))
    return found


def attribute(
    log: Rows, stalled: list[Stall], points: Points, served: list[Service]
) -> list[Attribution]:
    """Return the cause of each stall."""
    offsets = points.samples.offset.tolist()

    def next_sample(offset: int) -> int:
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else AT_THE_END

    left: dict[int, list[Departure]] = defaultdict(list)
    for departure in departures(served):
        # A broker in controlled shutdown still applies the log, so it does not hold LAO back.
        if departure.cause not in _SHUT_DOWN:
            left[next_sample(departure.offset)].append(departure)
    back: dict[int, int] = {}
    for offset, at_ms in returns(served):
        at = next_sample(offset)
        back[at] = max(back.get(at, 0), at_ms)
    behind = lowest(log, stalled)

    def cause(stall: Stall) -> Attribution:
        # A broker that left twice during the wait held LAO back once.
        gone = {
            each.broker_id: each for each in left[stall.at] if each.timestamp_ms >= stall.began_ms
        }
        if gone:
            fenced = ((each, gone[each].reason, gone[each].cause) for each in sorted(gone))
            return Attribution(stall, FENCED, tuple(fenced))
        if back.get(stall.at, stall.began_ms) > stall.began_ms:
            return Attribution(stall, NO_BROKER)
        if stall.previous_epoch not in {None, stall.epoch}:
            return Attribution(stall, FAILOVER)
        sample = _sample_of(stall)
        members = tuple(
            (broker, None, None)
            for broker, since in behind.get(stall.at, ())
            if any(_serves(each, broker, since, sample) for each in served)
        )
        return Attribution(stall, BEHIND if members else UNKNOWN, members)

    # LAO does not exist until the first broker of a cluster is in service.
    first = min(back, default=AT_THE_END)
    found = map(cause, stalled)
    return [each for each in found if each.cause != NO_BROKER or each.stall.at > first]


def _serves(each: Service, broker: int, since: int, until: int) -> bool:
    """Return whether a broker was unfenced between two offsets, both inclusive."""
    inside = each.begins <= since and (each.ends is None or until < each.ends)
    return inside and each.broker_id == broker and not each.fenced


def hold_ups(attributed: Iterable[Attribution]) -> list[HoldUp]:
    """Return the hold-ups in order."""
    runs: list[list[Attribution]] = []
    for attribution in sorted(attributed, key=lambda each: each.stall.at):
        if runs and _goes_on(runs[-1], attribution):
            runs[-1].append(attribution)
        else:
            runs.append([attribution])
    return [_hold_up(run) for run in runs]


def _goes_on(run: list[Attribution], attribution: Attribution) -> bool:
    if run[-1].stall.at != attribution.stall.previous_offset:
        return False
    mine = set[int]().union(*(each.broker_ids for each in run))
    its = attribution.broker_ids
    # Stalls without known brokers belong together if they have the same cause.
    return not mine.isdisjoint(its) if mine or its else run[-1].cause == attribution.cause


def _hold_up(run: list[Attribution]) -> HoldUp:
    first, last = run[0].stall, run[-1].stall
    reasons = Counter((reason, cause) for _, reason, cause in run[-1].brokers)
    (reason, cause), _ = reasons.most_common(1)[0] if reasons else ((None, None), 0)
    return HoldUp(
        broker_ids=sorted(set[int]().union(*(each.broker_ids for each in run))),
        cause=run[-1].cause,
        reason=reason,
        broker_cause=cause,
        began_ms=min(each.stall.began_ms for each in run),
        ended_ms=max(each.stall.ended_ms for each in run),
        held_ms=sum(each.stall.held_ms for each in run),
        waited_ms=max(each.stall.waited_ms for each in run),
        records=sum(each.stall.records for each in run),
        first_offset=first.previous_offset,
        last_offset=None if last.at == AT_THE_END else last.at,
    )


def returns(served: Iterable[Service]) -> list[tuple[int, int]]:
    """Return the offset and time at which each period without a broker in service ended, including
    the one before the first broker; AT_THE_END for a period that has not ended.
    """
    changes: dict[int, tuple[int, int]] = {}
    serving = 0
    for each in served:
        if each.fenced:
            continue
        ends = () if each.ends is None or each.ends_ms is None else ((each.ends, each.ends_ms, -1),)
        serving += not ends
        for offset, at_ms, by in ((each.begins, each.begins_ms, 1), *ends):
            # A record that replaces a registration ends and starts a service at one offset.
            before = changes.get(offset, (at_ms, 0))
            changes[offset] = (max(before[0], at_ms), before[1] + by)
    found, level = [], 0
    for offset, (at_ms, by) in sorted(changes.items()):
        if level == 0 and by > 0:
            found.append((offset, at_ms))
        level += by
    return found if serving else [*found, (AT_THE_END, AT_THE_END)]
