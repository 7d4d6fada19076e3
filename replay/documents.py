"""What each job of ``raftlog replay`` prints with ``--json``: docs/reference/json.md has it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from replay.jobs.audit import AuditResult
from replay.jobs.availability import AvailabilityResult
from replay.jobs.churn import ChurnResult
from replay.jobs.diff import DiffResult
from replay.jobs.history import HistoryResult
from replay.jobs.lao import LaoResult
from replay.jobs.sql import SqlResult
from replay.jobs.state import StateResult
from replay.jobs.summary import SummaryResult
from replay.jobs.verify import VerifyResult
from replay.jobs.watch import WatchResult
from replay.report.model import ReportResult

RESULTS: Mapping[str, type[msgspec.Struct]] = {
    "state": StateResult,
    "diff": DiffResult,
    "lao": LaoResult,
    "availability": AvailabilityResult,
    "churn": ChurnResult,
    "audit": AuditResult,
    "verify": VerifyResult,
    "summary": SummaryResult,
    "history": HistoryResult,
    "report": ReportResult,
    "sql": SqlResult,
    "watch": WatchResult,
}
"""By job. ``watch`` prints one a micro-batch, each in a line."""
