"""The doctor: all findings about a cluster, the verdict, and their display."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

import raftlog.ops.node_findings  # noqa: F401, which adds rules
from raftlog.client.wire import known
from raftlog.node.config.sources import LOCAL_DIRECTORY
from raftlog.ops.evidence import AskedNode, BrokerState, QuorumAnswer, Survey
from raftlog.ops.quorum_findings import RULES, Finding, Severity
from raftlog.text import counted, named, printable

MOST_FINDINGS = 12
_COLUMNS = ("NODE", "ENDPOINT", "STATE", "EPOCH", "LOG END", "LAG", "REACHES")
_WIDTH_MIN, _WIDTH_MAX = 60, 100


class Verdict(StrEnum):
    """The state of the whole cluster: as bad as its worst finding."""

    HEALTHY = "healthy"
    """No findings, or only notices."""
    DEGRADED = "degraded"
    DOWN = "down"


def diagnose(survey: Survey) -> list[Finding]:
    """Return the findings, worst first."""
    found = [finding for rule in RULES for finding in rule(survey)]
    return sorted(found, key=lambda one: -one.severity)


def verdict(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that follows from the findings."""
    worst = max((one.severity for one in findings), default=Severity.NOTICE)
    if worst is Severity.DOWN:
        return Verdict.DOWN
    return Verdict.DEGRADED if worst is Severity.DEGRADED else Verdict.HEALTHY


def serves(survey: Survey) -> bool:
    """Return whether any broker is unfenced, so that it serves clients."""
    brokers = survey.brokers.brokers if survey.brokers is not None else ()
    return any(one.state == BrokerState.ACTIVE for one in brokers)


class _LocalNode(msgspec.Struct):
    port: int


class _LocalCluster(msgspec.Struct):
    nodes: list[_LocalNode]


def with_local_commands(findings: Sequence[Finding], addresses: Collection[str]) -> list[Finding]:
    """Return the findings; if the addresses belong to the `raftlog local` cluster on this machine,
    with the command that starts its nodes, since their configurations have other names.
    """
    directory = os.environ.get(LOCAL_DIRECTORY, "")
    try:
        state = (Path(directory) / "cluster.json").read_bytes() if directory else b""
        ports = [node.port for node in msgspec.json.decode(state, type=_LocalCluster).nodes]
    except (OSError, msgspec.DecodeError):
        ports = []
    if not any(f"127.0.0.1:{port}" in addresses for port in ports):
        return list(findings)
    starts = ("raftlog controller run -c FILE", "raftlog broker run -c FILE")
    here = f"raftlog local start --dir {shlex.quote(directory)}"
    return [replace(one, command=here) if one.command in starts else one for one in findings]


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A controller that was queried."""

    node_id: int | None
    endpoint: str
    reach: str
    role: str | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The verdict on a cluster, and the evidence for it."""

    verdict: Verdict
    cluster_id: str | None
    leader_id: int | None
    leader_epoch: int | None
    high_watermark: int | None
    lowest_acknowledged_offset: int | None
    findings: Sequence[Finding]
    nodes: Sequence[SeenNode]
    brokers: Mapping[str, int] | None
    """Number of brokers in each state, or None if no node could report them."""
    unreported: Sequence[str]
    """Serving nodes whose disk, clock, certificate and build are unknown."""


def report(survey: Survey, findings: Sequence[Finding]) -> DoctorReport:
    """Return the report of ``raftlog doctor``."""
    leader, best = survey.leader, survey.best
    return DoctorReport(
        verdict(findings),
        best.cluster_id if best else None,
        leader.node_id if leader else None,
        leader.leader_epoch if leader else None,
        known(leader.high_watermark) if leader else None,
        known(leader.lowest_acknowledged_offset) if leader else None,
        findings,
        [
            SeenNode(
                known(one.node_id),
                one.endpoint,
                one.reach.name.lower(),
                one.description.role if one.description else None,
                one.failure or None,
            )
            for one in survey.nodes
        ],
        None if survey.brokers is None else _states(survey),
        survey.unreported,
    )


def screen(survey: Survey, findings: Sequence[Finding]) -> str:
    """Return the report as text: findings, then nodes, as wide as the terminal within bounds."""
    width = screen_width()
    parts = ["\n".join(paragraph(_headline(survey, verdict(findings)), width))]
    parts += [_finding(one, width) for one in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        parts.append(f"… and {len(findings) - MOST_FINDINGS} more findings: raftlog doctor --json")
    if survey.nodes:
        parts.append(_table([_row(node, survey.leader) for node in survey.nodes]))
    if survey.brokers is not None:
        parts.append("\n".join(textwrap.wrap(_brokers(survey), width)))
    if names := survey.unreported:
        what = f"disk, clock, certificate and build of {named(names)}"
        parts.append("\n".join(paragraph(f"Unknown for lack of an answer: {what}.", width)))
    return "\n\n".join(parts)


def screen_width() -> int:
    """Return the terminal's width in columns, within the bounds of a readable line."""
    return min(max(shutil.get_terminal_size().columns, _WIDTH_MIN), _WIDTH_MAX)


def paragraph(text: str, width: int, first: str = "", then: str = "  ") -> list[str]:
    """Return a text as lines. ``first`` and ``then``: prefixes of the first and of later lines."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _headline(survey: Survey, verdict: Verdict) -> str:
    best, leader = survey.best, survey.leader
    if best is None:
        return f"{verdict.value.upper()}: no controller answers"
    who = "no leader"
    if leader is not None:
        who = f"leader {leader.node_id} in epoch {leader.leader_epoch}"
    elif survey.heard_leader[0] >= 0:
        who = f"leader {survey.heard_leader[0]}, which does not answer"
    return f"{verdict.value.upper()}: cluster {best.cluster_id}, {who}"


def _finding(one: Finding, width: int) -> str:
    """Return a finding as text. The command has its own line, for copying."""
    lines = paragraph(f"{one.severity.name} {one.cause}", width)
    lines += paragraph(f"So: {one.consequence}", width, "  ", "      ")
    lines += paragraph(f"Do: {one.remedy}", width, "  ", "      ")
    return "\n".join([*lines, f"      $ {one.command}"] if one.command else lines)


def _row(node: AskedNode, leader: QuorumAnswer | None) -> list[str]:
    one = node.description
    shown = [str(node.node_id) if node.node_id >= 0 else "-", node.endpoint]
    if one is None:
        return [*shown, str(node.reach), "-", "-", "-", "-"]
    lag = "-"
    if leader is not None and leader.cluster_id == one.cluster_id:
        lag = str(max(0, leader.log_end_offset - one.log_end_offset))
    others = [voter for voter in one.voters if voter.replica_id != one.node_id]
    lost = [str(voter.replica_id) for voter in others if voter.unreachable_reason]
    reached = f"all but {','.join(lost)}" if lost else "all" if others else "-"
    return [
        *shown, printable(one.role), str(one.leader_epoch), str(one.log_end_offset), lag, reached
    ]  # fmt: skip


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table without borders, whose cells are never wrapped."""
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_COLUMNS, *rows)
    )


def _states(survey: Survey) -> Counter[str]:
    brokers = survey.brokers.brokers if survey.brokers is not None else ()
    return Counter(one.state_name for one in brokers)


def _brokers(survey: Survey) -> str:
    found = survey.brokers
    assert found is not None
    states = ", ".join(f"{count} {state}" for state, count in sorted(_states(survey).items()))
    lao = found.lowest_acknowledged_offset
    return (
        f"{counted(len(found.brokers), 'broker')}{f' ({states})' if states else ''},"
        f" {counted(found.partitions.total, 'partition')};"
        f" high watermark {found.high_watermark}, lowest acknowledged offset"
        f" {lao if lao >= 0 else 'unknown'}"
    )
