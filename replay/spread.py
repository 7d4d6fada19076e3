"""Work spread over Spark's workers, one task an item, where rows are not what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from replay.workers import set_aside_what_is_loaded

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    spark: SparkSession, items: Sequence[Item], kind: type[Result], work: Callable[[Item], Result]
) -> list[Result]:
    """``work`` of each item, in their order, on the workers; ``kind``: the type of what it gives, a
    struct of msgspec.
    """
    tasks = min(len(items), 4 * spark.sparkContext.defaultParallelism)

    def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_aside_what_is_loaded()
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            found = [msgspec.json.encode(work(items[number])).decode() for number in numbers]
            yield pa.record_batch(
                [pa.array(numbers, pa.int64()), pa.array(found, pa.string())],
                names=["number", "found"],
            )

    rows = spark.range(0, len(items), 1, tasks).mapInArrow(do, "number long, found string")
    found = {row.number: row.found for row in rows.collect()}
    return [msgspec.json.decode(found[number], type=kind) for number in range(len(items))]
