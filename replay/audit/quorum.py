"""Rules about controllers: one an epoch, epochs in order, and each begun by the record of its
election.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History

RULES = (
    rules.TWO_CONTROLLERS_IN_EPOCH,
    rules.CONTROLLER_EPOCH_WENT_BACK,
    rules.EPOCH_WITHOUT_CONTROLLER,
)
_BEGINNINGS = (RecordType.LEADER_CHANGE, RecordType.RECOVERY)
"""What may be the first record of an epoch; a recovery by hand opens one that nobody was elected
in.
"""


def check(history: History) -> DataFrame:
    """Each election, and the range of offsets of each epoch."""
    return _elections(history).unionByName(_epochs(history))


def _elections(history: History) -> DataFrame:
    of_epoch = Window.partitionBy("epoch").orderBy("offset")
    rows = history.of(RecordType.LEADER_CHANGE).select(
        "offset", "epoch", "timestamp_ms", "principal", "leader_id"
    )
    rows = rows.withColumn("earlier", sf.lag(sf.struct("offset", "leader_id")).over(of_epoch))
    return findings(
        rows.withColumn("subject", text("controller epoch {}", sf.col("epoch"))),
        when(
            sf.col("earlier").isNotNull(),
            verdict(
                rules.TWO_CONTROLLERS_IN_EPOCH,
                also=sf.col("earlier.offset"),
                found=text("node {} begins to lead", sf.col("leader_id")),
                expected=text("node {} alone, which has begun before", sf.col("earlier.leader_id")),
            ),
        ),
    )


def _epochs(history: History) -> DataFrame:
    ranges = history.records.groupBy("epoch").agg(
        sf.min("offset").alias("first"),
        sf.max("offset").alias("last"),
        sf.min("timestamp_ms").alias("first_ms"),
        sf.max("timestamp_ms").alias("last_ms"),
    )
    begun = history.of(*_BEGINNINGS).select(
        sf.col("offset").alias("first"), sf.lit(True).alias("begun")
    )
    # One row an epoch: one task's work.
    later = Window.orderBy(sf.desc("epoch")).rowsBetween(Window.unboundedPreceding, -1)
    rows = ranges.withColumn("later", sf.min("first").over(later)).join(begun, "first", "left")
    # Two looks at each: at its first record, and at its last.
    ends = [
        sf.struct(
            sf.lit(end).alias("end"),
            sf.col(end).alias("offset"),
            sf.col(f"{end}_ms").alias("timestamp_ms"),
        )
        for end in ("first", "last")
    ]
    looks = rows.select("*", sf.inline(sf.array(*ends))).withColumn(
        "subject", text("controller epoch {}", sf.col("epoch"))
    )
    return findings(
        looks,
        when(
            (sf.col("end") == "last") & (sf.col("last") > sf.col("later")),
            verdict(
                rules.CONTROLLER_EPOCH_WENT_BACK,
                also=sf.col("later"),
                found=text("epoch {}", sf.col("epoch")),
                expected=text("none below that of the record at {}", sf.col("later")),
            ),
        ),
        when(
            (sf.col("end") == "first") & sf.col("begun").isNull(),
            verdict(
                rules.EPOCH_WITHOUT_CONTROLLER,
                found=sf.lit("another record comes first"),
                expected=sf.lit("LEADER_CHANGE, or the RECOVERY of a recovery by hand"),
            ),
        ),
    )
