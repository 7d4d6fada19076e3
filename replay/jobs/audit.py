"""The audit: checks the whole history against the rules, which docs/audit.md explains one by
one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich.console import Console

from raftlog.metadata.words import author
from replay.engine import audit as kernels
from replay.engine.pool import Pool
from replay.export import Export, open_export, require_whole_history
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, as_table
from replay.kernels.rights import begins
from replay.request import JobRequest
from replay.rules import WRITE_WITHOUT_RIGHT, Rule, choose
from replay.text import FIXED, TEXT, Field, Listing, format_time, listing, more

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE_WIDTH = 110
"""Terminal columns that a table of findings needs."""


class RuleResult(msgspec.Struct, frozen=True):
    """Result of one rule: the number of records it examined and of its findings.

    ``begins``: the offset after which the rule applies; -1 if from the start, null if not in this
    log.
    """

    id: str
    severity: str
    title: str
    documentation: str
    checked: int
    findings: int
    begins: int | None = -1


class AuditResult(msgspec.Struct, frozen=True):
    """Result of an audit. ``checked``: number of records. ``findings``: the first of ``total``, by
    offset. ``rules``: all requested rules. ``origin``: the kind of cluster that wrote the log; ""
    for raftlog.
    """

    checked: int
    total: int
    rules: list[RuleResult]
    findings: list[Finding]
    origin: str = ""

    @property
    def passed(self) -> bool:
        """Whether there are no findings."""
        return not self.total


def run(export: Export, request: JobRequest, pool: Pool) -> AuditResult:
    """Audit the records in question, and check the files on the way. Raises ReplayError for an
    unknown rule.
    """
    return remaining_passes(first_pass(export, request, pool), export, request, pool)


class FirstPass(NamedTuple):
    """Result of an audit's first pass: the rules to apply, the facts they need, and the record
    counts.
    """

    rules: tuple[Rule, ...]
    facts: Facts
    scan: kernels.Scan


def first_pass(export: Export, request: JobRequest, pool: Pool) -> FirstPass:
    """Run the first pass and check the files. Raises ReplayError for an unknown rule."""
    rules = choose(request.rules, export.manifest.origin)
    require_whole_history(export)
    scan = kernels.scan(export, pool)
    facts = Facts(
        scan.rare,
        export.manifest.end_offset,
        super_users=frozenset(request.super_users),
        allow_everyone_if_no_acl_found=request.allow_everyone_if_no_acl_found,
        state_from=export.manifest.state_from or 0,
    )
    return FirstPass(rules, facts, scan)


def remaining_passes(
    first: FirstPass,
    export: Export,
    request: JobRequest,
    pool: Pool,
    of_partitions: Sequence[kernels.Found] | None = None,
) -> AuditResult:
    """Run the remaining passes. ``of_partitions``: the findings about partitions, or None to run
    that pass, too.
    """
    rules, facts, scan = first
    census = scan.census
    found = kernels.judge(export, facts, census.epochs, rules, request.limit, pool, of_partitions)
    return audit_result(rules, census.types, {WRITE_WITHOUT_RIGHT.id: begins(facts)}, found)


def findings(
    spark: SparkSession, target: str, rules: Collection[str] = (), limit: int = 100_000
) -> DataFrame:
    """Return the first findings about an export as a Spark table with the columns in docs/audit.md.

    ``rules``: rule ids, or () for all rules that apply to the log. Raises RaftlogError.
    """
    from replay.spark.pool import SparkPool

    request = JobRequest(job="audit", export=str(target), rules=tuple(rules), limit=limit)
    export = open_export(request)
    found = run(export, request, SparkPool(spark, export.record_count)).findings
    return spark.createDataFrame(as_table(found))


def audit_result(
    rules: Collection[Rule],
    checked: Mapping[int, int],
    begins: Mapping[str, int | None],
    found: kernels.Found,
) -> AuditResult:
    """Assemble the result of an audit.

    ``checked``: number of records per type. ``begins``: for rules that do not apply from the start,
    the offset after which they do.
    """

    def of_rule(rule: Rule) -> int:
        judges = begins.get(rule.id, -1) is not None
        return sum(checked.get(int(type_), 0) for type_ in rule.looks_at) if judges else 0

    results = [
        RuleResult(
            rule.id,
            rule.severity,
            rule.title,
            rule.documentation,
            of_rule(rule),
            found.counts.get(rule.id, 0),
            begins.get(rule.id, -1),
        )
        for rule in rules
    ]
    return AuditResult(sum(checked.values()), found.counts.total(), results, found.first)


def render(result: AuditResult, console: Console) -> None:
    """Print the result as text."""
    for rule in result.rules:
        if rule.begins is not None and rule.begins >= 0:
            console.print(f"{rule.id} applies to writes after offset {rule.begins}")
    if result.passed:
        console.print(
            f"Audit passed: {len(result.rules)} rules, {result.checked} records, no violation"
        )
        return
    if console.width >= _TABLE_WIDTH:
        console.print(findings_listing(result)._replace(title="", total=0).table())
    else:
        _print_narrow(result, console)
    broken = [rule for rule in result.rules if rule.findings]
    console.print(
        f"Audit failed: {result.total} violations{more(len(result.findings), result.total)} against"
        f" {len(broken)} of {len(result.rules)} rules:"
    )
    for rule in broken:
        console.print(
            f"  {rule.id} ({rule.severity}, {rule.findings}): {rule.title}. {rule.documentation}",
            soft_wrap=True,
        )


def findings_listing(result: AuditResult) -> Listing:
    """Return the findings as a table."""
    return listing(
        "Findings",
        result.findings,
        Field("rule", "rule", kind=TEXT),
        Field("offsets", "offsets", lambda offsets: ", ".join(map(str, offsets)), FIXED),
        Field("time", _time, kind=FIXED),
        *(() if result.origin else (Field("by", _by, kind=TEXT),)),
        *(Field(name, of, kind=TEXT) for name, of in _SAID.items()),
        total=result.total,
    )


_SAID = {"what": "subject", "found": "found", "expected": "expected"}


def _time(finding: Finding) -> str:
    return "" if finding.timestamp_ms is None else format_time(finding.timestamp_ms)


def _print_narrow(result: AuditResult, console: Console) -> None:
    """Print findings as lines, as a table would truncate their subjects."""
    for finding in result.findings:
        place = (", ".join(map(str, finding.offsets)), _time(finding), finding.rule)
        console.print("  ".join(each for each in place if each))
        by = "" if result.origin else _by(finding)
        about = f"{finding.subject}, by {by}" if by else finding.subject
        console.print(f"    {about}: found {finding.found}; expected {finding.expected}")


def _by(finding: Finding) -> str:
    return "" if finding.principal is None else author(finding.principal)
