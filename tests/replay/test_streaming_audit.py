"""An audit in pieces has the same findings as an audit of the whole log."""

from pathlib import Path

import pyarrow as pa
import pytest
from asking import written
from audited_log import AuditedLog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from spark_runs import audited_rows, in_pieces, rows_of
from test_replay_audit import OFFENCES, headless, high_watermark, lao

from replay.kernels.audit import judge_records
from replay.kernels.facts import Facts
from replay.kernels.steps import Partitions
from replay.rules import of_family
from replay.streaming import audit


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
    rows = rows_of(spark, written(log, tmp_path / "export"))
    alerts = in_pieces(rows, bounds, tmp_path / "job", audit.judge())
    found = sorted((row.rule, row.offset, row.broker_id or -1) for row in alerts)
    assert found == sorted((rule, offset, broker or -1) for rule, offset, broker in expected)


@pytest.mark.nightly
def test_epoch_may_begin_at_a_piece_boundary(spark: SparkSession, tmp_path: Path) -> None:
    log = AuditedLog()
    ((_, offset, _),) = headless(log)
    rows = rows_of(spark, written(log, tmp_path / "export"))
    known = audit.remember(audited_rows(rows.where(sf.col("offset") < offset)))
    piece = pa.concat_tables([known, audited_rows(rows.where(sf.col("offset") >= offset))])
    facts = Facts(audit.rare_of(piece), log.end_offset, since=offset)
    found = judge_records(piece, facts, of_family("quorum"), Partitions(facts))
    assert [(each.rule, each.offset) for each in found] == [("EPOCH_WITHOUT_CONTROLLER", offset)]
