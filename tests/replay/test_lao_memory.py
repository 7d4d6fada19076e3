"""Looking at LAO holds little of each progress record, and nothing of what each broker says in it;
and it comes to the same however the log is cut.
"""

import tracemalloc
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from replay.jobs import lao
from replay.kernels.facts import BrokerSpan
from replay.kernels.passes import Pass

Found = TypeVar("Found")
BROKERS = 24
EVERY = 4
"""Number of records to each progress record, including it."""
SLICE = 1000
KEPT_BYTES = 550
"""Bytes of a progress record for any number of brokers: some forty numbers."""


class MadeUp:
    """A log that is read slice by slice, in parts."""

    def __init__(self, slices: Sequence[int], parts: int = 1) -> None:
        """Take the offsets at which slices begin; the last one is the end."""
        self._edges, self._parts = slices, parts
        self.most_in_arrow = 0
        self.end_offset = slices[-1]

    def run(self, work: Pass[Found]) -> list[Found]:
        found = []
        parts = 1 if work.by else self._parts
        for one in range(parts):
            part = work.begin()
            for rows in self._slices(one, parts):
                of_types = rows if work.types is None else rows.filter(progress_of(rows))
                part.take(of_types.select(list(work.columns)))
                self.most_in_arrow = max(self.most_in_arrow, pa.total_allocated_bytes())
            found.append(part.end())
        return found

    def table(self, columns: Sequence[str], types: Collection[RecordType]) -> pa.Table:
        raise AssertionError("all of them at once are too many")

    def _slices(self, part: int, parts: int) -> Iterator[pa.Table]:
        slices = list(pairwise(self._edges))
        share = -(-len(slices) // parts)
        for begins, ends in slices[part * share : (part + 1) * share]:
            yield rows_of(begins, ends)


def progress_of(rows: pa.Table) -> pa.Array:
    return pa.array(np.asarray(rows["type"]) == RecordType.PROGRESS)


def hashed(*numbers: Any) -> npt.NDArray[np.int64]:
    total = np.zeros(1, np.int64)
    for each in numbers:
        total = (total * 1_000_003 + each) % 2_147_483_647
        total = (total * 48_271 + 11) % 2_147_483_647
    return total


def rows_of(begins: int, ends: int) -> pa.Table:
    """A record says the same in whatever slice it comes. Brokers lag by some records, and now and
    then by hundreds; a controller follows another one.
    """
    offset = np.arange(begins, ends)
    progress = offset % EVERY == EVERY - 1
    samples, brokers = offset[progress], np.arange(BROKERS)
    lag = hashed(samples[:, None], brokers[None, :]) % 5
    far = hashed(samples[:, None] // 40, brokers[None, :], 3) % 97 == 0
    lag = np.where(far, samples[:, None] % 160 + 300 * (brokers[None, :] % 3), lag)
    applied = np.maximum(samples[:, None] - 1 - lag, 0)
    # Of each sample some brokers say nothing.
    says = hashed(samples[:, None], brokers[None, :], 7) % 3 > 0
    entry = pa.StructArray.from_arrays(
        [
            pa.array(np.broadcast_to(brokers, says.shape)[says], pa.int32()),
            pa.array(np.broadcast_to(brokers, says.shape)[says], pa.int64()),
            pa.array(applied[says], pa.int64()),
        ],
        ["broker_id", "broker_epoch", "applied_offset"],
    )
    counts = np.zeros(len(offset), np.int64)
    counts[progress] = says.sum(axis=1)
    lowest = np.zeros(len(offset), np.int64)
    lowest[progress] = applied.min(axis=1)
    columns: dict[str, Any] = {
        "offset": offset,
        "epoch": (1 + offset // 1500).astype(np.int32),
        "timestamp_ms": 250 * (offset + offset // 333 * 8),
        "type": np.where(progress, int(RecordType.PROGRESS), int(RecordType.CONFIG)),
        "lowest_acknowledged_offset": pa.array(lowest, mask=~progress),
        "high_watermark": pa.array(offset, mask=~progress),
        "applied": pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), entry
        ),
    }
    for name in ("acknowledged_sketch", "told_sketch"):
        columns[name] = pa.nulls(len(offset), SCHEMA.field(name).type)
    return pa.table(columns)


def brokers() -> list[BrokerSpan]:
    """Some are fenced for a while, more than once."""

    def span(broker: int, begins: int, ends: int, fenced: bool) -> BrokerSpan:
        times = {"begins": begins, "begins_ms": 250 * begins, "ends": ends, "ends_ms": 250 * ends}
        return BrokerSpan(
            broker_id=broker,
            broker_epoch=broker,
            epoch=1,
            fenced=fenced,
            in_controlled_shutdown=False,
            rack=None,
            reason=None,
            cause=None,
            registration=begins == 0,
            incarnation_id=None,
            principal=None,
            batch_base_offset=begins,
            batch_last_offset=begins,
            supported_features=None,
            log_dirs=None,
            **times,
        )

    spans = []
    for each in range(BROKERS):
        edges = [0, *(range(700 + each, 2200, 350) if each % 4 == 0 else ()), 1 << 40]
        for place, (begins, ends) in enumerate(pairwise(edges)):
            spans.append(span(each, begins, ends, fenced=place % 2 == 1))
    return spans


def look(slices: Sequence[int], parts: int = 1, since_ms: int | None = None) -> lao.Lao:
    return lao.look(MadeUp(slices, parts), brokers(), stall_ms=5_000, since_ms=since_ms)


@pytest.mark.parametrize("since_ms", [None, 250 * 1800])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("length", [37, 200])
def test_words_are_the_same_however_the_log_is_cut(
    length: int, parts: int, since_ms: int | None
) -> None:
    end = 3001
    whole = look([0, end], since_ms=since_ms)
    cut = look([*range(0, end, length), end], parts, since_ms)
    assert cut.words == whole.words
    assert cut.attributed == whole.attributed
    assert cut.hold_ups == whole.hold_ups
    assert len(whole.words) == BROKERS
    assert any(blame.brokers for blame in whole.attributed)
    assert max(each.max_lag_offsets for each in whole.words) > 500


def peak(slices: int) -> int:
    log, members = MadeUp(range(0, slices * SLICE + 1, SLICE)), brokers()
    tracemalloc.start()
    try:
        found = lao.look(log, members, stall_ms=1 << 40)
        assert len(found.points.samples) == slices * SLICE // EVERY
        # What Arrow holds is not Python's.
        return tracemalloc.get_traced_memory()[1] + log.most_in_arrow
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_what_brokers_say() -> None:
    peak(2)
    few, many = 16, 80
    grown = (peak(many) - peak(few)) / ((many - few) * SLICE / EVERY)
    assert grown < KEPT_BYTES
