"""The registration request of a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.settings import BrokerSettings, ClientListener
from raftlog.metadata.entities import Process
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2

REGISTRATION_VERSION = 1
"""1: this broker heartbeats, and reports what it has applied."""
LISTENER_NAME = "PLAINTEXT"
"""Listener name of a broker whose listener has no name."""


def registration_request(
    settings: BrokerSettings, process: Process, incarnation_id: str, bound: Sequence[str]
) -> controller_pb2.RegisterBrokerRequest:
    """Return the registration of a process that listens at ``bound``, in the order of its
    listeners; those without a bound address yet are registered as configured.
    """
    return controller_pb2.RegisterBrokerRequest(
        broker_id=settings.broker_id,
        cluster_id=settings.cluster_id,
        incarnation_id=incarnation_id,
        listeners=list(_listeners(settings, bound)),
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


def _listeners(settings: BrokerSettings, bound: Sequence[str]) -> Iterator[records_pb2.Listener]:
    """Yield all listeners, the one for brokers first: other brokers use the first."""
    of_brokers = ClientListener(
        settings.listener_name or LISTENER_NAME,
        settings.listen,
        settings.advertised_host,
        settings.advertised_port,
    )
    listeners = (of_brokers, *settings.client_listeners)
    known = (*bound, *(one.listen for one in listeners[len(bound) :]))
    for one, address in zip(listeners, known, strict=True):
        host, _, port = address.rpartition(":")
        yield records_pb2.Listener(
            name=one.name, host=one.advertised_host or host, port=one.advertised_port or int(port)
        )
