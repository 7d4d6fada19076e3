"""A streaming job that judges each micro-batch with the state that the previous ones left.

Spark's own state stores hold keys and values, but the audit rules need the open intervals of
timelines, which are tables. So the stream is stateless, and :mod:`replay.streaming.ledger` keeps
the state. The cost of a micro-batch depends on its records and the cluster's size, not on the
history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from replay.errors import ReplayError
from replay.kernels.arrays import NEVER
from replay.kernels.facts import BrokerSpan, TopicLife
from replay.streaming.ledger import Done, Ledger

STARTS_MAX = 10
"""Maximum number of starts of a query while Spark fails to start its source."""
_LATE = "Python worker failed to connect back"


class Piece(NamedTuple):
    """The records of a micro-batch, which are whole batches of the log from ``since`` to
    ``end_offset`` (exclusive), and the remembered state by name.
    """

    records: DataFrame
    since: int
    end_offset: int
    remembered: Callable[[str], DataFrame | None]


class Judged(NamedTuple):
    """The alerts of a micro-batch, and the state to remember, by name."""

    alerts: DataFrame
    state: dict[str, DataFrame]


Judge = Callable[[Piece], Judged]


def start(
    spark: SparkSession,
    target: str,
    ledger: Ledger,
    judge: Judge,
    *,
    every: str | None = None,
    max_files: int | None = None,
    done: Callable[[Done], None] | None = None,
) -> StreamingQuery:
    """Start a query that follows the export at a path or URI.

    ``every``: interval between micro-batches, like "10 seconds", or None to stop at the current end
    of the export. ``max_files``: most files per micro-batch. ``done`` is called after each
    micro-batch with the previous progress.

    The query fails with ReplayError if records after the ledger's end are missing. Raises
    ReplayError if Spark's checkpoint is missing, because Spark would number its micro-batches from
    0 again.
    """
    if ledger.done.batch >= 0 and not ledger.checkpoint.is_dir():
        raise _went_back(ledger)
    stream = spark.readStream.format("raftlog")
    if max_files is not None:
        stream = stream.option("maxFilesPerTrigger", max_files)

    def step(rows: DataFrame, batch: int) -> None:
        before = ledger.done
        take(rows, batch, ledger, judge)
        if done is not None and ledger.done != before:
            done(before)

    writer = (
        stream.load(target)
        .writeStream.foreachBatch(step)
        .option("checkpointLocation", str(ledger.checkpoint))
    )
    return (
        writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    ).start()


def run_to_end(begin: Callable[[], StreamingQuery]) -> None:
    """Run a query until it stops. Raises StreamingQueryException.

    Spark gives the process of the source ten seconds to import PySpark and connect; no setting
    changes that. A busy machine may take longer; the query is then restarted, and continues from
    its checkpoint and the ledger.
    """
    for starts in range(1, STARTS_MAX + 1):
        query = begin()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if starts == STARTS_MAX or not connected_late(error):
                raise
        else:
            return


def connected_late(error: BaseException | None) -> bool:
    """Return whether a query stopped because the process of its source did not connect in time."""
    return error is not None and _LATE in str(error)


def take(rows: DataFrame, batch: int, ledger: Ledger, judge: Judge) -> None:
    """Judge a micro-batch, unless this was done before.

    Raises ReplayError if offsets are missing or duplicated, or if a finished micro-batch is
    repeated with records that were never judged.
    """
    if batch <= ledger.done.batch:
        last = rows.agg(sf.max("offset")).collect()[0][0]
        if last is not None and last >= ledger.done.end_offset:
            raise _went_back(ledger)
        return
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = rows.agg(
            sf.min("offset").alias("first"),
            sf.max("offset").alias("last"),
            sf.count("*").alias("count"),
        ).collect()[0]
        if not found["count"]:
            return
        since, end_offset = ledger.done.end_offset, found["last"] + 1
        if found["first"] != since or found["count"] != end_offset - since:
            raise ReplayError(
                f"{ledger.directory} has checked the log up to offset {since}, but the next records"
                f" are at offsets {found['first']} to {found['last']}: use a new directory"
            )
        spark = rows.sparkSession
        judged = judge(Piece(rows, since, end_offset, lambda name: ledger.remembered(spark, name)))
        alerts = ledger.publish(batch, judged.alerts)
        ledger.remember(batch, judged.state)
        ledger.finish(batch, end_offset, alerts)
    finally:
        rows.unpersist()


def _went_back(ledger: Ledger) -> ReplayError:
    """Return the error for a Spark checkpoint that does not match the ledger: deleted, lost or
    replaced.
    """
    return ReplayError(
        f"{ledger.directory} has checked the log up to offset {ledger.done.end_offset}, but Spark's"
        f" {ledger.checkpoint} is missing or older, so later records would be skipped: restore it,"
        " or use a new directory"
    )


Span = TypeVar("Span", BrokerSpan, TopicLife)


def last_spans(spans: Iterable[BrokerSpan]) -> list[BrokerSpan]:
    """Return the last span of each broker, even if it is closed, as the broker may return, and its
    registered log directories must still be known then.
    """
    return list({span.broker_id: span for span in spans}.values())


def open_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that are still open."""
    return [span for span in spans if span.ends == NEVER]


def remembered_spans(piece: Piece, name: str, kind: type[Span]) -> list[Span]:
    """Return the spans remembered under a name, in order."""
    frame = piece.remembered(name)
    if frame is None:
        return []
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [
        kind(**row | ({"ends": NEVER} if row["ends"] is None else {}))
        for row in sorted(rows, key=lambda row: int(row["begins"]))
    ]
