"""The audit of an export that is still being written: the kernels run over each micro-batch,
starting from the state that the previous ones left.

The state consists of the last spans of the timelines of brokers, partitions and topics, and of the
records with which later ones are compared. Its size grows with the number of brokers, hostnames,
features, export cursors, open clients and access control entries, and by one record per election.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import METADATA_VERSION
from raftlog.segments.columns import SCHEMA
from replay.kernels.audit import JUDGED_COLUMNS, judge_records
from replay.kernels.facts import (
    BROKER_SPANS,
    RARE,
    RARE_COLUMNS,
    TOPIC_LIVES,
    BrokerSpan,
    Facts,
    TopicLife,
    spans_table,
)
from replay.kernels.findings import as_table
from replay.kernels.rights import ENTRIES
from replay.kernels.rules.registrations import CONTROLLERS
from replay.kernels.steps import STATE_SCHEMA, Partitions
from replay.rules import RULES, Rule
from replay.streaming.watch import Judge, Judged, Piece, last_spans, open_spans, remembered_spans

COLUMNS = tuple(dict.fromkeys((*RARE_COLUMNS, *JUDGED_COLUMNS, "cursor_end_offset")))
"""Columns of the records of a micro-batch, and of the remembered records."""
_AS_THEY_ARE = (
    RecordType.FEATURE_LEVEL,
    RecordType.HOSTNAME,
    RecordType.PROGRESS,
    RecordType.LEADER_CHANGE,
    RecordType.RECOVERY,
    RecordType.VOTERS,
    RecordType.OPEN_CLIENT,
    RecordType.EXPORT_CURSOR,
    RecordType.IMPORTED,
    *ENTRIES,
)
_TRANSACTIONS = ("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord")
_NUMBERS = ("ProducerIdsRecord", "ZkMigrationStateRecord")


def judge(
    rules: Collection[Rule] = RULES,
    super_users: Collection[str] = (),
    *,
    allow_everyone_if_no_acl_found: bool = False,
    state_from: int = 0,
) -> Judge:
    """Return a judge whose alerts are findings (:data:`replay.kernels.findings.SCHEMA`)."""

    def judge_piece(piece: Piece) -> Judged:
        spark = piece.records.sparkSession
        rows = with_memory(piece)
        facts = Facts(
            rare_of(rows),
            piece.end_offset,
            piece.since,
            frozenset(super_users),
            allow_everyone_if_no_acl_found,
            brokers_before=remembered_spans(piece, "brokers", BrokerSpan),
            topics_before=remembered_spans(piece, "topics", TopicLife),
            state_from=state_from,
        )
        before = piece.remembered("partitions")
        known = Partitions(facts, None if before is None else before.toArrow().cast(STATE_SCHEMA))
        found = as_table(list(judge_records(rows, facts, tuple(rules), known)))
        state = {
            "brokers": spark.createDataFrame(spans_table(last_spans(facts.brokers), BROKER_SPANS)),
            # A deleted topic never returns, unless the log is broken within one piece.
            "partitions": spark.createDataFrame(known.table(there=True)),
            "topics": spark.createDataFrame(spans_table(open_spans(facts.topics), TOPIC_LIVES)),
            "records": spark.createDataFrame(remember(rows)),
        }
        return Judged(spark.createDataFrame(found), state)

    return judge_piece


def with_memory(piece: Piece) -> pa.Table:
    """Return the remembered records followed by those of a piece, in order, with the columns
    COLUMNS.
    """
    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
    rows = piece.records.select(*COLUMNS).toArrow().cast(schema)
    memory = piece.remembered("records")
    if memory is not None:
        rows = pa.concat_tables([memory.select(*COLUMNS).toArrow().cast(schema), rows])
    return rows.sort_by("offset")


def rare_of(rows: pa.Table) -> pa.Table:
    """Return the records of the types RARE, with the columns RARE_COLUMNS."""
    return _of_types(rows, RARE).select(RARE_COLUMNS)


def _of_types(rows: pa.Table, types: Collection[RecordType]) -> pa.Table:
    return rows.filter(pc.is_in(rows["type"], pa.array([int(each) for each in types], pa.int32())))


def remember(rows: pa.Table) -> pa.Table:
    """Return the records that the next piece starts with.

    * the last level of each feature, the first of metadata.version, and the last mapping of each
      hostname;
    * the last voter set, the existing cursors, and the open clients;
    * of Kafka's records, the last ones with which later records of their kind are compared, and the
      registrations of the existing controllers;
    * the existing access control entries, and the record of the first entry ever;
    * of the progress records, the one with the highest LAO, the one with the newest epoch's highest
      high watermark, and the last one that names each broker;
    * every election, and the first record of each epoch, because the timelines know it. If that
      record has another type than the above, it is stored as a NO_OP.
    """
    first_of_epochs = rows.group_by("epoch").aggregate([("offset", "min")])["offset_min"]
    few = _of_types(rows, RARE | {RecordType.EXPORT_CURSOR})
    kept = {
        *first_of_epochs.to_pylist(),
        *_last_records(few.to_pylist()),
        *_entries(_of_types(few, ENTRIES).to_pylist()),
        *_progress(_of_types(rows, (RecordType.PROGRESS,)), pc.max(rows["epoch"]).as_py()),
    }
    chosen = rows.filter(pc.is_in(rows["offset"], pa.array(sorted(kept), pa.int64())))
    as_it_is = pc.is_in(chosen["type"], pa.array([int(each) for each in _AS_THEY_ARE], pa.int32()))
    no_op = pa.scalar(int(RecordType.NO_OP), pa.int32())
    at = chosen.schema.get_field_index("type")
    return chosen.set_column(
        at, chosen.schema.field(at), pc.if_else(as_it_is, chosen["type"], no_op)
    )


def _last_records(rows: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the offset of the last record about each existing subject, and of every election."""
    last: dict[Hashable, int] = {}
    first_level: int | None = None
    for row in rows:
        if row["type"] == RecordType.LEADER_CHANGE:
            yield row["offset"]
        if first_level is None and row["feature_name"] == METADATA_VERSION:
            first_level = row["offset"]
        thing, exists = _thing(row)
        if thing is not None and exists:
            last[thing] = row["offset"]
        else:
            last.pop(thing, None)
    yield from last.values()
    if first_level is not None:
        yield first_level


def _thing(row: dict[str, Any]) -> tuple[Hashable, bool]:
    """Return the subject of a record, or None, and whether the subject exists after the record."""
    type_, said = row["type"], row["imported_fields"] is not None
    if type_ == RecordType.FEATURE_LEVEL:
        return (type_, row["feature_name"]), True
    if type_ == RecordType.HOSTNAME:
        return (type_, row["group_id"]), True
    if type_ == RecordType.VOTERS:
        return type_, True
    if type_ == RecordType.EXPORT_CURSOR:
        return (type_, row["group_id"]), row["cursor_end_offset"] is not None
    if type_ in {RecordType.OPEN_CLIENT, RecordType.CLOSE_CLIENT}:
        return ("client", row["group_id"]), type_ == RecordType.OPEN_CLIENT
    name = row["imported_name"]
    if name in _TRANSACTIONS or (name in _NUMBERS and said):
        return (type_, name), True
    if name in CONTROLLERS and said:
        return ("controller", row["group_id"]), name == CONTROLLERS[0]
    return None, False


def _entries(rows: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the offsets of the existing entries, and of the first entry ever, as writes are judged
    from that one onwards.
    """
    first: dict[str, int] = {}
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row["group_id"], row["offset"])
        last[row["group_id"]] = row
    earliest = min(first.values(), default=None)
    for group_id, row in last.items():
        if first[group_id] == earliest:
            yield first[group_id]
        if first[group_id] == earliest or row["type"] == RecordType.ACCESS_CONTROL_ENTRY:
            yield row["offset"]


def _progress(rows: pa.Table, newest_epoch: int | None) -> Iterator[int]:
    """Yield the offsets of the progress records with which later ones are compared."""
    columns = ("offset", "epoch", "lowest_acknowledged_offset", "high_watermark", "applied")
    highest, mark = (-1, -1), (-1, -1, -1)
    reports: dict[tuple[int, int], int] = {}
    for offset, epoch, lao, high_watermark, applied in zip(
        *(rows[name].to_pylist() for name in columns), strict=True
    ):
        if lao is not None and lao >= 0:
            highest = max(highest, (lao, offset))
        mark = max(mark, (epoch, -1 if high_watermark is None else high_watermark, offset))
        # Reports to earlier controllers no longer count.
        if epoch == newest_epoch:
            for each in applied or ():
                reports[each["broker_id"], each["broker_epoch"]] = offset
    yield from (each for each in (highest[-1], mark[-1], *reports.values()) if each >= 0)
