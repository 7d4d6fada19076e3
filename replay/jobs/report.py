"""The report: the cluster's history on one page that opens offline.

See :mod:`replay.report`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, structs
from rich.console import Console

from replay.churn.configs import config_churn
from replay.churn.growth import growth, state_sizes
from replay.churn.moves import MoveWatcher
from replay.churn.moves import together as moves_of
from replay.engine.audit import PartitionWatcher
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.jobs import audit, availability, churn, lao
from replay.kernels.census import Census, require_records
from replay.kernels.facts import Facts
from replay.kernels.intervals import Names, of_partitions
from replay.outages.partitions import OutageWatcher, min_isr
from replay.outages.partitions import together as outages_of
from replay.outages.result import Stretch
from replay.outages.service import controllers
from replay.report import moments, page
from replay.report.model import MAX_PERIODS, Header, ReportResult
from replay.report.page import verdict
from replay.report.timeline import choose_axis, make_timeline, steps_of
from replay.request import JobRequest
from replay.text import number, period

if TYPE_CHECKING:
    from replay.engine.pool import Pool

Result = TypeVar("Result", bound=Struct)
_WHOLE = {"periods", "objectives", "types", "forecasts"}
"""Lists that are short by themselves, or drawn over time."""


def run(export: Export, request: JobRequest, pool: Pool) -> ReportResult:
    """Return the same by the tasks of any pool; the files are checked on the way."""
    output = page.writable(request.output)
    charted = structs.replace(request, limit=max(request.limit, MAX_PERIODS))
    begun, log = audit.begun(export, request, pool), ExportLog(export, pool)
    facts, census = Facts(begun.scan.rare, log.end_offset), require_records(begun.scan.census)
    names, reigns = Names(facts), controllers(log, census, export.manifest.origin)
    axis = choose_axis(census.first_ms, census.last_ms)
    stretch = Stretch.of(census.first_ms, census.last_ms, None)
    parts = log.run(
        of_partitions(
            begun.facts,
            partial(OutageWatcher, stretch, min_isr(log)),
            partial(MoveWatcher, stretch.since_ms),
            moments.TroubleWatcher,
            partial(PartitionWatcher, begun.rules, request.limit),
        )
    )
    outages, moves, troubles, offences = zip(*parts, strict=True)
    audited = audit.judged(begun, export, request, pool, offences)
    waited = lao.look(log, facts.brokers, stall_ms=request.stall_ms, steps=steps_of(axis))
    grown = growth(log, stretch.since_ms, stretch.period_ms, steps_of(axis))
    troubled = moments.together(list(troubles), names)
    timeline = make_timeline(
        log,
        facts,
        names,
        axis,
        reigns,
        (troubled, waited, grown),
        audited.findings,
        export.manifest.origin,
    )
    served = availability.look(facts, reigns, census, stretch, outages_of(list(outages), names))
    changed = churn.Churn(
        stretch,
        moves_of(list(moves), names, charted.limit),
        config_churn(log, stretch.since_ms),
        grown,
        state_sizes(export, pool),
    )
    result = ReportResult(
        output=str(output),
        header=_header(census, export),
        timeline=timeline,
        audit=audited,
        lao=lao.summarize(waited, request),
        availability=_rows(availability.summarize(served, charted), request.limit),
        churn=_rows(churn.summarize(changed, export, charted), request.limit),
    )
    page.write(page.render_page(result), output)
    return result


def _rows(result: Result, limit: int) -> Result:
    """Return the result with its tables cut to ``limit`` rows."""
    tables = {
        name: getattr(result, name) for name in result.__struct_fields__ if name not in _WHOLE
    }
    return structs.replace(
        result, **{name: rows[:limit] for name, rows in tables.items() if isinstance(rows, list)}
    )


def _header(counted: Census, export: Export) -> Header:
    """Return the header of the report: the log's origin and range."""
    manifest, epochs = export.manifest, counted.epochs
    return Header(
        cluster_id=manifest.cluster_id,
        generation=manifest.generation,
        first_offset=min(each.first for each in epochs),
        last_offset=max(each.last for each in epochs),
        records=counted.records,
        first_epoch=epochs[0].epoch,
        last_epoch=epochs[-1].epoch,
        metadata_version=manifest.metadata_version,
        exported_at=manifest.exported_at,
        origin=manifest.origin,
    )


def render(result: ReportResult, console: Console) -> None:
    """Print the location of the report and its first line."""
    axis = result.timeline.axis
    console.print(
        f"{number(result.header.records)} records, {period(axis.begins_ms, axis.ends_ms)} UTC"
    )
    console.print(verdict(result).text)
    console.print(f"written: {result.output}", soft_wrap=True)
