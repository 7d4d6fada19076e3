"""The audit: whether the rules were kept, over the whole history. Rule by rule: docs/audit.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console
from rich.table import Column, Table

from replay.audit.check import beginnings, by_family, choose
from replay.audit.finding import Finding
from replay.audit.history import History
from replay.audit.rules import Rule
from replay.request import JobRequest, format_time
from replay.source import Export, records, require_whole_history

_ORDER = ("offset", "rule", "partition_id", "broker_id")


class RuleResult(msgspec.Struct, frozen=True):
    """One rule: ``checked`` records were looked at, ``findings`` offences found.

    ``begins``: the offset behind which it judges, null: it judges nothing in this log.
    """

    id: str
    severity: str
    title: str
    documentation: str
    checked: int
    findings: int
    begins: int | None = -1


class AuditResult(msgspec.Struct, frozen=True):
    """``checked`` records in all; ``findings``: the first by offset, of ``total``; ``rules``: all
    that were asked for.
    """

    checked: int
    total: int
    rules: list[RuleResult]
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.total


def run(spark: SparkSession, export: Export, request: JobRequest) -> AuditResult:
    """Audit the records in question. Raises ReplayError for a rule that is none."""
    rules = choose(request.rules, export.manifest.origin)
    require_whole_history(export)
    with history_of(records(spark, export), export, request).kept() as history:
        return judge(history, rules, request.limit)


def history_of(rows: DataFrame, export: Export, request: JobRequest) -> History:
    """All records of an export, to be judged as was asked for."""
    return History(rows, export.manifest.end_offset, super_users=frozenset(request.super_users))


def judge(history: History, rules: Collection[Rule], limit: int) -> AuditResult:
    """Audit a history that is kept meanwhile by these rules; of what is found the first ``limit``
    are told.
    """
    checked = {
        row["type"]: row["count"] for row in history.records.groupBy("type").count().collect()
    }
    begins = beginnings(history, rules)
    broken: Counter[str] = Counter()
    first: list[Row] = []
    for found in by_family(history, [rule for rule in rules if begins[rule.id] is not None]):
        rows, counts = _first(found, limit)
        broken += counts
        first += rows
    first = sorted(first, key=_order)[:limit]
    results = [
        RuleResult(
            rule.id,
            rule.severity,
            rule.title,
            rule.documentation,
            0
            if begins[rule.id] is None
            else sum(checked.get(int(type_), 0) for type_ in rule.looks_at),
            broken.get(rule.id, 0),
            begins[rule.id],
        )
        for rule in rules
    ]
    return AuditResult(
        sum(checked.values()), broken.total(), results, [Finding(**row.asDict()) for row in first]
    )


def _first(found: DataFrame, limit: int) -> tuple[list[Row], Counter[str]]:
    """The first rows, and how many there are of each rule.

    Few are counted as they come; more are counted by Spark.
    """
    rows = found.orderBy(*_ORDER).limit(limit + 1).collect()
    if len(rows) <= limit:
        return rows, Counter(row["rule"] for row in rows)
    counts = found.groupBy("rule").count().collect()
    return rows[:limit], Counter({row["rule"]: row["count"] for row in counts})


def _order(row: Row) -> tuple[object, ...]:
    """As ORDER has it: null before everything."""
    return tuple((row[name] is not None, row[name]) for name in _ORDER)


def render(result: AuditResult, console: Console) -> None:
    """For people."""
    for rule in result.rules:
        if rule.begins is not None and rule.begins >= 0:
            console.print(f"{rule.id} judges what was written behind offset {rule.begins}")
    if result.passed:
        console.print(
            f"Audit passed: {len(result.rules)} rules, {result.checked} records, no offence"
        )
        return
    table = Table(
        "rule", "offsets", Column("time", no_wrap=True), "by", "what", "found", "expected"
    )
    for finding in result.findings:
        table.add_row(
            finding.rule,
            ", ".join(map(str, finding.offsets)),
            "" if finding.timestamp_ms is None else format_time(finding.timestamp_ms),
            "" if finding.principal is None else finding.principal or "controller",
            finding.subject,
            finding.found,
            finding.expected,
        )
    console.print(table)
    more = (
        f" ({len(result.findings)} shown: raise --limit for more)"
        if len(result.findings) < result.total
        else ""
    )
    broken = [rule for rule in result.rules if rule.findings]
    console.print(
        f"Audit failed: {result.total} offences{more} against {len(broken)} of {len(result.rules)}"
        " rules:"
    )
    for rule in broken:
        console.print(
            f"  {rule.id} ({rule.severity}, {rule.findings}): {rule.title}. {rule.documentation}",
            soft_wrap=True,
        )


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("audit"))
