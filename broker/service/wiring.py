"""The wiring of the parts of a broker that have parts of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker.metadata.read_gate import ReadGate
from broker.metadata.read_lease import ReadLease
from broker.metadata.view import View
from broker.partition.events import BrokerStatusChanged
from broker.partition.host import PartitionSettings
from broker.partition.manager import Partitions
from broker.replication.data_plane import DataPlane
from broker.replication.tracer import ReplicasTracer
from broker.service.api_versions import ApiVersions
from broker.service.requests import Pending, RequestServer
from broker.settings import BrokerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import FatalError
from raftlog.node.observability.figures import RequestFigures
from raftlog.node.security.client_rules import ClientRules
from raftlog.node.storage.partition_api import PartitionStore, RecoveredPartition
from raftlog.transport.api import Transport
from raftlog.wire.broker.v1 import broker_pb2


def make_data_plane(
    settings: BrokerSettings,
    transport: Transport,
    store: PartitionStore,
    controllers: ControllerClient,
    *,
    broker_status: Callable[[], BrokerStatusChanged],
    time_ms: Callable[[], int],
    failed: Callable[[FatalError], None],
    tracer: ReplicasTracer | None = None,
) -> DataPlane:
    """Make the data plane of one broker over its store; ``recover`` is called next.

    It takes ownership of ``controllers``.
    """
    given = settings.partitions or PartitionSettings(settings.broker_id, settings.cluster_id)
    of_partitions = replace(given, broker_id=settings.broker_id, cluster_id=settings.cluster_id)

    def make_replicas(found: Sequence[RecoveredPartition], now: float) -> Partitions:
        return Partitions(of_partitions, found, now)

    return DataPlane(
        settings.replication,
        transport,
        store,
        controllers,
        cluster_id=settings.cluster_id,
        make_replicas=make_replicas,
        broker_status=broker_status,
        time_ms=time_ms,
        failed=failed,
        tracer=tracer,
    )


def make_request_server(
    settings: BrokerSettings,
    view: View,
    lease: ReadLease,
    writes: ControllerClient,
    data: DataPlane | None,
    *,
    why_fenced: Callable[[], str],
    describe: Callable[[], broker_pb2.DescribeBrokerResponse],
    stopwatch: Callable[[], float] | None,
    client_rules: ClientRules | None,
    figures: RequestFigures | None = None,
) -> RequestServer:
    """Make the server for the clients of one broker, with a read gate of its own."""
    gate: ReadGate[Pending] = ReadGate(
        view,
        lease,
        max_parked=settings.max_parked_reads,
        default_timeout_ms=settings.request_timeout_ms,
        max_timeout_ms=settings.request_timeout_max_ms,
    )
    return RequestServer(
        view,
        gate,
        writes,
        cluster_id=settings.cluster_id,
        request_timeout_ms=settings.request_timeout_ms,
        why_fenced=why_fenced,
        describe=describe,
        versions=ApiVersions(view, settings.features),
        data=data,
        request_timeout_max_ms=settings.request_timeout_max_ms,
        stopwatch=stopwatch,
        client_rules=client_rules,
        figures=figures,
    )
