"""Brokers that held LAO back, with the times from which and until which they did.

A *stall* is a sample whose oldest newly covered record had waited for long; records that no sample
covers at the end are one, too. The cause of a stall, by the log; the first that holds:

* ``FENCED``: members were fenced, unregistered or replaced while the record waited, and LAO went on
  without them;
* ``NO_BROKER``: no broker was in service for a part of the time, after a cluster's first one:
  there was no LAO. What waited for that first one was held back by nobody, and is left out;
* ``FAILOVER``: a controller's epoch began meanwhile: until all members have reported to it, LAO is
  unknown;
* ``BEHIND``: members had applied just what LAO was, and less than another one;
* ``UNKNOWN``: the broker has caught up at one blow, and left no trace.

A *hold-up* is a run of stalls by the same brokers, or some of them, without a sample between them
that is none: an outage of a site is one, however many brokers it takes along.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from raftlog.metadata.entities import SHUT_DOWN
from replay.kernels.arrays import MISSING, NEVER, Ints
from replay.lag.applied import AppliedSpans
from replay.lag.result import BEHIND, FAILOVER, FENCED, NO_BROKER, UNKNOWN, LaoStall
from replay.lag.samples import Samples
from replay.lag.waits import Points, Waited
from replay.outages.service import Departure, Service

_ON_ITS_WAY_MS = 250
"""A record that is younger may just be on its way to a broker."""
_SHUT_DOWN = frozenset(each.name for each in SHUT_DOWN)


class Stall(NamedTuple):
    """A stall. ``at``: the sample's offset, or AT_THE_END. ``began_ms``: when the oldest record was
    written; ``held_ms``: the part of the wait since the sample before: parts do not overlap;
    ``records``: how many waited.
    """

    at: int
    epoch: int
    lowest_acknowledged_offset: int | None
    most_applied: int | None
    lag_ms: int | None
    previous_offset: int | None
    previous_epoch: int | None
    began_ms: int
    ended_ms: int
    waited_ms: int
    held_ms: int
    records: int


class Attribution(NamedTuple):
    """Cause of a stall, and its brokers, with the reason and cause of each."""

    stall: Stall
    cause: str
    brokers: tuple[tuple[int, str | None, str | None], ...] = ()

    @property
    def broker_ids(self) -> list[int]:
        """Ids of all its brokers: an outage of a site is one."""
        return sorted(each for each, _, _ in self.brokers)

    @property
    def why(self) -> tuple[str | None, str | None]:
        """The reason and cause that most of them left for."""
        reasons = Counter((reason, cause) for _, reason, cause in self.brokers)
        return reasons.most_common(1)[0][0] if reasons else (None, None)


def _known(value: int) -> int | None:
    return None if value == MISSING else value


def stalls(points: Points, found: Waited, *, least_ms: int) -> list[Stall]:
    """Return the samples whose oldest record had waited for ``least_ms`` or more, and what waits
    for so long at the end of the log.
    """
    sampled = points.samples
    told = []
    long = (points.oldest_ms != NEVER) & (points.waited_ms >= least_ms)
    for place in np.flatnonzero(long).tolist():
        began_ms, waited_ms = int(points.oldest_ms[place]), int(points.waited_ms[place])
        before = place - 1 if place else None
        since = began_ms
        if before is not None:
            since = max(since, int(sampled.timestamp_ms[before]))
        told.append(
            Stall(
                int(sampled.offset[place]),
                int(sampled.epoch[place]),
                _known(int(sampled.lao[place])),
                _known(int(sampled.most_applied[place])),
                _known(int(points.lag_ms[place])),
                None if before is None else int(sampled.offset[before]),
                None if before is None else int(sampled.epoch[before]),
                began_ms,
                began_ms + waited_ms,
                waited_ms,
                max(0, began_ms + waited_ms - since),
                int(points.covered[place]),
            )
        )
    last = _unseen(sampled, found)
    return [*told, last] if last is not None and last.waited_ms >= least_ms else told


def _unseen(sampled: Samples, found: Waited) -> Stall | None:
    """Return the stall of all records that no sample covers; None of a log without samples, where
    LAO is not recorded at all.
    """
    began_ms = int(found.oldest_ms[-1])
    if began_ms == NEVER or not len(sampled):
        return None
    return Stall(
        AT_THE_END,
        found.end_epoch,
        _known(int(sampled.reached[-1])),
        _known(int(sampled.most_applied[-1])),
        found.end_ms - began_ms,
        int(sampled.offset[-1]),
        int(sampled.epoch.max()),
        began_ms,
        found.end_ms,
        found.end_ms - began_ms,
        found.end_ms - max(began_ms, int(sampled.timestamp_ms[-1])),
        int(found.covered[-1]),
    )


def attribute(
    stalled: list[Stall],
    sampled: Samples,
    spans: AppliedSpans,
    departed: Iterable[Departure],
    returned: Iterable[Return],
) -> list[Attribution]:
    """Return the cause of each stall. ``departed``: members that left."""
    offsets = sampled.offset.tolist()

    def next_sample(offset: int) -> int:
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else AT_THE_END

    left: dict[int, list[Departure]] = defaultdict(list)
    for departure in departed:
        # A broker in a controlled shutdown goes on applying: it does not hold LAO back.
        if departure.cause not in _SHUT_DOWN:
            left[next_sample(departure.offset)].append(departure)
    served: dict[int, int] = {}
    for each in returned:
        at = next_sample(each.offset)
        served[at] = max(served.get(at, 0), each.timestamp_ms)
    lowest = _Lowest(stalled, spans)
    found = [_attribute(stall, left[stall.at], served.get(stall.at), lowest) for stall in stalled]
    # Until the first broker of a cluster is in service, there is nobody to hold LAO back.
    first = min(served, default=AT_THE_END)
    return [each for each in found if each.cause != NO_BROKER or each.stall.at > first]


def _attribute(
    stall: Stall, left: list[Departure], served_ms: int | None, lowest: _Lowest
) -> Attribution:
    # A broker that left twice meanwhile held LAO back once.
    gone = {each.broker_id: each for each in left if each.timestamp_ms >= stall.began_ms}
    if gone:
        fenced = ((each, gone[each].reason, gone[each].cause) for each in sorted(gone))
        return Attribution(stall, FENCED, tuple(fenced))
    if served_ms is not None and served_ms > stall.began_ms:
        return Attribution(stall, NO_BROKER)
    if stall.previous_epoch is not None and stall.previous_epoch != stall.epoch:
        return Attribution(stall, FAILOVER)
    behind = tuple((each, None, None) for each in lowest.of(stall))
    return Attribution(stall, BEHIND, behind) if behind else Attribution(stall, UNKNOWN)


class _Lowest:
    """Brokers that had applied just as far as LAO."""

    def __init__(self, stalled: Iterable[Stall], spans: AppliedSpans) -> None:
        self._spans = spans
        places = np.flatnonzero(np.isin(spans.applied, telling(stalled)))
        self._of: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place in places.tolist():
            key = int(spans.epoch[place]), int(spans.applied[place])
            self._of[key].append(place)

    def of(self, stall: Stall) -> Iterator[int]:
        """Yield the brokers, by id."""
        if not _tells(stall):
            return
        sample = stall.previous_offset if stall.at == AT_THE_END else stall.at
        spans = self._spans
        for place in self._of[stall.epoch, stall.lowest_acknowledged_offset or 0]:
            if spans.begins[place] <= sample < spans.ends[place]:
                yield int(spans.broker_id[place])


def telling(stalled: Iterable[Stall]) -> Ints:
    """Return LAO in the stalls that may be caused by brokers that had applied just that."""
    return np.array(
        [each.lowest_acknowledged_offset or 0 for each in stalled if _tells(each)], np.int64
    )


def _tells(stall: Stall) -> bool:
    lao, most = stall.lowest_acknowledged_offset, stall.most_applied
    return (
        lao is not None
        and most is not None
        and most > lao
        and stall.lag_ms is not None
        and stall.lag_ms >= _ON_ITS_WAY_MS
    )


def hold_ups(attributed: Iterable[Attribution]) -> list[LaoStall]:
    """Return the runs of stalls: one for each time that brokers, or an unknown cause, held LAO
    back.
    """
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
    mine = {each[0] for one in run for each in one.brokers}
    its = {each[0] for each in attribution.brokers}
    # Stalls without a broker belong together if they have one cause.
    return not mine.isdisjoint(its) if mine or its else run[-1].cause == attribution.cause


def _hold_up(run: list[Attribution]) -> LaoStall:
    first, last = run[0].stall, run[-1].stall
    brokers = sorted({each[0] for attribution in run for each in attribution.brokers})
    reason, cause = run[-1].why
    return LaoStall(
        broker_ids=brokers,
        cause=run[-1].cause,
        reason=reason,
        broker_cause=cause,
        began_ms=min(each.stall.began_ms for each in run),
        ended_ms=max(each.stall.ended_ms for each in run),
        held_ms=sum(each.stall.held_ms for each in run),
        waited_ms=max(each.stall.waited_ms for each in run),
        records=sum(each.stall.records for each in run),
        samples=len(run),
        first_offset=first.previous_offset,
        last_offset=None if last.at == AT_THE_END else last.at,
    )


class Held(NamedTuple):
    """Totals of one broker: number of times it held LAO back, their sum, and the longest wait."""

    hold_ups: int
    held_ms: int
    longest_ms: int


def by_broker(attributed: Iterable[Attribution], ups: Iterable[LaoStall]) -> dict[int, Held]:
    """Return the totals of each broker that held LAO back. A stall of several brokers counts for
    each of them.
    """
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for up in ups:
        for broker in up.broker_ids:
            found[broker][0] += 1
    for attribution in attributed:
        for broker, _, _ in attribution.brokers:
            found[broker][1] += attribution.stall.held_ms
            found[broker][2] = max(found[broker][2], attribution.stall.waited_ms)
    return {broker: Held(*figures) for broker, figures in found.items()}


AT_THE_END = (1 << 63) - 1
"""Offset that stands for the end: behind the last one."""


class Return(NamedTuple):
    """The record that unfenced the first broker; AT_THE_END both: none did."""

    offset: int
    timestamp_ms: int


def returns(served: Iterable[Service]) -> list[Return]:
    """Return each end of a time in which no broker was in service; such a time is before the first
    one.
    """
    steps: dict[int, tuple[int, int]] = {}

    def step(offset: int, timestamp_ms: int, by: int) -> None:
        # One batch may do both: its records have offsets of their own, but one that replaces a
        # registration does both at one.
        before = steps.get(offset, (timestamp_ms, 0))
        steps[offset] = (max(before[0], timestamp_ms), before[1] + by)

    serving = 0
    for each in served:
        if each.fenced:
            continue
        step(each.begins, each.begins_ms, 1)
        if each.ends is None or each.ends_ms is None:
            serving += 1
        else:
            step(each.ends, each.ends_ms, -1)
    found, level = [], 0
    for offset, (timestamp_ms, by) in sorted(steps.items()):
        if level == 0 and by > 0:
            found.append(Return(offset, timestamp_ms))
        level += by
    return found if serving else [*found, Return(AT_THE_END, AT_THE_END)]
