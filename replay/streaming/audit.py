"""The audit of an export that is still written: the same rules, each micro-batch with what is
remembered of those before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession

from replay.audit.check import audit, beginnings, partitions
from replay.audit.history import History
from replay.audit.memory import remember
from replay.audit.rules import RULES, Rule
from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, TopicLife
from replay.streaming.watch import Judge, Judged, Piece

NAME = "audit"
"""Of the job, in its directory."""
_BROKERS_DDL = (
    "broker_id int, broker_epoch long, begins long, begins_ms long, epoch int, fenced boolean,"
    " in_controlled_shutdown boolean, rack string, reason string, cause string,"
    " registration boolean, incarnation_id string, principal string, batch_base_offset long,"
    " batch_last_offset long, ends long, ends_ms long"
)
_TOPICS_DDL = (
    "topic_id string, topic_name string, begins long, begins_ms long, ends long, ends_ms long"
)


def judge(rules: Collection[Rule] = RULES, super_users: Collection[str] = ()) -> Judge:
    """Findings against the rules (:data:`replay.kernels.finding.FINDING_DDL`) as alerts."""

    def judge_piece(piece: Piece, stack: ExitStack) -> Judged:
        memory = piece.remembered("records")
        history = History(
            # What a build remembered that had fewer columns has null in the others.
            piece.records
            if memory is None
            else memory.unionByName(piece.records, allowMissingColumns=True),
            piece.end_offset,
            piece.since,
            brokers_before=piece.remembered("brokers"),
            partitions_before=piece.remembered("partitions"),
            topics_before=piece.remembered("topics"),
            super_users=frozenset(super_users),
        )
        stack.enter_context(history.kept())
        spark = history.records.sparkSession
        facts = history.facts
        state = {
            "brokers": _open(spark, facts.brokers, _BROKERS_DDL),
            "partitions": partitions(history),
            "topics": _open(spark, facts.topics, _TOPICS_DDL),
            "records": remember(history),
        }
        begins = beginnings(history, rules)
        judging = [rule for rule in rules if begins[rule.id] is not None] or rules
        return Judged({"alerts": audit(history, judging)}, state)

    return judge_piece


def _open(
    spark: SparkSession, spans: Sequence[BrokerSpan] | Sequence[TopicLife], ddl: str
) -> DataFrame:
    """Those that have not ended."""
    rows = [(*span[:-2], None, None) for span in spans if span.ends == NEVER]
    return spark.createDataFrame(rows, ddl)
