"""The metrics that a controller and a broker register, collected from stand-ins of the objects they
describe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from prometheus_client.core import Metric

import broker.run
import controller.http_side
from broker.partition.leader import GAUGES
from broker.partition.manager import COUNTS
from raftlog.metadata.image import Image
from raftlog.node.observability.figures import LoopLag, RequestFigures, SnapshotFigures
from raftlog.node.observability.node_metrics import add_mending_metrics
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.node.recovery.mending import MendingState
from raftlog.transport.api import TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2
from reference_pages.markdown import cell, table

_HEAD = """# Metrics

What a node serves at `http://…/metrics` (`http.listener`). Names are Kafka's: the MBean's type, then
the metric, in snake case; names ending in `Count` are in the plural here, and times are in seconds, as is usual for Prometheus. Metrics that Kafka does not have begin with `raftlog_`. Each node also
serves the `process_…` and `python_…` metrics of the Prometheus client.

A histogram has `_bucket`, `_sum` and `_count`. Only the active controller serves the metrics
that depend on heartbeats and partitions: `raftlog_lowest_acknowledged_offset…`, `raftlog_broker_…`, the counts of
offline, imbalanced, reassigning and recovering partitions. Only the leader of the quorum serves
`raftlog_replica_lag_records`.
[Monitoring](../monitoring.md) says which metrics deserve an alert.
"""  # noqa: E501


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for role, families in (
        ("Controllers", of_a_controller()),
        ("Damaged controllers", of_a_damaged_controller()),
        ("Brokers", of_a_broker()),
    ):
        parts.append(
            f"## {role}\n\n{table(('Metric', 'Type', 'Labels', 'Meaning'), map(_row, families))}"
        )
    return "\n".join(parts)


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
    names = getattr(family, "_labelnames", ())
    if family.type == "info":
        names = sorted(family.samples[0].labels)
    labels = ", ".join(f"`{label}`" for label in names)
    return f"`{name}`", family.type, labels, cell(family.documentation)


def of_a_controller() -> Sequence[Metric]:
    """Return a controller's metrics, sorted by name."""
    service = SimpleNamespace(
        image=Image(),
        replica=mock.Mock(
            refusals=mock.Mock(counts={}), commit_latency=None, sync_latency=None, disk_busy_s=0
        ),
        request_figures=RequestFigures(lambda: 0.0),
        queue_depths=dict,
        log_contradiction="",
        snapshots=SimpleNamespace(figures=lambda _: SnapshotFigures(0, 0, 0, 0, 0)),
        node=SimpleNamespace(
            decider=object(),
            space=SimpleNamespace(free_bytes=0, low=False),
            lowest_known_lao=-1,
            now=lambda: 0.0,
        ),
    )
    quorum = quorum_pb2.DescribeQuorumResponse(role="leader", clock_ahead_ms=0)
    brokers = controller_pb2.DescribeBrokersResponse()
    with (
        mock.patch.object(controller.http_side, "describe_quorum", return_value=quorum),
        mock.patch.object(controller.http_side, "known_brokers", return_value=brokers),
    ):
        return _collected(controller.http_side, service)


def of_a_damaged_controller() -> Sequence[Metric]:
    """Return the metrics that a controller has only while its log is being mended, by name."""
    registry = MetricsRegistry(process=False)
    add_mending_metrics(registry, MendingState)
    return sorted(registry.registry.collect(), key=lambda family: family.name)


def of_a_broker() -> Sequence[Metric]:
    """Return a broker's metrics, sorted by name."""
    names = ("PartitionCount", "OfflineReplicaCount", *GAUGES, *COUNTS)
    data = SimpleNamespace(
        recovered=True,
        replicas=SimpleNamespace(counters=lambda: dict.fromkeys(names, 0)),
        unserved=lambda: SimpleNamespace(counts={}),
        figures=mock.MagicMock(produce=None, flush=None),
        space=SimpleNamespace(free_bytes=0, low=False),
    )
    service = SimpleNamespace(
        report=SimpleNamespace(
            describe=partial(broker_pb2.DescribeBrokerResponse, clock_ahead_ms=0),
            log_contradiction="",
        ),
        data=data,
        requests=SimpleNamespace(figures=RequestFigures(lambda: 0.0), queue_depths=dict),
        watches=SimpleNamespace(
            hub=mock.MagicMock(live=0, changes_sent=0, compacted=0, too_slow=0),
        ),
        settings=SimpleNamespace(broker_id=0),
    )
    return _collected(broker.run, service, SimpleNamespace(busy_s=0))


def _collected(run: Any, service: Any, *store: Any) -> Sequence[Metric]:
    """Return all families in the registry of a node with this role, sorted by name, without those
    about its process.
    """
    with mock.patch.object(run, "MetricsRegistry", partial(MetricsRegistry, process=False)):
        loop = asyncio.new_event_loop()
        try:
            registry = run.metrics_registry(
                SimpleNamespace(cluster_id="", node_id=0, directory=Path.cwd(), certificates=()),
                service,
                SimpleNamespace(bounds=Bounds(loop, TransportLimits())),
                None,
                *store,
                {"version": "", "revision": ""},
                LoopLag(),
            )
            return sorted(registry.registry.collect(), key=lambda family: family.name)
        finally:
            loop.close()
