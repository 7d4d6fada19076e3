"""What each broker said of itself: the offset it had applied, for as long as nothing newer was
said.

A sample names the brokers that changed since the last one, so the words are as many as the log's
entries, not samples times brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from replay.kernels.arrays import MISSING, NEVER, Bools, Ints, carried
from replay.kernels.facts import BrokerSpan
from replay.kernels.histogram import percentile
from replay.lag.samples import Samples, entries, shifted
from replay.lag.waits import Asked, Waited


@dataclass(frozen=True)
class Words:
    """One place for each time a member's word stood: from the sample that names it (``begins``, its
    offset) to the next one that does, or to its leaving (``ends``, exclusive).

    ``ends``, ``ends_ms``: NEVER: still. ``applied`` is inclusive, ``lag_offsets`` from it to the
    last committed record at the beginning; ``known`` and ``known_ms``: what was committed at the
    end, as far as the log tells it, and when (MISSING: it does not).
    """

    broker_id: Ints
    epoch: Ints
    begins: Ints
    ends: Ints
    ends_ms: Ints
    applied: Ints
    lag_offsets: Ints
    known: Ints
    known_ms: Ints

    def of(self, chosen: Bools | Ints) -> Words:
        """Some of them."""
        return Words(**{name: values[chosen] for name, values in vars(self).items()})

    def since(self, since_ms: int) -> Words:
        """Those that stood then, or later."""
        return self.of(self.ends_ms >= since_ms)


@dataclass(frozen=True)
class BrokerWords:
    """Of one broker: how often it was named, what it had applied last, and how far it was behind.

    ``max_lag_ms``: the age of the oldest record that it had not applied.
    """

    broker_id: int
    reports: int
    last_applied_offset: int
    p50_lag_offsets: int
    max_lag_offsets: int
    max_lag_ms: int


def words(sampled: Samples, brokers: Iterable[BrokerSpan]) -> Words:
    """The words of the members, by broker and in order.

    A broker is a member while it is unfenced (the committed image's side of
    ``controller/visibility/lao.py``). A word is void under another controller: what that one says
    next proves nothing about how long the word was true.
    """
    where, broker, _, applied = entries(sampled.table["applied"])
    standing = _standings(brokers)
    said, count = len(where), len(standing)
    rows = {
        "broker": np.concatenate([broker, standing[:, 0]]),
        "offset": np.concatenate([sampled.offset[where], standing[:, 1]]),
        "ms": np.concatenate([sampled.timestamp_ms[where], standing[:, 2]]),
        "up": np.concatenate([np.full(said, MISSING, np.int64), standing[:, 3]]),
        "applied": np.concatenate([applied, np.full(count, MISSING, np.int64)]),
        "epoch": np.concatenate([sampled.epoch[where], np.full(count, MISSING, np.int64)]),
        "high": np.concatenate([sampled.high_watermark[where], np.zeros(count, np.int64)]),
        # All below a change of a registration was committed before it, or with it.
        "known": np.concatenate([shifted(sampled.high_watermark)[where], standing[:, 1]]),
        "known_ms": np.concatenate([shifted(sampled.timestamp_ms)[where], standing[:, 2]]),
    }
    order = np.lexsort([rows["offset"], rows["broker"]])
    rows = {name: values[order] for name, values in rows.items()}
    first = np.ones(len(order), np.bool_)
    first[1:] = rows["broker"][1:] != rows["broker"][:-1]
    last = np.concatenate([first[1:], [True]]) if len(order) else first

    def after(name: str, nothing: int) -> Ints:
        values = np.concatenate([rows[name][1:], [nothing]]) if len(order) else rows[name]
        return np.where(last, nothing, values)

    up = carried(rows["up"], first)
    next_epoch = after("epoch", MISSING)
    same = (next_epoch == MISSING) | (next_epoch == rows["epoch"])
    found = Words(
        rows["broker"],
        rows["epoch"],
        rows["offset"],
        after("offset", NEVER),
        after("ms", NEVER),
        rows["applied"],
        np.maximum(rows["high"] - 1 - rows["applied"], 0),
        np.where(same, after("known", MISSING), MISSING),
        np.where(same, after("known_ms", MISSING), MISSING),
    )
    return found.of((rows["applied"] != MISSING) & (up == 1))


def _standings(brokers: Iterable[BrokerSpan]) -> Ints:
    """What the log says of a broker itself, each of which ends its word: broker, offset, time,
    whether it counts from here on.
    """
    rows: list[tuple[int, int, int, int]] = []
    spans = sorted(brokers, key=lambda span: (span.broker_id, span.begins))
    for span, next_ in zip(spans, [*spans[1:], None], strict=True):
        rows.append((span.broker_id, span.begins, span.begins_ms, int(not span.fenced)))
        followed = (
            next_ is not None and next_.broker_id == span.broker_id and next_.begins == span.ends
        )
        if span.ends_ms is not None and not followed:
            rows.append((span.broker_id, span.ends, span.ends_ms, 0))
    return np.array(rows, np.int64).reshape(len(rows), 4)


def lags(stood: Words, asked: Asked, found: Waited) -> list[BrokerWords]:
    """One a broker. ``found``: of a pass that was asked for the record behind each word."""
    at = np.searchsorted(asked.offsets, stood.applied + 1)
    known = stood.known != MISSING
    behind = known & (found.next[at] < stood.known)
    ends_ms = np.where(behind, stood.known_ms - found.next_ms[at], 0)
    ends = np.where(known, np.maximum(stood.known - 1 - stood.applied, 0), 0)
    most = np.maximum(stood.lag_offsets, ends)
    brokers, starts, counts = np.unique(stood.broker_id, return_index=True, return_counts=True)
    told = []
    for broker, start, end in zip(brokers, starts, starts + counts, strict=True):
        mine = slice(int(start), int(end))
        told.append(
            BrokerWords(
                int(broker),
                int(end - start),
                int(stood.applied[mine][-1]),
                percentile(stood.lag_offsets[mine], 50) or 0,
                int(most[mine].max()),
                int(ends_ms[mine].max()),
            )
        )
    return told
