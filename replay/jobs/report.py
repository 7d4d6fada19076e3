"""The report: the cluster's history on one page that opens offline. See :mod:`replay.report`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from replay.engine.audit import PartitionWatcher
from replay.engine.passes import ExportLog
from replay.export import Export
from replay.jobs import audit, availability, lao
from replay.kernels.census import Census, require_records
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding
from replay.kernels.intervals import Names, of_partitions
from replay.outages.partitions import Troubled, TroubleWatcher
from replay.outages.service import Controller, Stretch, controllers, service
from replay.report import incidents, page
from replay.report.model import Axis, Header, ReportResult, Timeline
from replay.report.timeline import choose_axis, lanes_of, levels_of, steps_of, waits_by_step
from replay.request import JobRequest
from replay.text import number, period

if TYPE_CHECKING:
    from replay.engine.pool import Pool


def run(export: Export, request: JobRequest, pool: Pool) -> ReportResult:
    """Write the report, with the tasks of a pool, and check the files on the way."""
    output, origin = page.writable(request.output), export.manifest.origin
    first, log = audit.first_pass(export, request, pool), ExportLog(export, pool)
    facts, census = Facts(first.scan.rare, log.end_offset), require_records(first.scan.census)
    reigns = controllers(log, census, origin)
    axis = choose_axis(census.first_ms, census.last_ms)
    stretch = Stretch.of(census.first_ms, census.last_ms, None)
    watchers = (
        partial(TroubleWatcher, stretch),
        partial(PartitionWatcher, first.rules, request.limit),
    )
    troubles, offences = zip(*log.run(of_partitions(first.facts, *watchers)), strict=True)
    audited = audit.remaining_passes(first, export, request, pool, offences)
    troubled = availability.merge_all(troubles)
    waited = lao.analyse(log, facts.brokers, stall_ms=request.stall_ms, steps=steps_of(axis))
    result = ReportResult(
        output=str(output),
        header=_header(census, export),
        timeline=_timeline(log, facts, axis, reigns, troubled, waited, audited.findings, origin),
        audit=audited,
        lao=lao.summarize(waited, request),
        availability=availability.summarize(facts, reigns, stretch, troubled, request.limit),
    )
    page.write(page.render_page(result), output)
    return result


def _timeline(
    log: ExportLog,
    facts: Facts,
    axis: Axis,
    reigns: list[Controller],
    troubled: Troubled,
    waited: lao.Lao,
    findings: list[Finding],
    origin: str,
) -> Timeline:
    """Return the timeline of a log with its incidents."""
    served, names = service(facts.brokers), Names(facts)
    events = [
        *incidents.of_controllers(reigns, served),
        *incidents.of_brokers(served),
        *incidents.of_leaderless(troubled, names),
        *incidents.of_hold_ups(waited.hold_ups),
        *incidents.of_findings(findings),
    ]
    sessions, total = incidents.find_sessions(events, axis, troubled)
    times = [(each.begins_ms - incidents.BEFORE_MS, each.begins_ms) for each in sessions]
    planned = incidents.changes_on_purpose(log, facts, times, origin)
    lanes, brokers_total = lanes_of(reigns, facts.brokers, waited.hold_ups, axis)
    return Timeline(
        axis=axis,
        lanes=lanes,
        brokers_total=brokers_total,
        levels=levels_of(troubled, axis),
        waits=waits_by_step(waited.points.waited, axis),
        incidents=[
            incidents.incident_of(rank, session, events, planned, troubled, names)
            for rank, session in enumerate(sessions, 1)
        ],
        incidents_total=total,
    )


def _header(counted: Census, export: Export) -> Header:
    """Return the report's header: who wrote the log, and its range."""
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
    """Print the report's first line and its path."""
    axis = result.timeline.axis
    console.print(
        f"{number(result.header.records)} records, {period(axis.begins_ms, axis.ends_ms)} UTC"
    )
    console.print(page.verdict(result).text)
    console.print(f"written: {result.output}", soft_wrap=True)
