"""All findings about what was seen, and the verdict that follows."""

from __future__ import annotations

from enum import StrEnum

from raftlog.doctor import (
    broker_rules,
    leader_rules,
    node_rules,
    outsider_rules,
    quorum_rules,
    voter_rules,
)
from raftlog.doctor.evidence import Evidence
from raftlog.doctor.finding import Finding, Severity


class Verdict(StrEnum):
    """The cluster as a whole: as bad as its worst finding."""

    HEALTHY = "healthy"
    """Notices only, or nothing."""
    DEGRADED = "degraded"
    DOWN = "down"


def diagnose(seen: Evidence) -> list[Finding]:
    """What is wrong, the worst first."""
    rules = (
        *leader_rules.RULES,
        *quorum_rules.RULES,
        *voter_rules.RULES,
        *outsider_rules.RULES,
        *node_rules.RULES,
        *broker_rules.RULES,
    )
    found = [finding for rule in rules for finding in rule(seen)]
    return sorted(found, key=lambda one: -one.severity)


def verdict(findings: list[Finding]) -> Verdict:
    """See ``Verdict``."""
    worst = max((one.severity for one in findings), default=Severity.NOTICE)
    if worst is Severity.DOWN:
        return Verdict.DOWN
    return Verdict.DEGRADED if worst is Severity.DEGRADED else Verdict.HEALTHY
