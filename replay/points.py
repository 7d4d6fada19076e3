"""The state hash at many offsets, from one fold.

Each change of an entity counts from the last offset of its batch on. So a task adds up, for each
stretch from one offset asked for to the next, what its groups changed within; the stretches of all
tasks, added up from the beginning, are the hashes. The cost is that of one fold, whatever the
number of offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from replay.fold import FOLD_COLUMNS, by_group
from replay.kernels.folding import apply_row
from replay.workers import prepare_worker

_COLUMNS = ("batch_last_offset", *FOLD_COLUMNS)
_SHARES = pa.schema([("stretch", pa.int64()), ("hash", pa.binary())])
_SHARES_DDL = "stretch long, hash binary"
_HASH_BYTES = 16


def state_hashes(
    records: DataFrame,
    offsets: Iterable[int],
    *,
    partitions: int | None = None,
    imported: bool = False,
) -> dict[int, int]:
    """Return the state hash at each of ``offsets``.

    One inside a batch, or beyond the end, means the last whole batch before it.

    ``records`` begin at offset 0. The driver is handed at most one row for each offset and task.
    """
    ascending = sorted(set(offsets))
    if not ascending:
        return {}
    wanted = records.where(sf.col("batch_last_offset") <= ascending[-1])
    rows = by_group(wanted, _COLUMNS, partitions, imported=imported)
    shares = rows.mapInArrow(_sharer(ascending), _SHARES_DDL)
    totals = [0] * len(ascending)
    for stretch, share in shares.collect():
        totals[stretch] += int.from_bytes(share, "big")
    hashes = accumulate(totals)
    return {
        offset: state_hash & HASH_MASK for offset, state_hash in zip(ascending, hashes, strict=True)
    }


def _sharer(ascending: list[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        shares: dict[int, int] = {}
        current: tuple[str, str] | None = None
        draft = ImageBuilder(Image())
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in _COLUMNS)
            for batch_last, kind, id_, *row in zip(*columns, strict=True):
                if (kind, id_) != current:
                    current, draft = (kind, id_), ImageBuilder(Image())
                before = draft.state_hash
                apply_row(draft, id_, *row)
                if draft.state_hash != before:
                    stretch = bisect_left(ascending, batch_last)
                    shares[stretch] = shares.get(stretch, 0) + draft.state_hash - before
        yield _rows(shares)

    return share


def _rows(shares: dict[int, int]) -> pa.RecordBatch:
    """Return the rows of a task: one for each stretch in which something changed."""
    hashes: list[Any] = [
        (share & HASH_MASK).to_bytes(_HASH_BYTES, "big") for share in shares.values()
    ]
    columns = zip((list(shares), hashes), _SHARES, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in columns], schema=_SHARES
    )
