"""The kernels: steps of partitions equal those of the fold for every change from every state."""

import gc
import math
import platform
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from asking import opened, written
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_history import LogHistory

from raftlog import batch
from raftlog.metadata.entities import Partition
from raftlog.metadata.partitions import changed_partition
from raftlog.metadata.records import RecordType, record
from raftlog.segments.columns import SCHEMA, RowBuffer
from raftlog.segments.parquet_files import ColumnStatistics
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine.pool import prepare_worker
from replay.engine.reading import slices
from replay.kernels.arrays import MISSING, Known, distinct
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts
from replay.kernels.findings import Judged
from replay.kernels.groups import Grouped
from replay.kernels.histogram import Histogram
from replay.kernels.intervals import of_partitions
from replay.kernels.rules.departed import Departed
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions
from replay.outages.partitions import TroubleWatcher
from replay.outages.service import Stretch

TOPIC_ID = bytes(range(16))
BEGINNINGS: tuple[dict[str, Any], ...] = (
    {"replicas": [1, 2, 3], "isr": [1, 2, 3], "leader": 1},
    {"replicas": [1, 2, 3], "isr": [3], "leader": -1, "leader_epoch": 7, "partition_epoch": 9},
    {"replicas": [1, 2, 3, 4], "isr": [2], "leader": 2, "leader_recovery_state": 1,
     "adding_replicas": [4], "removing_replicas": [1]},
)  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "isr": (None, pb.IdList(), pb.IdList(ids=[1]), pb.IdList(ids=[3, 1])),
    "leader": (None, -1, 1, 2),
    # The same, another order, one more, one less, one for another.
    "replicas": (None, *(pb.IdList(ids=ids) for ids in (
        [1, 2, 3], [3, 2, 1], [1, 2, 3, 4, 5], [1, 2], [1, 2, 9],
    ))),
    "leader_recovery_state": (None, 0, 1),
    "leader_epoch": (None, 40),
}  # fmt: skip
REASSIGNMENT: dict[str, tuple[Any, ...]] = {
    "adding_replicas": (None, pb.IdList(), pb.IdList(ids=[5])),
    "removing_replicas": (None, pb.IdList(), pb.IdList(ids=[2])),
    "replicas": (None, pb.IdList(ids=[1, 5])),
}
Change = dict[str, Any]


def every(fields: dict[str, tuple[Any, ...]]) -> list[Change]:
    """Yield every choice of a value, or of none, for each field."""
    return [
        {name: value for name, value in zip(fields, chosen, strict=True) if value is not None}
        for chosen in product(*fields.values())
    ]


CHANGES = [*every(FIELDS), *every(REASSIGNMENT)]


def records_of(histories: list[tuple[Change, list[Change]]]) -> pa.Table:
    """Return the rows of a log with one partition per history, its changes interleaved."""
    rows = RowBuffer()
    messages: list[Any] = [pb.TopicRecord(name="t", topic_id=TOPIC_ID)]
    messages += [
        pb.PartitionRecord(topic_id=TOPIC_ID, partition_id=index, **begun)
        for index, (begun, _) in enumerate(histories)
    ]
    for turn in range(max(len(changes) for _, changes in histories)):
        messages += [
            pb.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=index, **changes[turn])
            for index, (_, changes) in enumerate(histories)
            if turn < len(changes)
        ]
    for base, message in enumerate(messages):
        chunk = batch.encode([record(message).data], base_offset=base, epoch=1, timestamp_ms=base)
        for header in batch.headers(chunk):
            rows.add(chunk, header)
    return rows.take()


def folded(begun: Change, changes: list[Change]) -> dict[str, Any]:
    """Return a partition's state after its changes, by the controllers' fold."""
    now = Partition(
        TOPIC_ID, 0, tuple(begun["replicas"]), tuple(begun["isr"]),
        tuple(begun.get("removing_replicas", ())), tuple(begun.get("adding_replicas", ())),
        begun["leader"], begun.get("leader_recovery_state", 0), begun.get("leader_epoch", 0),
        begun.get("partition_epoch", 0),
    )  # fmt: skip
    for change in changes:
        now = changed_partition(now, pb.PartitionChangeRecord(**change))
    return {
        "leader": now.leader,
        "leader_recovery_state": now.leader_recovery_state,
        "replicas": list(now.replicas),
        "adding_replicas": list(now.adding_replicas),
        "removing_replicas": list(now.removing_replicas),
        "isr": list(now.isr),
        "leader_epoch": now.leader_epoch,
        "partition_epoch": now.partition_epoch,
    }


def stepped(histories: list[tuple[Change, list[Change]]], slices: int) -> list[dict[str, Any]]:
    """Return the same for all partitions by the kernel, in several slices."""
    rows = records_of(histories)

    def of(types: Any, columns: Any) -> pa.Table:
        numbers = pa.array([int(each) for each in types], pa.int32())
        return rows.filter(pc.is_in(rows["type"], numbers)).select(columns)

    known = Partitions(Facts(of(RARE, RARE_COLUMNS), rows.num_rows))
    changing = of(PARTITION_TYPES, COLUMNS)
    bounds = np.linspace(0, changing.num_rows, slices + 1).astype(int).tolist()
    for low, high in pairwise(bounds):
        known.step(changing.slice(low, high - low))
    found = known.table().sort_by("partition_id").to_pylist()
    names = folded(BEGINNINGS[0], [])
    return [{name: row[name] for name in names} for row in found]


@pytest.mark.parametrize("slices", [1, 3])
def test_steps_equal_the_fold_for_every_change_from_every_state(slices: int) -> None:
    histories = [(begun, [change]) for begun in BEGINNINGS for change in CHANGES]
    assert len(histories) > 1500
    expected = [folded(begun, changes) for begun, changes in histories]
    assert stepped(histories, slices) == expected


def test_steps_equal_the_fold_for_pairs_of_changes() -> None:
    """Each change after each of some others: the first one's result is carried over."""
    firsts = CHANGES[:: len(CHANGES) // 7]
    histories = [(BEGINNINGS[2], [first, change]) for first in firsts for change in CHANGES[::3]]
    assert stepped(histories, 4) == [folded(begun, changes) for begun, changes in histories]


# --- A job's memory does not grow with changes of a partition, nor with deleted topics

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
    return pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in RARE_COLUMNS]))


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
    part, given = part_of(facts_of(slices)), [records(slice_) for slice_ in range(slices)]
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


# ---

NUMBERS = st.one_of(
    st.integers(-40, 40), st.integers(10**6, 10**6 + 5), st.integers(-(2**40), 2**40)
)


@settings(deadline=None)  # The first look of pyarrow may import pandas.
@given(st.lists(NUMBERS, max_size=60))
def test_distinct_returns_the_values_and_the_index_of_each(numbers: list[int]) -> None:
    different, which = distinct(np.array(numbers, np.int64))
    assert different.tolist() == sorted(set(numbers))
    assert different[which].tolist() == numbers


@pytest.mark.parametrize("far", [2**60, MISSING])
def test_no_table_is_made_for_sparse_values(far: int) -> None:
    different, which = distinct(np.array([7, far, 7], np.int64))
    assert different[which].tolist() == [7, far, 7]


SMALL = st.integers(0, 60)


@settings(deadline=None)
@given(
    st.lists(NUMBERS, max_size=20),
    st.one_of(st.lists(NUMBERS, max_size=20), st.lists(SMALL, max_size=20)),
)
@example([-5, 3, 9], [9, 3, 4])
def test_positions_of_numbers_among_a_few_are_found(few: list[int], wanted: list[int]) -> None:
    known = Known(np.array(few, np.int64))
    assert known.values.tolist() == sorted(set(few))
    for some in (wanted, [*few, *wanted]):
        place, there = known.find(np.array(some, np.int64))
        assert there.tolist() == [each in few for each in some]
        assert [int(known.values[at]) for at in place[there]] == [e for e in some if e in few]
        assert not len(few) or place.max(initial=0) < len(known.values)


# --- Grouped tables, and durations by group

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200_000)), max_size=120)
Rows = list[tuple[int, int]]


def pieces_of(rows: Rows, size: int) -> list[np.ndarray]:
    return [
        np.array(rows[at : at + size], np.int64).reshape(-1, 2) for at in range(0, len(rows), size)
    ]


@given(ROWS, ROWS, st.integers(1, 9))
def test_grouped_columns_are_merged_as_declared(rows: Rows, more: Rows, size: int) -> None:
    tables = [Grouped(np.add, np.minimum, np.maximum, np.add) for _ in range(2)]
    for table, some in zip(tables, (rows, more), strict=True):
        for piece in pieces_of(some, size):
            table.add(piece[:, 0], piece[:, 1], piece[:, 1], piece[:, 1], 1)
    tables[0].merge(tables[1])
    expected: dict[int, list[int]] = {}
    for key, value in [*rows, *more]:
        expected.setdefault(key, []).append(value)
    assert tables[0].by_key() == {
        key: [sum(values), min(values), max(values), len(values)]
        for key, values in expected.items()
    }
    assert list(tables[0].by_key()) == sorted(expected)


def test_grouped_rows_are_not_moved_for_each_slice() -> None:
    table = Grouped(np.add)
    for slice_ in range(200):
        table.add(np.arange(50) + 50 * slice_, 1)
    assert len(table._runs) < 12
    assert table.rows().tolist() == [list(range(200 * 50)), [1] * (200 * 50)]


@given(ROWS, ROWS, st.integers(1, 9))
def test_histogram_percentiles_approximate_all_durations(rows: Rows, more: Rows, size: int) -> None:
    parts = Histogram(), Histogram()
    for part, some in zip(parts, (rows, more), strict=True):
        for piece in pieces_of(some, size):
            part.add(piece[:, 0], piece[:, 1])
    parts[0].merge(parts[1])
    found, every = parts[0].figures(), rows + more
    assert set(found) == {group for group, _ in every}
    groups = [
        (each, [value for its, value in every if its == group]) for group, each in found.items()
    ]
    if every:
        groups.append((parts[0].whole(), [value for _, value in every]))
    for each, values in groups:
        assert (each.durations, each.max_ms) == (len(values), max(values))
        for share, said in ((50, each.p50_ms), (99, each.p99_ms)):
            true = sorted(values)[math.ceil(len(values) * share / 100) - 1]
            assert said is not None
            assert true <= said <= true * 1.002


# --- Columns without values are not read, and the rows are unchanged


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = LogHistory(31).run(600)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("raftlog.segments.writer.ROW_GROUP_RECORDS", 40)
        return written(log, tmp_path_factory.mktemp("export"), max_segment_records=250)


def test_rows_equal_those_of_the_files(exported: Path) -> None:
    export = opened(exported)
    files = [pq.read_table(exported / one.file) for one in export.segments]
    assert len(files) > 1
    read = list(slices(export, SCHEMA.names))
    for name in SCHEMA.names:
        whole = [value for table in files for value in table[name].to_pylist()]
        assert [value for table in read for value in table[name].to_pylist()] == whole


def test_empty_columns_are_skipped_in_each_row_group(exported: Path) -> None:
    export = opened(exported)
    skipped = 0
    for one in export.segments:
        file = pq.ParquetFile(exported / one.file)
        told = ColumnStatistics(file.metadata, imported=False)
        groups = list(range(file.metadata.num_row_groups))
        runs = list(told.runs(groups, SCHEMA.names))
        assert [group for run, _ in runs for group in run] == groups
        for run, names in runs:
            left_out = set(SCHEMA.names) - set(names)
            skipped += len(left_out)
            rows = file.read_row_groups(run)
            assert all(rows[name].null_count == rows.num_rows for name in left_out)
            assert not left_out & {"isr", "last_known_elr", "applied", "offset", "type"}
            assert {"directories", "recovery"} <= left_out
        of_kafka = ColumnStatistics(file.metadata, imported=True)
        assert [names for _, names in of_kafka.runs(groups[:1], ["directories"])] == [
            ["directories"]
        ]
    assert skipped > 100
    assert sum(one.num_rows for one in slices(export, ["directories"])) == export.record_count


def test_statistics_that_contradict_the_rows_are_detected(tmp_path: Path) -> None:
    """A reader that trusts the statistics would not see the rows."""
    said = pa.table({"offset": [3, 4], "leader": [1, None], "isr": [[1], []], "rack": ["a", None]})
    silent = pa.table(
        {
            "offset": pa.array([3, 4]),
            "leader": pa.nulls(2, pa.int64()),
            "isr": pa.array([[], None], pa.list_(pa.int64())),
            "rack": pa.nulls(2, pa.string()),
        }
    )
    told = {}
    for name, table in (("said", said), ("silent", silent)):
        pq.write_table(table, tmp_path / name)
        told[name] = ColumnStatistics(pq.read_metadata(tmp_path / name), imported=False)
    rows, nothing = said.to_batches()[0], silent.to_batches()[0]
    for each in told.values():
        assert each.contradicted(0, nothing) == ""
    assert told["said"].contradicted(0, rows) == ""
    for name in ("leader", "isr", "rack"):
        assert told["silent"].contradicted(0, rows.select([name])) == name
    elsewhere = rows.select(["offset"]).set_column(0, "offset", pa.array([4, 5]))
    assert told["said"].contradicted(0, elsewhere) == "offset"


# --- Preparation of worker processes: the C library's memory, and Python's garbage collection

_ARRAYS, _ROUNDS, _PAGES = 20, 40, 256
_CHILD = f"""
import resource
import numpy as np
{{begin}}
def use():
    return [np.ones({_PAGES} * 4096 // 8) for _ in range({_ARRAYS})]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({_ROUNDS}):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(begin: str) -> int:
    code = _CHILD.format(begin=begin)
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env={})
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's alone")
def test_freed_memory_is_kept_for_the_next_array() -> None:
    all_pages = _ARRAYS * _ROUNDS * _PAGES
    if _faults("") < all_pages / 2:
        pytest.skip("this kernel gives memory in large pages")
    assert _faults("from replay.engine.pool import keep_heap; keep_heap()") < all_pages / 20


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_nothing_set_aside")
def test_prepared_worker_excludes_loaded_modules_from_collections() -> None:
    assert gc.get_freeze_count() == 0
    prepare_worker()
    first = gc.get_freeze_count()
    assert first > 0
    kept: list[dict[int, int]] = [{} for _ in range(1000)]
    prepare_worker()
    assert gc.get_freeze_count() <= first, "a later task's rows were set aside, too"
    assert len(kept) == 1000
