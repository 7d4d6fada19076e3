"""Applied offsets of each broker, by the samples: each holds until a sample names a newer one.

A sample names the brokers that changed since the last one, so the words are as many as the log's
entries, not samples times brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from replay.kernels.arrays import MISSING, NEVER, Bools, Ints, carried
from replay.kernels.facts import BrokerSpan
from replay.lag.samples import Samples, entries, shifted


@dataclass(frozen=True)
class Words:
    """Words of members: one place for each time that one held: from the sample that names it
    (``begins``, its offset) to the next one that does, or to its leaving (``ends``, exclusive).

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
        """Return some of them."""
        return Words(**{name: values[chosen] for name, values in vars(self).items()})


class Entries(NamedTuple):
    """Applied offsets in samples: one place for each broker's entry, in order.

    ``high``: the sample's high watermark; ``known``, ``known_ms``: that of the sample before it,
    and its time. ``tells``: a word that begins with it is asked for.
    """

    broker: Ints
    offset: Ints
    ms: Ints
    epoch: Ints
    applied: Ints
    high: Ints
    known: Ints
    known_ms: Ints
    tells: Bools

    def of(self, chosen: Bools | Ints) -> Entries:
        """Return some of them."""
        return Entries._make(values[chosen] for values in self)


def said(
    column: pa.ChunkedArray, offset: Ints, timestamp_ms: Ints, epoch: Ints, high_watermark: Ints
) -> Entries:
    """Return the entries of a column ``applied``, beside what else its samples say."""
    where, broker, _, applied = entries(column)
    return Entries(
        broker,
        offset[where],
        timestamp_ms[where],
        epoch[where],
        applied,
        high_watermark[where],
        shifted(high_watermark)[where],
        shifted(timestamp_ms)[where],
        np.ones(len(where), np.bool_),
    )


def words(sampled: Samples, brokers: Iterable[BrokerSpan]) -> Words:
    """Return the words in samples that were made of whole records."""
    numbers = sampled.offset, sampled.timestamp_ms, sampled.epoch, sampled.high_watermark
    return words_of(said(sampled.table["applied"], *numbers), standings(brokers))


def words_of(entry: Entries, standing: Ints) -> Words:
    """Return the words of the members, by broker and in order.

    A broker is a member while it is unfenced (the committed image's side of
    ``controller/visibility/lao.py``). A word is void under another controller: what that one says
    next proves nothing about how long the word was true.
    """
    count = len(standing)
    nothing, no = np.full(count, MISSING, np.int64), np.zeros(count, np.bool_)
    rows = {
        "broker": np.concatenate([entry.broker, standing[:, 0]]),
        "offset": np.concatenate([entry.offset, standing[:, 1]]),
        "ms": np.concatenate([entry.ms, standing[:, 2]]),
        "up": np.concatenate([np.full(len(entry.broker), MISSING, np.int64), standing[:, 3]]),
        "applied": np.concatenate([entry.applied, nothing]),
        "epoch": np.concatenate([entry.epoch, nothing]),
        "high": np.concatenate([entry.high, np.zeros(count, np.int64)]),
        # All below a change of a registration was committed before it, or with it.
        "known": np.concatenate([entry.known, standing[:, 1]]),
        "known_ms": np.concatenate([entry.known_ms, standing[:, 2]]),
        "tells": np.concatenate([entry.tells, no]),
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
    return found.of(rows["tells"] & (rows["applied"] != MISSING) & (up == 1))


def standings(brokers: Iterable[BrokerSpan]) -> Ints:
    """Return the log's changes of brokers, each of which ends its word: broker, offset, time,
    whether it counts from here on.
    """
    rows: list[tuple[int, int, int, int]] = []
    spans = sorted(brokers, key=lambda span: (span.broker_id, span.begins))
    for span, next_ in zip_longest(spans, spans[1:]):
        rows.append((span.broker_id, span.begins, span.begins_ms, int(not span.fenced)))
        followed = (
            next_ is not None and next_.broker_id == span.broker_id and next_.begins == span.ends
        )
        if span.ends_ms is not None and not followed:
            rows.append((span.broker_id, span.ends, span.ends_ms, 0))
    return np.array(rows, np.int64).reshape(len(rows), 4)
