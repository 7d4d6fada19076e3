"""The timeline: controllers, brokers, impaired partitions, LAO, the log's growth and the incidents,
on one axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from pyspark.sql import DataFrame

from replay import timelines
from replay.jobs.lao import LaoTables
from replay.kernels.finding import Finding
from replay.report.events import changes_on_purpose, short_isrs, troubles
from replay.report.incidents import find_incidents
from replay.report.lags import hold_up_events, holding_spans, waits_by_step
from replay.report.lanes import broker_lanes, controller_spans
from replay.report.model import Axis, Timeline
from replay.report.offences import offence_events
from replay.report.series import growth, impaired
from replay.rows import keeper
from replay.timelines_of import BrokerTimelines


def make_timeline(
    records: DataFrame,
    lives: BrokerTimelines,
    axis: Axis,
    lag: LaoTables,
    offences: Iterable[Finding],
    origin: str = "",
) -> Timeline:
    """The timeline of the records; ``lives``: made of them, ``lag`` and ``offences``: what the jobs
    lao and audit made of them. ``origin``: what kind of cluster wrote them.
    """
    brokers, partitions = lives
    with ExitStack() as keep:
        kept = keeper(keep)
        controllers, short = kept(timelines.controllers(records)), kept(short_isrs(partitions))
        # What happened at one moment is one row: few, and asked for twice.
        happened = kept(
            troubles(controllers, brokers, partitions, short)
            .unionByName(hold_up_events(lag.hold_ups))
            .unionByName(offence_events(records.sparkSession, offences))
        )
        reigns, failovers = controller_spans(controllers, axis)
        lanes, brokers_total = broker_lanes(brokers, holding_spans(lag.hold_ups), axis)
        incidents, incidents_total = find_incidents(
            happened, changes_on_purpose(records, origin), axis
        )
        return Timeline(
            axis=axis,
            controllers=reigns,
            failovers=failovers,
            brokers=lanes,
            brokers_total=brokers_total,
            levels=impaired(partitions, axis),
            waits=waits_by_step(lag.waits, axis),
            growth=growth(records, axis),
            incidents=incidents,
            incidents_total=incidents_total,
        )
