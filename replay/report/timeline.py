"""The timeline: the controllers, the brokers, the impaired partitions, the log's growth and the incidents, on one axis."""

from __future__ import annotations

from pyspark.sql import DataFrame

from replay import timelines
from replay.report.axis import choose_axis
from replay.report.events import changes_on_purpose, troubles
from replay.report.incidents import find_incidents
from replay.report.lanes import broker_lanes, controller_spans
from replay.report.model import Timeline
from replay.report.series import growth, impaired


def make_timeline(records: DataFrame, begins_ms: int, ends_ms: int) -> Timeline:
    """The timeline of the records, whose first and last times the caller knows."""
    axis = choose_axis(begins_ms, ends_ms)
    controllers = timelines.controllers(records).cache()
    brokers = timelines.brokers(records).cache()
    partitions = timelines.partitions(records).cache()
    # What happened at one moment is one row: few, and asked for twice.
    happened = troubles(controllers, brokers, partitions).cache()
    try:
        reigns, failovers = controller_spans(controllers, axis)
        lanes, brokers_total = broker_lanes(brokers, axis)
        incidents, incidents_total = find_incidents(happened, changes_on_purpose(records), axis)
        return Timeline(
            axis=axis,
            controllers=reigns,
            failovers=failovers,
            brokers=lanes,
            brokers_total=brokers_total,
            levels=impaired(partitions, axis),
            growth=growth(records, axis),
            incidents=incidents,
            incidents_total=incidents_total,
        )
    finally:
        for frame in (controllers, brokers, partitions, happened):
            frame.unpersist()
