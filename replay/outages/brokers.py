"""Brokers' time in service and out of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from replay.kernels.facts import BrokerSpan
from replay.outages.model import BrokerOutage, Fencing
from replay.outages.stretch import Stretch


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
