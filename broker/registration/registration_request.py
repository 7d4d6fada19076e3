"""What a broker says of itself when it registers."""

from __future__ import annotations

from broker.settings import BrokerSettings
from raftlog.metadata.entities import Process
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2

REGISTRATION_VERSION = 1
"""1: this broker heartbeats, and reports what it has applied."""
LISTENER_NAME = "PLAINTEXT"


def registration_request(
    settings: BrokerSettings, process: Process, incarnation_id: str, host: str, port: int
) -> controller_pb2.RegisterBrokerRequest:
    """The registration of a process that clients reach at ``host``:``port``."""
    return controller_pb2.RegisterBrokerRequest(
        broker_id=settings.broker_id,
        cluster_id=settings.cluster_id,
        incarnation_id=incarnation_id,
        listeners=[records_pb2.Listener(name=LISTENER_NAME, host=host, port=port)],
        features=[
            records_pb2.FeatureRange(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, low, high in settings.features
        ],
        rack=settings.rack,
        log_dirs=settings.log_dirs,
        previous_broker_epoch=-1,
        registration_version=REGISTRATION_VERSION,
        process=records_pb2.ProcessProof(
            boot_id=process.boot_id,
            directory_id=process.directory_id,
            lock_device=process.lock_device,
            lock_inode=process.lock_inode,
        ),
    )
