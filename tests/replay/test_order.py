"""Windows over the whole log in buckets: the same as one window over all of it, wherever the
buckets end.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from replay.order import ONE_TASK, Order, Running


@pytest.mark.parametrize("order", [Order(2), ONE_TASK], ids=["buckets", "one task"])
@pytest.mark.nightly
def test_what_is_carried_along(order: Order, spark: SparkSession) -> None:
    rng = Random(5)
    # Whole buckets without a row, and values that are null.
    rows = [
        (at, rng.choice([None, rng.randrange(100)])) for at in sorted(rng.sample(range(60), 20))
    ]
    found = order.so_far(
        spark.createDataFrame(rows, "offset long, v long"),
        last=Running(sf.col("v")),
        before=Running(sf.col("v"), including=False),
        most=Running(sf.col("v"), "max"),
        most_before=Running(sf.col("v"), "max", including=False),
        total=Running(sf.col("v"), "sum"),
    )
    expected = []
    for index, (at, value) in enumerate(rows):
        to_here: list[Any] = [v for _, v in rows[: index + 1] if v is not None]
        earlier: list[Any] = [v for _, v in rows[:index] if v is not None]
        last, before = (to_here or [None])[-1], (earlier or [None])[-1]
        most, most_before = max(to_here, default=None), max(earlier, default=None)
        expected.append((at, value, last, before, most, most_before, sum(to_here)))
    assert sorted(tuple(row) for row in found.collect()) == expected


@pytest.mark.parametrize("order", [Order(2), ONE_TASK], ids=["buckets", "one task"])
def test_the_next_event(order: Order, spark: SparkSession) -> None:
    rng = Random(6)
    keys = sorted(rng.sample(range(10, 50), 6))
    asked = [*range(60), None]
    rows = spark.createDataFrame([(at,) for at in asked], "at long")
    events = spark.createDataFrame([(key, f"at {key}") for key in keys], "key long, text string")
    found = (
        order.next_event(rows, events, at="at", key="key", name="next")
        .select("at", "next.text")
        .collect()
    )
    first = {
        at: next((f"at {key}" for key in keys if at is not None and key >= at), None)
        for at in asked
    }
    assert {row["at"]: row["text"] for row in found} == first
    assert (
        order.next_event(rows, events.limit(0), at="at", key="key", name="next")
        .where("next IS NOT NULL")
        .count()
        == 0
    )
