"""Rules about numbered writes (exactly once): a number of a client is executed once, and never
after the client was closed.

A batch names its client and number in its header; a client's id is the offset of the record that
opened it. An id that no record has opened is nobody's affair: nothing is remembered of it, and
nothing was promised.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History

RULES = (rules.NUMBER_EXECUTED_TWICE, rules.CLOSED_CLIENT_WROTE)


def check(history: History) -> DataFrame:
    """Each batch that names a client, by its last record."""
    of_number = Window.partitionBy("client_id", "sequence").orderBy("offset")
    numbered = (
        (sf.col("client_id") != 0)
        & (sf.col("sequence") != 0)
        & (sf.col("offset") == sf.col("batch_last_offset"))
    )
    rows = history.records.where(numbered).select(
        "offset",
        "batch_base_offset",
        "epoch",
        "timestamp_ms",
        "principal",
        "client_id",
        "sequence",
        sf.lag("offset").over(of_number).alias("earlier"),
    )
    rows = rows.join(_clients(history), "client_id", "left")
    client = sf.col("client_id")
    return findings(
        rows.withColumn("subject", text("client {}, number {}", client, sf.col("sequence"))),
        when(
            sf.col("opened") & (sf.col("earlier") > client),
            verdict(
                rules.NUMBER_EXECUTED_TWICE,
                also=sf.col("earlier"),
                found=sf.lit("executed again"),
                expected=text("once, at {}", sf.col("earlier")),
            ),
        ),
        when(
            # A client may close itself, in the batch that it is the author of.
            sf.col("batch_base_offset") > sf.col("closed"),
            verdict(
                rules.CLOSED_CLIENT_WROTE,
                also=sf.col("closed"),
                found=sf.lit("executed"),
                expected=text("refused: the client was closed at {}", sf.col("closed")),
            ),
        ),
    )


def _clients(history: History) -> DataFrame:
    """Those that records opened or closed: client_id, opened (whether, as far as is known), closed
    (at which offset; null: never).
    """
    # try: Spark may look at the ids of other groups, before it leaves their records out.
    rows = history.of(RecordType.OPEN_CLIENT, RecordType.CLOSE_CLIENT).select(
        sf.col("group_id").try_cast("long").alias("client_id"),
        "offset",
        sf.col("type") == int(RecordType.OPEN_CLIENT),
    )
    rows = rows.toDF("client_id", "offset", "opens")
    return rows.groupBy("client_id").agg(
        sf.max("opens").alias("opened"),
        sf.min(sf.when(~sf.col("opens"), sf.col("offset"))).alias("closed"),
    )
