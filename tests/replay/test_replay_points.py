"""State hashes at many offsets from one fold."""

from __future__ import annotations

from itertools import pairwise

import pytest
from log_history import LogHistory
from pyspark.sql import DataFrame, SparkSession

from raftlog.segments.export import export
from replay.opened import open_export
from replay.points import state_hashes
from replay.request import JobRequest
from replay.source import records


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(51).run(700)


@pytest.fixture(scope="module")
def rows(
    spark: SparkSession, history: LogHistory, tmp_path_factory: pytest.TempPathFactory
) -> DataFrame:
    directory = tmp_path_factory.mktemp("points")
    export(history, directory)
    return records(spark, open_export(JobRequest(job="state", export=str(directory))))


def test_at_every_end_of_a_batch_it_is_what_the_nodes_had(
    history: LogHistory, rows: DataFrame
) -> None:
    assert state_hashes(rows, history.hashes) == history.hashes


def test_an_offset_inside_a_batch_or_beyond_the_end_means_the_batch_before(
    history: LogHistory, rows: DataFrame
) -> None:
    ends = sorted(history.hashes)
    before, end = next((a, b) for a, b in pairwise(ends[200:]) if b - a > 2)
    beyond = history.end_offset + 100
    assert state_hashes(rows, [end - 1, beyond], partitions=3) == {
        end - 1: history.hashes[before],
        beyond: history.hashes[ends[-1]],
    }


def test_before_the_first_batch_there_is_nothing_and_nothing_asked_is_nothing_answered(
    rows: DataFrame,
) -> None:
    assert state_hashes(rows, [-1]) == {-1: 0}
    assert state_hashes(rows, []) == {}
