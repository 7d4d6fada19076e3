"""Rules about one partition: who is in its ISR, who leads it, that its epochs grow, and how its
reassignments go.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.audit import reassignments, rules
from replay.audit.finding import findings, ids, partition_subject, text, verdict, when
from replay.audit.history import History

RULES = (
    rules.ISR_NOT_IN_REPLICAS,
    rules.ISR_EMPTY,
    rules.LEADER_OUTSIDE_ISR,
    rules.ISR_GREW_UNPROPOSED,
    rules.UNDECLARED_UNCLEAN_ELECTION,
    rules.PROPOSER_NOT_LEADER,
    rules.LEADER_EPOCH_WENT_BACK,
    rules.PARTITION_EPOCH_WENT_BACK,
    *reassignments.RULES,
)


def check(history: History) -> DataFrame:
    """Each state by itself, and beside the one before it."""
    rows = history.steps.withColumnsRenamed({"begins": "offset", "begins_ms": "timestamp_ms"})
    rows = rows.withColumn("subject", partition_subject())
    isr, leader, before = sf.col("isr"), sf.col("leader"), sf.col("before.begins")
    strangers = (sf.size(sf.array_except("isr", "replicas")) > 0) | (
        sf.size("isr") != sf.size(sf.array_distinct("isr"))
    )
    unproposed = sf.col("changed") & (sf.size("unproposed") > 0) & ~sf.col("unclean")
    leads_now = sf.array_contains("unproposed", leader)
    stated = (
        when(
            strangers,
            verdict(
                rules.ISR_NOT_IN_REPLICAS,
                found=text("ISR {}", ids(isr)),
                expected=text("a part of {}", ids(sf.col("replicas"))),
            ),
        ),
        when(
            sf.size("isr") == 0,
            verdict(
                rules.ISR_EMPTY, found=sf.lit("ISR []"), expected=sf.lit("at least its last member")
            ),
        ),
        when(
            (leader >= 0) & ~sf.array_contains("isr", leader),
            verdict(
                rules.LEADER_OUTSIDE_ISR,
                broker_id=leader,
                found=text("leader {}", leader),
                expected=text("one of the ISR {}, or nobody", ids(isr)),
            ),
        ),
    )
    stepped = (
        when(
            unproposed & leads_now,
            verdict(
                rules.UNDECLARED_UNCLEAN_ELECTION,
                broker_id=leader,
                also=before,
                found=text(
                    "leader {}, ISR {}, behind ISR {}", leader, ids(isr), ids(sf.col("before.isr"))
                ),
                expected=sf.lit("a leader of the ISR, or one alone in it and RECOVERING"),
            ),
        ).when(
            unproposed,
            verdict(
                rules.ISR_GREW_UNPROPOSED,
                broker_id=sf.element_at("unproposed", 1),
                also=before,
                found=text("ISR {} behind {}", ids(isr), ids(sf.col("before.isr"))),
                expected=text("a proposal that names {}", ids(sf.col("unproposed"))),
            ),
        ),
        when(
            sf.col("proposed") & (sf.col("proposer_id") != sf.col("before.leader")),
            verdict(
                rules.PROPOSER_NOT_LEADER,
                broker_id=sf.col("proposer_id"),
                also=before,
                found=text("proposed by broker {}", sf.col("proposer_id")),
                expected=text("by the leader, {}", sf.col("before.leader")),
            ),
        ),
        when(
            sf.col("leader_epoch") < sf.col("before.leader_epoch"),
            verdict(
                rules.LEADER_EPOCH_WENT_BACK,
                also=before,
                found=text("leader epoch {}", sf.col("leader_epoch")),
                expected=text("{} or more", sf.col("before.leader_epoch")),
            ),
        ),
        when(
            sf.col("partition_epoch") <= sf.col("before.partition_epoch"),
            verdict(
                rules.PARTITION_EPOCH_WENT_BACK,
                also=before,
                found=text("partition epoch {}", sf.col("partition_epoch")),
                expected=text("more than {}", sf.col("before.partition_epoch")),
            ),
        ),
    )
    return findings(rows, *stated, *stepped, *reassignments.charges())
