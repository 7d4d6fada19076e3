"""The timeline: controllers, brokers, impaired partitions, LAO, the log's growth and the incidents,
on one axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from replay.churn.growth import Growth
from replay.jobs.lao import Lao
from replay.kernels.facts import Facts
from replay.kernels.finding import Finding
from replay.kernels.intervals import Names
from replay.kernels.passes import Rows
from replay.outages.failovers import Controller
from replay.outages.fencings import service
from replay.report import events
from replay.report.incidents import BEFORE_MS, Rises, find_sessions, incidents_of
from replay.report.lags import holding_spans, of_hold_ups, waits_by_step
from replay.report.lanes import broker_lanes, controller_spans
from replay.report.model import Axis, Timeline
from replay.report.moments import Rise, Troubled
from replay.report.series import growth, impaired


def make_timeline(
    log: Rows,
    facts: Facts,
    names: Names,
    axis: Axis,
    reigns: list[Controller],
    found: tuple[Troubled, Lao, Growth],
    offences: Iterable[Finding],
    origin: str = "",
) -> Timeline:
    """Return the timeline of a log; what was found of its partitions, of LAO and of its growth, and
    what the audit did. ``origin``: what kind of cluster wrote it.
    """
    troubled, lao, grown = found
    happened = [
        *events.of_controllers(reigns),
        *events.of_brokers(service(facts.brokers)),
        *events.of_partitions(troubled, names),
        *of_hold_ups(lao.hold_ups),
        *events.of_findings(offences),
    ]
    rises = Rises(Rise(troubled.leaderless_by), Rise(troubled.short_by))
    sessions, total = find_sessions(happened, axis, rises)
    on_purpose = events.changes_on_purpose(
        log,
        facts,
        [each.begins_ms - BEFORE_MS for each in sessions],
        [each.begins_ms for each in sessions],
        origin,
    )
    short_isrs = partial(events.short_isrs, troubled, names)
    spans, failovers = controller_spans(reigns, axis)
    lanes, brokers_total = broker_lanes(facts.brokers, holding_spans(lao.hold_ups), axis)
    return Timeline(
        axis=axis,
        controllers=spans,
        failovers=failovers,
        brokers=lanes,
        brokers_total=brokers_total,
        levels=impaired(troubled, axis),
        waits=waits_by_step(lao.waited, axis),
        growth=growth(grown, axis),
        incidents=incidents_of(sessions, happened, short_isrs, on_purpose),
        incidents_total=total,
    )
