"""What is wrong with a cluster: all findings, the verdict, and how both are shown."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from raftlog.client.wire import known
from raftlog.ops import node_findings, quorum_findings
from raftlog.ops.evidence import NodeSeen, Survey
from raftlog.ops.quorum_findings import Finding, Severity
from raftlog.plural import counted
from raftlog.printable import printable
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2


class Verdict(StrEnum):
    """The cluster as a whole: as bad as its worst finding."""

    HEALTHY = "healthy"
    """Notices only, or nothing."""
    DEGRADED = "degraded"
    DOWN = "down"


def diagnose(seen: Survey) -> list[Finding]:
    """What is wrong, the worst first."""
    rules = (*quorum_findings.RULES, *node_findings.RULES)
    found = [finding for rule in rules for finding in rule(seen)]
    return sorted(found, key=lambda one: -one.severity)


def verdict(findings: list[Finding]) -> Verdict:
    """See ``Verdict``."""
    worst = max((one.severity for one in findings), default=Severity.NOTICE)
    if worst is Severity.DOWN:
        return Verdict.DOWN
    return Verdict.DEGRADED if worst is Severity.DEGRADED else Verdict.HEALTHY


MOST_FINDINGS = 12
_COLUMNS = ("NODE", "ENDPOINT", "STATE", "EPOCH", "LOG END", "LAG", "REACHES")
_WIDTH_MIN, _WIDTH_MAX = 60, 100


def document(seen: Survey, findings: Sequence[Finding], verdict: Verdict) -> dict[str, Any]:
    """For programs."""
    leader, best = seen.leader, seen.best
    return {
        "verdict": verdict.value,
        "cluster_id": best.cluster_id if best else None,
        "leader_id": leader.node_id if leader else None,
        "leader_epoch": leader.leader_epoch if leader else None,
        "high_watermark": known(leader.high_watermark) if leader else None,
        "lowest_acknowledged_offset": known(leader.lowest_acknowledged_offset) if leader else None,
        "findings": [
            {
                "code": one.code,
                "severity": one.severity.name.lower(),
                "cause": one.cause,
                "consequence": one.consequence,
                "remedy": one.remedy,
                "command": one.command or None,
            }
            for one in findings
        ],
        "nodes": [
            {
                "node_id": known(node.node_id),
                "endpoint": node.endpoint,
                "reach": node.reach.name.lower(),
                "role": node.description.role if node.description else None,
                "failure": node.failure or None,
            }
            for node in seen.nodes
        ],
        "brokers": None
        if seen.brokers is None
        else {state: count for state, count in _states(seen).items() if count},
    }


def screen(seen: Survey, findings: Sequence[Finding], verdict: Verdict) -> str:
    """For people; as wide as the terminal, within bounds."""
    width = min(max(shutil.get_terminal_size().columns, _WIDTH_MIN), _WIDTH_MAX)
    parts = ["\n".join(_wrapped(_headline(seen, verdict), width, first="", then="  "))]
    parts += [_finding(one, width) for one in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        parts.append(f"... and {len(findings) - MOST_FINDINGS} more: raftlog doctor --json")
    if seen.nodes:
        parts.append(_table(seen))
    brokers = _brokers(seen)
    if brokers:
        parts.append("\n".join(textwrap.wrap(brokers, width)))
    return "\n\n".join(parts)


def _headline(seen: Survey, verdict: Verdict) -> str:
    best, leader = seen.best, seen.leader
    if best is None:
        return f"{verdict.value.upper()}: no controller answers"
    who = "no leader"
    if leader is not None:
        who = f"leader {leader.node_id} in epoch {leader.leader_epoch}"
    elif seen.heard_leader[0] >= 0:
        who = f"leader {seen.heard_leader[0]}, which does not answer"
    return f"{verdict.value.upper()}: cluster {best.cluster_id}, {who}"


def _finding(one: Finding, width: int) -> str:
    """The command stands alone: it is to be copied."""
    lines = _wrapped(f"{_MARK[one.severity]} {one.cause}", width, first="", then="  ")
    lines += _wrapped(f"So: {one.consequence}", width, first="  ", then="      ")
    lines += _wrapped(f"Do: {one.remedy}", width, first="  ", then="      ")
    if one.command:
        lines.append(f"      $ {one.command}")
    return "\n".join(lines)


def _wrapped(text: str, width: int, *, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


_MARK = {Severity.DOWN: "DOWN", Severity.DEGRADED: "DEGRADED", Severity.NOTICE: "NOTICE"}


def _table(seen: Survey) -> str:
    leader = seen.leader
    rows = [_row(node, leader) for node in seen.nodes]
    return aligned(_COLUMNS, rows)


def _row(node: NodeSeen, leader: quorum_pb2.DescribeQuorumResponse | None) -> tuple[object, ...]:
    one = node.description
    shown = node.node_id if node.node_id >= 0 else "-"
    if one is None:
        return shown, node.endpoint, str(node.reach), "-", "-", "-", "-"
    led = leader is not None and leader.cluster_id == one.cluster_id
    lag = max(0, leader.log_end_offset - one.log_end_offset) if leader and led else "-"
    others = [voter for voter in one.voters if voter.replica_id != one.node_id]
    lost = [voter.replica_id for voter in others if voter.unreachable_reason]
    reached = f"all but {','.join(map(str, lost))}" if lost else "all"
    return (
        shown,
        node.endpoint,
        printable(one.role),
        one.leader_epoch,
        one.log_end_offset,
        lag,
        reached if others else "-",
    )


def aligned(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table without borders; nothing in it is broken."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _states(seen: Survey) -> dict[str, int]:
    names = controller_pb2.BrokerLifecycleState
    counts: dict[str, int] = {}
    for one in seen.brokers.brokers if seen.brokers is not None else ():
        name = names.Name(one.state).lower()
        counts[name] = counts.get(name, 0) + 1
    return counts


def _brokers(seen: Survey) -> str:
    found = seen.brokers
    if found is None:
        return ""
    states = ", ".join(f"{count} {state}" for state, count in sorted(_states(seen).items()))
    lao = found.lowest_acknowledged_offset
    return (
        f"{counted(len(found.brokers), 'broker')}{f' ({states})' if states else ''},"
        f" {counted(found.partitions.total, 'partition')};"
        f" high watermark {found.high_watermark}, lowest acknowledged offset"
        f" {lao if lao >= 0 else 'unknown'}"
    )
