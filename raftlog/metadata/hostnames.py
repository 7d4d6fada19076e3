"""Hostnames in the image: which broker runs on a host (KIP-426), so that a new disk in an old host need not mean a new broker id."""

from __future__ import annotations

from raftlog.metadata.entities import Broker, Hostname
from raftlog.metadata.image import ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb

MAPPING_VERSION = 0
"""The form of a mapping that this build writes. A form with more in it will have a higher one."""

BY_REGISTRATION = "registered"
"""The reason of a mapping that came with a registration; any other was set by hand."""


def hostname_key(host: str) -> str:
    """The name that a host is mapped under: hostnames differ neither by case nor by the dot at the end."""
    return host.lower().rstrip(".")


def host_of(broker: Broker) -> str:
    """Where a broker is registered, as a key; empty if it has no listener."""
    return hostname_key(broker.listeners[0].host) if broker.listeners else ""


def mapping_to_dict(mapping: Hostname) -> dict[str, int]:
    """The mapping as KIP-426 has it."""
    return {"version": mapping.version, "broker.id": mapping.broker_id}


def fold_hostname(image: ImageDraft, message: pb.HostnameRecord, offset: int, epoch: int) -> None:
    """Fold a HostnameRecord. Raises KeyError for the deletion of a mapping that is not there."""
    name = message.hostname
    old = image.hostnames.get(name)
    if message.HasField("broker_id"):
        new = image.hostnames[name] = Hostname(name, message.version, message.broker_id, offset, message.reason)
    else:
        new = None
        del image.hostnames[name]
    image.replace("hostname", (), old, new)
