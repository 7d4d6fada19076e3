"""JSON documents that ``raftlog replay`` and ``raftlog import`` print with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.jobs.audit import AuditResult
from replay.jobs.availability import AvailabilityResult
from replay.jobs.diff import DiffResult
from replay.jobs.history import HistoryResult
from replay.jobs.lao import LaoResult
from replay.jobs.sql import SqlResult
from replay.jobs.state import StateResult
from replay.jobs.summary import SummaryResult
from replay.jobs.verify import VerifyResult
from replay.jobs.watch import WatchResult
from replay.kafka.importing import Imported
from replay.report.model import ReportResult


class KafkaImport(Imported, frozen=True):
    """Summary of an import. All offsets but the first are exclusive."""

    sound: bool
    """Whether the import found nothing wrong."""


PRINTED: Mapping[str, Any] = {
    "replay state": StateResult,
    "replay diff": DiffResult,
    "replay lao": LaoResult,
    "replay availability": AvailabilityResult,
    "replay audit": AuditResult,
    "replay verify": VerifyResult,
    "replay summary": SummaryResult,
    "replay history": HistoryResult,
    "replay report": ReportResult,
    "replay sql": SqlResult,
    "replay watch": WatchResult,
    "import kafka": KafkaImport,
}
"""The document of each command. ``replay watch`` prints one per micro-batch, each on a line."""
