"""The audit without Spark: one pass for the rare records, one for each part of the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from raftlog.segments.manifest import Segment
from raftlog.segments.range_checks import check_segment
from replay.audit.rules import Rule
from replay.kernels import audit as kernels
from replay.kernels.arrays import Bools, ints
from replay.kernels.census import Census, Counting
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts
from replay.kernels.finding import Finding, order
from replay.kernels.intervals import Intervals
from replay.kernels.passes import BY_PARTITION
from replay.kernels.rules import clients, configs, progress, rights
from replay.kernels.rules.quorum import Epoch
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions, Steps
from replay.local.passes import bucket_of
from replay.local.pool import Pool
from replay.local.reading import DICTIONARIES, slices
from replay.local.shares import Share, of_topics, shares
from replay.opened import Export

PARTITIONS, CLIENTS, PROGRESS, RIGHTS = "partitions", "clients", "progress", "rights"
CONFIGS = "configs"


@dataclass
class Found:
    """Findings of an audit: their number by rule, and the first ``limit`` of them."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)
    first: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Memory is that of the limit, however many there are."""
        for finding in findings:
            self.counts[finding.rule] += 1
            self.first.append(finding)
            if len(self.first) > 2 * self.limit + 1000:
                self._cut()
        self._cut()

    def merge(self, other: Found) -> None:
        """Add the findings of another worker."""
        self.counts += other.counts
        self.first += other.first
        self._cut()

    def _cut(self) -> None:
        self.first = nsmallest(self.limit, self.first, key=order)


class Scan(NamedTuple):
    """Result of one pass over all records: those of RARE types, in order, and the counts."""

    rare: pa.Table
    census: Census


class _Files(NamedTuple):
    export: Export
    segments: Sequence[Segment]


def scan(export: Export, pool: Pool) -> Scan:
    """Rare records and the census; the files are checked against the manifest on the way.

    Raises CorruptExportError and its kinds.
    """
    segments = sorted(export.segments, key=lambda one: one.base_offset)
    tasks = [_Files(export, [segment]) for segment in segments]
    if pool.size == 1:
        tasks = [_Files(export, segments)]
    tables: list[pa.Table] = []
    counted = Census()
    for part in pool.map(_scan, tasks):
        tables.append(part.rare)
        counted.merge(part.census)
    return Scan(pa.concat_tables(tables), counted)


def check_files(export: Export, pool: Pool) -> None:
    """Check owner, size and hash of the files in question. Raises CorruptExportError and its
    kinds.
    """
    for _ in pool.map(_check, [_Files(export, [each]) for each in export.segments]):
        pass


def _check(files: _Files) -> None:
    manifest = files.export.manifest
    for segment in files.segments:
        check_segment(files.export.target, segment, manifest.cluster_id, manifest.generation)


def _scan(files: _Files) -> Scan:
    _check(files)
    counting = Counting()
    rare = pa.array([int(each) for each in RARE], pa.int32())
    tables: list[pa.Table] = [_nothing()]
    for table in slices(files.export, RARE_COLUMNS, segments=files.segments, coded=_CODED):
        counting.take(table)
        few = table.filter(pc.is_in(table["type"], rare))
        tables.append(few.cast(tables[0].schema))
    return Scan(pa.concat_tables(tables).combine_chunks(), counting.end())


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


def _nothing() -> pa.Table:
    from raftlog.segments.columns import SCHEMA

    return pa.schema([SCHEMA.field(name) for name in RARE_COLUMNS]).empty_table()


_ALL = Share()


class _Part(NamedTuple):
    """A part of the rules, with the records that they judge."""

    export: Export
    facts: Facts
    rules: tuple[Rule, ...]
    kind: str
    share: Share
    limit: int


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
    parts = _parts(export, facts, rules, limit, pool.size)
    if of_partitions is not None:
        parts = (each for each in parts if each.kind != PARTITIONS)
    for part in (*(of_partitions or ()), *pool.map(_judge, list(parts))):
        found.merge(part)
    found.add(kernels.fact_rules(facts, epochs, rules))
    return found


def _parts(
    export: Export, facts: Facts, rules: tuple[Rule, ...], limit: int, size: int
) -> Iterator[_Part]:
    def part(kind: str, share: Share = _ALL) -> _Part:
        return _Part(export, facts, rules, kind, share, limit)

    if kernels.PartitionRules.asked(rules):
        yield from (part(PARTITIONS, share) for share in shares(export, size))
    for family, kind in (
        (rights, RIGHTS),
        (progress, PROGRESS),
        (clients, CLIENTS),
        (configs, CONFIGS),
    ):
        if kernels.asks(family, rules, facts):
            yield part(kind)


def _judge(part: _Part) -> Found:
    found = Found(part.limit)
    for kernel, tables in _of_partitions(part) if part.kind == PARTITIONS else [_kernel(part)]:
        for table in tables:
            found.add(kernel.check(table))
        found.add(kernel.end())
    return found


class PartitionWatcher:
    """Watcher that judges partitions in a shared pass; ``found`` gives Found."""

    def __init__(
        self, rules: tuple[Rule, ...], limit: int, facts: Facts, partitions: Partitions
    ) -> None:
        self._kernel = kernels.PartitionRules(facts, rules, partitions)
        self._found = Found(limit)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """Judge a slice's steps; how long a state lasted is nothing to the rules."""
        del intervals
        self._found.add(self._kernel.judge(steps))

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Ignore the last steps: the rule about remaining brokers examines them itself."""

    def found(self) -> Found:
        """Return the findings about all watched partitions."""
        self._found.add(self._kernel.end())
        return self._found


def _of_partitions(part: _Part) -> Iterator[tuple[kernels.Kernel, Iterator[pa.Table]]]:
    """Process one bucket after the other: only one's partitions are remembered at a time."""
    of_partition = partial(bucket_of, BY_PARTITION)
    for tables in of_topics(part.export, part.share, COLUMNS, PARTITION_TYPES, of_partition):
        yield kernels.PartitionRules(part.facts, part.rules), tables


def _kernel(part: _Part) -> tuple[kernels.Kernel, Iterator[pa.Table]]:
    export, facts, rules = part.export, part.facts, part.rules
    if part.kind == PROGRESS:
        return kernels.progress_rules(facts, rules), slices(
            export, progress.COLUMNS, types=(RecordType.PROGRESS,)
        )
    if part.kind == RIGHTS:
        return kernels.right_rules(facts, rules), slices(export, rights.COLUMNS, types=rights.TYPES)
    if part.kind == CONFIGS:
        coded = (*DICTIONARIES, "resource_name", "config_name")
        return kernels.config_rules(facts, rules), slices(
            export, configs.COLUMNS, types=configs.TYPES, coded=coded
        )
    return kernels.client_rules(facts, rules), slices(export, clients.COLUMNS, only=_numbered)


def _numbered(table: pa.Table) -> Bools:
    return ints(table["client_id"]) != 0
