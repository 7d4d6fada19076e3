"""The tasks of the audit: one pass for the rare records, and one for each family of rules that
judges many records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.segments.columns import SCHEMA as RECORDS
from raftlog.segments.manifest import Segment
from raftlog.segments.range_checks import check_segment
from replay.engine.passes import in_order, partition_shuffle
from replay.engine.plan import Bucket, ByColumns, Shuffle, stretches
from replay.engine.pool import Pool
from replay.engine.reading import DICTIONARIES, slices
from replay.export import Export
from replay.kernels import audit as kernels
from replay.kernels.arrays import Bools, ints
from replay.kernels.census import Census, Epoch
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts
from replay.kernels.findings import Finding, order
from replay.kernels.intervals import Intervals
from replay.kernels.passes import BY_CLIENT
from replay.kernels.rules import clients, configs, progress, rights
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
"""Text columns with few distinct values in a scan, read as dictionaries: twice as fast as copying
each value.
"""
_CONFIGS_CODED = (*DICTIONARIES, "resource_name", "config_name")


@dataclass
class Found:
    """Findings of an audit: the number per rule, and the first ``limit`` of all."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)
    first: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings. Memory is bounded by the limit."""
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


class Scan(NamedTuple):
    """Result of a pass over all records: those of the types RARE, in order, and the counts of
    all.
    """

    rare: pa.Table
    census: Census


def scan(export: Export, pool: Pool) -> Scan:
    """Return the rare records and the census, and check the files against the manifest.

    Raises CorruptExportError and its subclasses.
    """
    tables: list[pa.Table] = []
    counted = Census()
    for part in pool.map(partial(_scan, export), stretches(export, pool.stretches(export))):
        tables.append(part.rare)
        counted.merge(part.census)
    return Scan(pa.concat_tables(tables), counted)


def check_files(export: Export, pool: Pool) -> None:
    """Check the owner, size and hash of the files in question. Raises CorruptExportError and its
    subclasses.
    """
    for _ in pool.map(partial(_check, export), stretches(export, pool.stretches(export))):
        pass


def _check(export: Export, segments: Sequence[Segment]) -> None:
    for segment in segments:
        check_segment(export.target, segment, *export.manifest.owner)


def _scan(export: Export, segments: Sequence[Segment]) -> Scan:
    _check(export, segments)
    counted = Census()
    rare = pa.array([int(each) for each in RARE], pa.int32())
    schema = pa.schema([RECORDS.field(name) for name in RARE_COLUMNS])
    tables: list[pa.Table] = [schema.empty_table()]
    for table in slices(export, RARE_COLUMNS, segments=segments, coded=_CODED):
        counted.take(table)
        tables.append(table.filter(pc.is_in(table["type"], rare)).cast(schema))
    return Scan(pa.concat_tables(tables).combine_chunks(), counted)


class _Judge(NamedTuple):
    """The work of a task: judge records by a family of BY_RECORD or, if ``family`` is "", by the
    rules about partitions.
    """

    family: str
    facts: Facts
    rules: tuple[Rule, ...]
    limit: int

    def bucket(self, bucket: Bucket) -> Found:
        """Judge the records of a bucket."""
        return self.judge(bucket.tables)

    def judge(self, tables: Iterator[pa.Table]) -> Found:
        """Judge records."""
        found = Found(self.limit)
        kernel: Any = (
            kernels.RecordRules(self.family, self.facts, self.rules)
            if self.family
            else kernels.PartitionRules(self.facts, self.rules)
        )
        for table in tables:
            found.add(kernel.check(table))
        found.add(kernel.end())
        return found


def judge(
    export: Export,
    facts: Facts,
    epochs: Iterable[Epoch],
    rules: tuple[Rule, ...],
    limit: int,
    pool: Pool,
    of_partitions: Sequence[Found] | None = None,
) -> Found:
    """Return the findings of the rules. ``of_partitions``: findings from PartitionWatchers, or None
    to judge partitions here, too.
    """
    shuffles: dict[str, Shuffle] = {}
    if of_partitions is None and any(kernels.asked(each, rules) for each in kernels.OF_PARTITIONS):
        shuffles[""] = partition_shuffle(export, COLUMNS, types=PARTITION_TYPES)
    # Each progress record is compared with those before it.
    shuffles["progress"] = in_order(export, progress.COLUMNS, progress.TYPES)
    by_client = ByColumns(BY_CLIENT, by_topic=False)
    shuffles["clients"] = Shuffle(export, clients.COLUMNS, by_client, only=_numbered)
    parts: list[Found] = list(of_partitions or ())
    for family, shuffle in shuffles.items():
        if not family or kernels.asks(family, rules, facts):
            parts += pool.map_buckets(_Judge(family, facts, rules, limit).bucket, shuffle)
    stretched = stretches(export, pool.stretches(export))
    for family, module, coded in (
        ("rights", rights, DICTIONARIES),
        ("configs", configs, _CONFIGS_CODED),
    ):
        if kernels.asks(family, rules, facts):
            # Stretches consist of whole batches, as files do.
            reading = partial(slices, export, module.COLUMNS, types=module.TYPES, coded=coded)
            judged = _Judge(family, facts, rules, limit)
            parts += pool.map(partial(_judge_stretch, reading, judged), stretched)
    found = Found(limit)
    for part in parts:
        found.merge(part)
    found.add(kernels.fact_rules(facts, epochs, rules))
    return found


def _judge_stretch(
    reading: Callable[..., Iterator[pa.Table]], work: _Judge, segments: Sequence[Segment]
) -> Found:
    return work.judge(reading(segments=segments))


def _numbered(table: pa.Table) -> Bools:
    return ints(table["client_id"]) != 0


class PartitionWatcher:
    """A watcher that judges partitions in a shared pass; ``found`` returns Found."""

    def __init__(
        self, rules: tuple[Rule, ...], limit: int, facts: Facts, partitions: Partitions
    ) -> None:
        self._kernel = kernels.PartitionRules(facts, rules, partitions)
        self._found = Found(limit)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """Judge the steps of a slice. The rules do not need the durations of states."""
        del intervals
        self._found.add(self._kernel.judge(steps))

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Ignore the last steps, as the rule about brokers that remain in an ISR itself examines
        these.
        """

    def found(self) -> Found:
        """Return the findings about all watched partitions."""
        self._found.add(self._kernel.end())
        return self._found
