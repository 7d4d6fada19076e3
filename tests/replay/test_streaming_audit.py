"""An audit in pieces has the same findings as an audit of the whole log."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from asking import opened
from audited_log import AuditedLog
from log_history import LogHistory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from test_replay_audit import OFFENCES, headless, high_watermark, lao

from raftlog.segments.export import export
from replay.kernels.audit import judge_records
from replay.kernels.facts import Facts
from replay.kernels.steps import Partitions
from replay.rules import of_family
from replay.spark.views import records
from replay.streaming import audit, ledger
from replay.streaming.ledger import Ledger
from replay.streaming.watch import Piece, take

Found = list[tuple[str, int, int]]


def rows_of(spark: SparkSession, log: LogHistory, directory: Path) -> DataFrame:
    export(log, directory)
    return records(spark, opened(directory)).cache()


def audited_rows(rows: DataFrame) -> pa.Table:
    """Return the columns that the streaming audit reads, in order."""
    return audit.with_memory(Piece(rows, 0, 0, lambda _: None))


def in_pieces(rows: DataFrame, bounds: list[int], directory: Path) -> Found:
    for number, (low, high) in enumerate(pairwise(bounds)):
        piece = rows.where((sf.col("offset") >= low) & (sf.col("offset") < high))
        take(piece, number, Ledger(directory), audit.judge())
    found = ledger.output(rows.sparkSession, directory)
    return (
        []
        if found is None
        else sorted((row.rule, row.offset, row.broker_id or -1) for row in found.collect())
    )


@pytest.mark.nightly
def test_pieces_of_a_broken_history_find_each_once(spark: SparkSession, tmp_path: Path) -> None:
    """Even if a boundary separates the record from those that it is compared with."""
    log, expected = AuditedLog(), []
    cuts: list[int] = []
    for breaks in OFFENCES:
        begins = log.end_offset
        expected += breaks(log)
        if breaks is lao:
            # Behind the LAO that a later one goes back behind.
            cuts.append(min(base for base in log.positions if base > begins))
        if breaks is high_watermark:
            # Behind the one that is the highest.
            cuts.append(sorted(base for base in log.positions if base >= begins)[2])
        for name in list(log.topics):
            log.delete_topic(name)
    bounds = [0, *cuts, log.end_offset]
    found = in_pieces(rows_of(spark, log, tmp_path / "export"), bounds, tmp_path / "job")
    assert found == sorted((rule, offset, broker or -1) for rule, offset, broker in expected)


@pytest.mark.nightly
def test_epoch_may_begin_at_a_piece_boundary(spark: SparkSession, tmp_path: Path) -> None:
    log = AuditedLog()
    ((_, offset, _),) = headless(log)
    rows = rows_of(spark, log, tmp_path / "export")
    known = audit.remember(audited_rows(rows.where(sf.col("offset") < offset)))
    piece = pa.concat_tables([known, audited_rows(rows.where(sf.col("offset") >= offset))])
    facts = Facts(audit.rare_of(piece), log.end_offset, since=offset)
    found = judge_records(piece, facts, of_family("quorum"), Partitions(facts))
    assert [(each.rule, each.offset) for each in found] == [("EPOCH_WITHOUT_CONTROLLER", offset)]
