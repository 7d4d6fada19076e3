"""Brokers in and out of service: when one was fenced, why, and until when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import NamedTuple

from raftlog.metadata.entities import PLANNED
from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan
from replay.outages.model import BrokerOutage, Fencing, Stretch

REGISTERED_ANEW, UNREGISTERED = "registered anew", "unregistered"
"""Reasons that no record gives: another process took the place of one that had not been fenced; the
registration was removed.
"""
_PLANNED = frozenset(each.name for each in PLANNED)


class Service(NamedTuple):
    """A time in which a broker was ``fenced``, or was not: two neighbours differ.

    Offsets; ``ends`` None: still. ``reason`` and ``cause`` are of its beginning. ``follows``: it
    begins where the one before ended; else the broker was not registered meanwhile; ``followed``.
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
    """Departure of a broker from service. ``cause`` None: it was unregistered."""

    broker_id: int
    offset: int
    timestamp_ms: int
    reason: str | None
    cause: str | None


def service(brokers: Iterable[BrokerSpan]) -> list[Service]:
    """Return the spans of brokers put together, by broker and in order."""
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
    """Return each time that a broker fell out of service. To be fenced at first is none.

    ``planned``: it shut down in order, or was asked to be fenced; ``unregistered``: that is how it
    ended.
    """
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
    """Return the times at which brokers left service, for any reason."""
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


def by_broker(
    brokers: Iterable[BrokerSpan], fenced: Iterable[Fencing], stretch: Stretch
) -> list[BrokerOutage]:
    """Return one row a broker that was registered within the stretch.

    The time before a broker was unfenced for the first time is no outage.
    """
    life: dict[int, int] = {}
    for span in brokers:
        clipped = stretch.clip_one(span.begins_ms, span.ends_ms)
        if clipped is not None:
            life[span.broker_id] = life.get(span.broker_id, 0) + clipped[1] - clipped[0]
    out: dict[int, list[tuple[int, Fencing]]] = defaultdict(list)
    for each in fenced:
        clipped = stretch.clip_one(each.begins_ms, each.ends_ms)
        if clipped is not None:
            out[each.broker_id].append((clipped[1] - clipped[0], each))
    return [
        BrokerOutage(
            broker_id,
            life_ms,
            len(out[broker_id]),
            sum(length for length, _ in out[broker_id]),
            sum(length for length, each in out[broker_id] if each.planned),
            max((length for length, _ in out[broker_id]), default=0),
            any(each.ends is None for _, each in out[broker_id]),
        )
        for broker_id, life_ms in sorted(life.items())
    ]
