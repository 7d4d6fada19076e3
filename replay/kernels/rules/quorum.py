"""Rules about controllers: one an epoch, epochs in order, and each begun by the record of its
election.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.kernels.arrays import Ints, ints
from replay.kernels.facts import Facts, Row
from replay.kernels.finding import Finding, Place, offence

RULES = (
    rules.TWO_CONTROLLERS_IN_EPOCH,
    rules.CONTROLLER_EPOCH_WENT_BACK,
    rules.EPOCH_WITHOUT_CONTROLLER,
)
COLUMNS = ("epoch", "offset", "timestamp_ms")
"""What :func:`epochs_of` needs of all records."""


class Epoch(NamedTuple):
    """From where to where an epoch goes."""

    epoch: int
    first: int
    last: int
    first_ms: int
    last_ms: int


def epochs_of(table: pa.Table) -> Iterator[Epoch]:
    """The epochs of a slice; one may come several times."""
    epoch, offset, timestamp = (ints(table[name]) for name in COLUMNS)
    if not len(epoch):
        return
    starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1))

    def least(values: Ints) -> Ints:
        return np.minimum.reduceat(values, starts)

    def most(values: Ints) -> Ints:
        return np.maximum.reduceat(values, starts)

    columns = (epoch[starts], least(offset), most(offset), least(timestamp), most(timestamp))
    yield from (Epoch(*values) for values in zip(*(each.tolist() for each in columns), strict=True))


def together(epochs: Iterable[Epoch]) -> list[Epoch]:
    """Each epoch once, in order."""
    found: dict[int, Epoch] = {}
    for new in epochs:
        old = found.get(new.epoch, new)
        found[new.epoch] = Epoch(
            new.epoch,
            min(old.first, new.first),
            max(old.last, new.last),
            min(old.first_ms, new.first_ms),
            max(old.last_ms, new.last_ms),
        )
    return [found[epoch] for epoch in sorted(found)]


def check(facts: Facts, epochs: Iterable[Epoch]) -> Iterator[Finding]:
    """Each election, and the range of offsets of each epoch."""
    columns = ("type", "offset", "epoch", "timestamp_ms", "principal", "leader_id")
    begun = facts.of(RecordType.LEADER_CHANGE, RecordType.RECOVERY, columns=columns)
    yield from _elections(row for row in begun if row["type"] == RecordType.LEADER_CHANGE)
    # A recovery by hand opens an epoch that nobody was elected in.
    yield from _ranges(together(epochs), {row["offset"] for row in begun})


def _elections(rows: Iterable[Row]) -> Iterator[Finding]:
    before: dict[int, Row] = {}
    for row in rows:
        earlier = before.get(row["epoch"])
        before[row["epoch"]] = row
        if earlier is not None:
            yield offence(
                rules.TWO_CONTROLLERS_IN_EPOCH,
                Place(
                    row["offset"],
                    row["epoch"],
                    row["timestamp_ms"],
                    row["principal"],
                    f"controller epoch {row['epoch']}",
                ),
                also=earlier["offset"],
                found=f"node {row['leader_id']} begins to lead",
                expected=f"node {earlier['leader_id']} alone, which has begun before",
            )


def _ranges(epochs: list[Epoch], begun: set[int]) -> Iterator[Finding]:
    later: int | None = None
    for one in reversed(epochs):
        subject = f"controller epoch {one.epoch}"
        if later is not None and one.last > later:
            yield offence(
                rules.CONTROLLER_EPOCH_WENT_BACK,
                Place(one.last, one.epoch, one.last_ms, None, subject),
                also=later,
                found=f"epoch {one.epoch}",
                expected=f"none below that of the record at {later}",
            )
        if one.first not in begun:
            yield offence(
                rules.EPOCH_WITHOUT_CONTROLLER,
                Place(one.first, one.epoch, one.first_ms, None, subject),
                found="another record comes first",
                expected="LEADER_CHANGE, or the RECOVERY of a recovery by hand",
            )
        later = one.first if later is None else min(later, one.first)
