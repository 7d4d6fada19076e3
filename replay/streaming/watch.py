"""A streaming job: every micro-batch is judged with the remembered state of those before it.

Spark's own state stores know keys and values; what a rule of the audit needs is the open intervals
of timelines, which are tables. So the stream is plain, and its state is kept by
:mod:`replay.streaming.ledger`. A micro-batch costs its records and the size of the cluster, not of
the history.
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
"""Most starts of one query, if Spark gives up its source."""
_LATE = "Python worker failed to connect back"


class Piece(NamedTuple):
    """The records of a micro-batch, whole batches of the log from ``since`` on and below
    ``end_offset``, and the remembered state.
    """

    records: DataFrame
    since: int
    end_offset: int
    remembered: Callable[[str], DataFrame | None]


class Judged(NamedTuple):
    """Alerts of a micro-batch, and the state to be remembered, by name."""

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
    """Follow the export at a path or a URI.

    ``every``: a time like "10 seconds" between micro-batches; None: until the present end.
    ``max_files``: the most files of one micro-batch. ``done`` is called after each micro-batch,
    with the position before it. The query fails with ReplayError if records are missing at the end
    of the ledger. Raises ReplayError if Spark's checkpoint is missing: Spark would count its
    micro-batches from 0 again.
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


def to_its_end(begin: Callable[[], StreamingQuery]) -> None:
    """Begin a query, and wait for its end. Raises StreamingQueryException.

    The source has a process of its own, which has to import PySpark and to connect within ten
    seconds by the clock; no setting changes that, and on a busy machine it may take longer. Then
    the query begins again, where its checkpoint and the ledger say.
    """
    for starts in range(1, STARTS_MAX + 1):
        query = begin()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if starts == STARTS_MAX or not was_late(error):
                raise
        else:
            return


def was_late(error: BaseException | None) -> bool:
    """Return whether a query ended because its source's process was late."""
    return error is not None and _LATE in str(error)


def take(rows: DataFrame, batch: int, ledger: Ledger, judge: Judge) -> None:
    """Judge one micro-batch, once.

    Raises ReplayError if offsets are missing, or are there twice, or if a micro-batch that is done
    has come back with records that were never judged.
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
                f"{ledger.directory} has judged the log up to offset {since}, and the next records"
                f" are at offsets {found['first']} to {found['last']}: begin another directory"
            )
        spark = rows.sparkSession
        judged = judge(Piece(rows, since, end_offset, lambda name: ledger.remembered(spark, name)))
        alerts = ledger.publish(batch, judged.alerts)
        ledger.remember(batch, judged.state)
        ledger.finish(batch, end_offset, alerts)
    finally:
        rows.unpersist()


def _went_back(ledger: Ledger) -> ReplayError:
    """Spark's checkpoint is not that of what is done: it was deleted, lost, or replaced."""
    return ReplayError(
        f"{ledger.directory} has judged the log up to offset {ledger.done.end_offset}, and"
        f" {ledger.checkpoint}, where Spark notes that, is missing or older: records after it"
        " would be skipped. Put it back, or begin another directory"
    )


Span = TypeVar("Span", BrokerSpan, TopicLife)


def last_spans(spans: Iterable[BrokerSpan]) -> list[BrokerSpan]:
    """Return the last span of each broker: one that has been unregistered may return, and the log
    directories that it had registered are known then.
    """
    return list({span.broker_id: span for span in spans}.values())


def open_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that have not ended."""
    return [span for span in spans if span.ends == NEVER]


def remembered_spans(piece: Piece, name: str, kind: type[Span]) -> list[Span]:
    """Return the spans that an earlier micro-batch remembered under a name, in order."""
    frame = piece.remembered(name)
    if frame is None:
        return []
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [
        kind(**row | ({"ends": NEVER} if row["ends"] is None else {}))
        for row in sorted(rows, key=lambda row: int(row["begins"]))
    ]
