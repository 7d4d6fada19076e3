"""The tasks of the audit: one pass for the rare records, and one for each family of rules that
judges many records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA as RECORDS
from raftlog.segments.manifest import Segment
from raftlog.segments.range_checks import check_segment
from replay.engine.passes import partition_shuffle
from replay.engine.plan import Bucket, ByColumns, Shuffle, stretches
from replay.engine.pool import Pool
from replay.engine.reading import DICTIONARIES, slices
from replay.export import Export
from replay.kernels import audit as kernels
from replay.kernels.arrays import Bools, ints
from replay.kernels.census import Census, Counting
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts
from replay.kernels.findings import SCHEMA, Finding, order
from replay.kernels.intervals import Intervals
from replay.kernels.passes import BY_CLIENT
from replay.kernels.rules import clients, configs, progress, rights
from replay.kernels.rules.quorum import Epoch
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions, Steps
from replay.rules import Rule

_CODED = (
    *DICTIONARIES,
    "group_id",
    "incarnation_id",
    "rack",
    "reason",
    "feature_name",
    "resource_name",
)
"""Texts of which a scan keeps few, read as dictionaries: it takes half as long as to copy each."""
_CONFIGS_CODED = (*DICTIONARIES, "resource_name", "config_name")


FOUND = SCHEMA.append(pa.field("count", pa.int64()))
"""Findings of a task: the first of them, and the number of each rule."""


@dataclass
class Found:
    """Findings of an audit: their number by rule, and the first ``limit`` of them."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)
    first: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings. Memory is that of the limit, however many there are."""
        for finding in findings:
            self.counts[finding.rule] += 1
            self.first.append(finding)
            if len(self.first) > 2 * self.limit + 1000:
                self._cut()
        self._cut()

    def merge(self, other: Found) -> None:
        """Add the findings of another task."""
        self.counts += other.counts
        self.first += other.first
        self._cut()

    def _cut(self) -> None:
        self.first = nsmallest(self.limit, self.first, key=order)

    def rows(self) -> pa.Table:
        """Return the findings as rows of FOUND."""
        first = [structs.asdict(each) for each in self.first]
        counts = [{"rule": rule, "count": count} for rule, count in self.counts.items()]
        return pa.Table.from_pylist([*first, *counts], FOUND)

    def merge_rows(self, rows: pa.Table) -> None:
        """Add the findings of other tasks, rows of FOUND."""
        for row in rows.to_pylist():
            count = row.pop("count")
            if count is None:
                self.first.append(Finding(**row))
            else:
                self.counts[row["rule"]] += count
        self._cut()


class Scan(NamedTuple):
    """Result of one pass over all records: those of RARE types, in order, and the counts."""

    rare: pa.Table
    census: Census


def scan(export: Export, pool: Pool) -> Scan:
    """Return the rare records and the census; the files are checked against the manifest on the
    way.

    Raises CorruptExportError and its kinds.
    """
    tables: list[pa.Table] = []
    counted = Census()
    for part in pool.map(partial(_scan, export), stretches(export, pool.stretches(export))):
        tables.append(part.rare)
        counted.merge(part.census)
    return Scan(pa.concat_tables(tables), counted)


def check_files(export: Export, pool: Pool) -> None:
    """Check owner, size and hash of the files in question. Raises CorruptExportError and its
    kinds.
    """
    for _ in pool.map(partial(_check, export), stretches(export, pool.stretches(export))):
        pass


def _check(export: Export, segments: Sequence[Segment]) -> None:
    for segment in segments:
        check_segment(export.target, segment, *export.manifest.owner)


def _scan(export: Export, segments: Sequence[Segment]) -> Scan:
    _check(export, segments)
    counting = Counting()
    rare = pa.array([int(each) for each in RARE], pa.int32())
    schema = pa.schema([RECORDS.field(name) for name in RARE_COLUMNS])
    tables: list[pa.Table] = [schema.empty_table()]
    for table in slices(export, RARE_COLUMNS, segments=segments, coded=_CODED):
        counting.take(table)
        tables.append(table.filter(pc.is_in(table["type"], rare)).cast(schema))
    return Scan(pa.concat_tables(tables).combine_chunks(), counting.end())


Maker = Callable[[Facts, Collection[Rule]], kernels.Kernel]


class _Judge(NamedTuple):
    """Work of a task: judge records by the rules of one kernel."""

    make: Maker
    facts: Facts
    rules: tuple[Rule, ...]
    limit: int

    def bucket(self, bucket: Bucket) -> pa.Table:
        """Judge the records of a bucket: FOUND."""
        return self.judge(bucket.tables)

    def judge(self, tables: Iterator[pa.Table]) -> pa.Table:
        """Judge some records: FOUND."""
        found, kernel = Found(self.limit), self.make(self.facts, self.rules)
        for table in tables:
            found.add(kernel.check(table))
        found.add(kernel.end())
        return found.rows()


def judge(
    export: Export,
    facts: Facts,
    epochs: Iterable[Epoch],
    rules: tuple[Rule, ...],
    limit: int,
    pool: Pool,
    of_partitions: Sequence[Found] | None = None,
) -> Found:
    """Return the findings of the rules. ``of_partitions``: findings of the PartitionWatchers."""
    found = Found(limit)

    def work(make: Maker) -> _Judge:
        return _Judge(make, facts, rules, limit)

    def judge_buckets(make: Maker, shuffle: Shuffle) -> None:
        found.merge_rows(pool.bucket_rows(work(make).bucket, shuffle, FOUND))

    if of_partitions is not None:
        for part in of_partitions:
            found.merge(part)
    elif kernels.PartitionRules.asked(rules):
        shuffle = partition_shuffle(export, COLUMNS, types=PARTITION_TYPES)
        judge_buckets(kernels.PartitionRules, shuffle)
    if kernels.asks(progress, rules, facts):
        # Each is compared with those before it: one bucket.
        alone = ByColumns((), by_topic=False)
        shuffle = Shuffle(export, progress.COLUMNS, alone, progress.TYPES, buckets=1)
        judge_buckets(partial(kernels.RecordRules, progress.Progress), shuffle)
    if kernels.asks(clients, rules, facts):
        by_client = ByColumns(BY_CLIENT, by_topic=False)
        shuffle = Shuffle(export, clients.COLUMNS, by_client, only=_numbered)
        judge_buckets(partial(kernels.RecordRules, clients.Clients), shuffle)
    for family, coded in ((rights, DICTIONARIES), (configs, _CONFIGS_CODED)):
        if kernels.asks(family, rules, facts):
            # Of whole batches: a file ends with one.
            judged = work(partial(kernels.RecordRules, kernels.BY_RECORD[family]))
            judging = partial(_judge_stretch, export, family.COLUMNS, family.TYPES, coded, judged)
            parts = stretches(export, pool.stretches(export))
            found.merge_rows(pool.rows(judging, parts, FOUND))
    found.add(kernels.fact_rules(facts, epochs, rules))
    return found


def _judge_stretch(
    export: Export,
    columns: Sequence[str],
    types: Collection[RecordType],
    coded: Collection[str],
    work: _Judge,
    segments: Sequence[Segment],
) -> pa.Table:
    return work.judge(slices(export, columns, types=types, segments=segments, coded=coded))


def _numbered(table: pa.Table) -> Bools:
    return ints(table["client_id"]) != 0


class PartitionWatcher:
    """Watcher that judges partitions in a shared pass; ``found`` returns Found."""

    def __init__(
        self, rules: tuple[Rule, ...], limit: int, facts: Facts, partitions: Partitions
    ) -> None:
        self._kernel = kernels.PartitionRules(facts, rules, partitions)
        self._found = Found(limit)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """Judge the steps of a slice: the rules do not ask how long a state lasted."""
        del intervals
        self._found.add(self._kernel.judge(steps))

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Ignore the last steps: the rule about remaining brokers examines them itself."""

    def found(self) -> Found:
        """Return the findings about all watched partitions."""
        self._found.add(self._kernel.end())
        return self._found
