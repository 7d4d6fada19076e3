"""The contents of the log, the state at its end, and the audit, in one run that starts Spark only
once.
"""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from raftlog.metadata.entities import format_hash
from replay.engine.fold import fold
from replay.engine.pool import Pool
from replay.engine.reading import end_of
from replay.export import Export, StartingCheckpoint, from_checkpoint, starting_checkpoint
from replay.jobs import audit
from replay.jobs.state import Point
from replay.request import JobRequest
from replay.text import format_time


class SummaryResult(msgspec.Struct, frozen=True):
    """Result of the job at the end of the log, ``point``. ``entities``: kind -> number.

    ``checkpoint``: where the fold started; null for the beginning of the log.
    """

    cluster_id: str
    generation: int
    first_offset: int
    point: Point
    first_epoch: int
    entities: dict[str, int]
    state_hash: str
    audit: audit.AuditResult
    checkpoint: StartingCheckpoint | None = None

    @property
    def passed(self) -> bool:
        """Whether the audit has no findings."""
        return self.audit.passed


def run(export: Export, request: JobRequest, pool: Pool) -> SummaryResult:
    """Fold to the end, from a checkpoint if there is one, and audit the whole history."""
    # The audit comes first because it checks the files.
    audited = audit.run(export, request, pool)
    late = from_checkpoint(export, request)
    point = Point(*end_of(late))
    folded = fold(late, pool)
    return SummaryResult(
        cluster_id=export.manifest.cluster_id,
        generation=export.manifest.generation,
        first_offset=export.manifest.history_begin,
        point=point,
        first_epoch=export.segments[0].first_epoch,
        entities=folded.counts,
        state_hash=format_hash(folded.state_hash),
        audit=audited,
        checkpoint=starting_checkpoint(late),
    )


def render(result: SummaryResult, console: Console) -> None:
    """Print the result as text."""
    point = result.point
    table = Table(show_header=False)
    table.add_row("cluster", f"{result.cluster_id}, generation {result.generation}")
    table.add_row("records", f"{point.records}: offsets {result.first_offset} to {point.offset}")
    table.add_row("epochs", f"{result.first_epoch} to {point.epoch}")
    table.add_row("last record", format_time(point.timestamp_ms))
    for kind in ("topic", "partition", "broker", "config"):
        table.add_row(f"{kind}s", str(result.entities.get(kind, 0)))
    table.add_row(f"state hash at {point.offset}", result.state_hash)
    console.print(table)
    if result.checkpoint is not None:
        console.print(
            f"Folded the state from the checkpoint at offset {result.checkpoint.offset}\n"
            "(verify checks the checkpoint; --from-the-beginning ignores it)"
        )
    audit.render(result.audit, console)
