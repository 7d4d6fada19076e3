"""A job's memory does not grow with changes of a partition, nor with deleted topics."""

import tracemalloc
from functools import cache, partial
from typing import Any

import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from replay.kernels.facts import RARE_COLUMNS, Facts
from replay.kernels.findings import Judged
from replay.kernels.intervals import of_partitions
from replay.kernels.rules.departed import Departed
from replay.kernels.steps import COLUMNS, Partitions
from replay.outages.partitions import TroubleWatcher
from replay.outages.service import Stretch

SLICE = 2_000
STAY, COME = 20, 8
"""Topics that stay, and those that come and go in each slice."""
PARTITIONS = 8
EVERY_MS = 250
AT_ONCE = 50
"""Number of records written at one moment."""
Row = dict[str, Any]


def topic_id(slice_: int, number: int) -> str:
    return f"{slice_:024x}{number:08x}"


def topics_of(slice_: int) -> list[str]:
    return [topic_id(0, one) for one in range(STAY)] + [
        topic_id(slice_ + 1, one) for one in range(COME)
    ]


def rare(slices: int) -> pa.Table:
    """Topics that stay begin with the first record; the others stand for a slice."""

    def row(type_: RecordType, offset: int, topic: str, name: str | None = None) -> Row:
        times = {"offset": offset, "epoch": 1, "timestamp_ms": offset * EVERY_MS}
        batch = {"batch_base_offset": offset, "batch_last_offset": offset}
        return times | batch | {"type": int(type_), "topic_id": topic, "topic_name": name}

    rows = [row(RecordType.TOPIC, 0, topic_id(0, one), f"stays-{one}") for one in range(STAY)]
    for slice_ in range(slices):
        first, last = slice_ * SLICE, slice_ * SLICE + SLICE - 1
        own = topics_of(slice_)[STAY:]
        rows += [row(RecordType.TOPIC, first, each, "comes") for each in own]
        rows += [row(RecordType.REMOVE_TOPIC, last, each) for each in own]
    schema = pa.schema([SCHEMA.field(name) for name in RARE_COLUMNS])
    return pa.Table.from_pylist(rows, schema)


@cache
def records(slice_: int) -> pa.Table:
    """Each new partition, then brokers that leave ISRs and return in another order."""
    topics = topics_of(slice_)
    new = topics if slice_ == 0 else topics[STAY:]
    created = [(each, partition) for each in new for partition in range(PARTITIONS)]
    every = [(each, partition) for each in topics for partition in range(PARTITIONS)]
    rows: list[Row] = []
    for place in range(SLICE - 1):
        offset = slice_ * SLICE + place
        turn, which = divmod(place * 5 + slice_, len(every))
        topic, partition = created[place] if place < len(created) else every[which]
        row: Row = {
            "offset": offset,
            "epoch": 1,
            "timestamp_ms": offset // AT_ONCE * AT_ONCE * EVERY_MS,
            "batch_last_offset": offset,
            "topic_id": topic,
            "partition_id": partition,
            "proposer_id": 0,
            "proposer_epoch": 0,
        }
        if place < len(created):
            row |= {"type": int(RecordType.PARTITION), "leader": 1, "replicas": [1, 2, 3]}
            row |= {"isr": [1, 2, 3], "leader_epoch": 0, "partition_epoch": 0}
        else:
            isr = [1, 2, 3] if turn % 2 else [1, 2 + offset % 2]
            row |= {"type": int(RecordType.PARTITION_CHANGE), "isr": isr}
        rows.append(row)
    return pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in COLUMNS]))


def facts_of(slices: int) -> Facts:
    facts = Facts(rare(slices), slices * SLICE)
    # It is made before memory is looked at: there is one for each topic, as in the log.
    assert len(facts.lives_of) == STAY + slices * COME
    return facts


def part_of(facts: Facts) -> Any:
    stretch = Stretch.of(0, facts.end_offset * EVERY_MS, 0)
    return of_partitions(facts, partial(TroubleWatcher, stretch)).begin()


def peak(slices: int) -> int:
    """Return the peak of memory in bytes above the start and the given slices."""
    facts = facts_of(slices)
    part, given = part_of(facts), [records(slice_) for slice_ in range(slices)]
    tracemalloc.start()
    try:
        for table in given:
            part.take(table)
        part.end()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


GROWS_BYTES = 40
"""A record, at the most: topics, of which here there is one for 500 records, and the moments at
which ISRs became short, which the report draws."""


def test_memory_does_not_grow_with_the_records() -> None:
    peak(2)
    few, many = 20, 60
    grown = (peak(many) - peak(few)) / ((many - few) * SLICE)
    assert grown < GROWS_BYTES


def test_isr_memberships_end_with_their_topics() -> None:
    slices = 20
    facts = facts_of(slices)
    partitions = Partitions(facts)
    departed, most = Departed(facts, partitions), 0
    for slice_ in range(slices):
        assert list(departed.check(Judged(partitions.step(records(slice_)), partitions))) == []
        most = max(most, len(departed.staying))
    # The last topics of a slice go with its last record, which the next slice sees.
    assert most <= 3 * PARTITIONS * (STAY + 2 * COME)


def test_outages_do_not_depend_on_slices() -> None:
    slices = 20
    facts = facts_of(slices)

    def found(tables: list[pa.Table]) -> list[Any]:
        part = part_of(facts)
        for table in tables:
            part.take(table)
        (troubled,) = part.end()
        short = troubled.short
        return [troubled.life_ms, *(each.tolist() for each in (*short.moments, short.lost.rows()))]

    tables = [records(slice_) for slice_ in range(slices)]
    assert found([pa.concat_tables(tables)]) == found(tables)
