"""State hashes at many offsets from one fold, in both pools."""

from itertools import pairwise

import pytest
from asking import opened
from log_history import LogHistory
from pyspark.sql import SparkSession

from raftlog.segments.export import export
from replay.engine.fold import state_hashes
from replay.engine.pool import Pool
from replay.export import Export
from replay.spark.pool import SparkPool


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(51).run(700)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Export:
    directory = tmp_path_factory.mktemp("points")
    export(history, directory)
    return opened(directory)


@pytest.mark.parametrize("tasks", [None, 1, 7, 200])
def test_state_hashes_equal_the_nodes_at_every_batch_end(
    history: LogHistory, exported: Export, tasks: int | None
) -> None:
    assert state_hashes(exported, Pool(0), history.hashes, tasks=tasks) == history.hashes


@pytest.mark.parametrize("tasks", [1, 7])
def test_state_hashes_by_a_spark_shuffle_equal_the_nodes(
    spark: SparkSession, history: LogHistory, exported: Export, tasks: int
) -> None:
    pool = SparkPool(spark, 0)
    pool.size = 3
    assert state_hashes(exported, pool, history.hashes, tasks=tasks) == history.hashes


def test_state_hash_inside_a_batch_or_beyond_the_end_is_that_of_the_previous_batch(
    history: LogHistory, exported: Export
) -> None:
    ends = sorted(history.hashes)
    before, end = next((a, b) for a, b in pairwise(ends[200:]) if b - a > 2)
    beyond = history.end_offset + 100
    assert state_hashes(exported, Pool(0), [end - 1, beyond], tasks=3) == {
        end - 1: history.hashes[before],
        beyond: history.hashes[ends[-1]],
    }


def test_state_hash_before_the_first_batch_is_that_of_the_empty_state(exported: Export) -> None:
    assert state_hashes(exported, Pool(0), [-1]) == {-1: 0}
    assert state_hashes(exported, Pool(0), []) == {}
