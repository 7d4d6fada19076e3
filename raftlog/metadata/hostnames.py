"""Hostnames in the image: the broker that runs on each host (KIP-426), so that a new disk in an old
host need not mean a new broker id.
"""

from __future__ import annotations

from raftlog.metadata.causes import HostnameCause
from raftlog.metadata.entities import Broker, Hostname
from raftlog.metadata.image import ImageDraft
from raftlog.metadata.records import UnknownRecordError
from raftlog.wire.records.v1 import records_pb2 as pb

MAPPING_VERSION = 0
"""Form of the mappings that this build writes. Extended forms will have a higher one."""
_CAUSES: frozenset[int] = frozenset(HostnameCause)


def hostname_key(host: str) -> str:
    """Return the key of a host: hostnames differ neither by case nor by the dot at the end."""
    return host.lower().rstrip(".")


def host_of(broker: Broker) -> str:
    """Return the key of a registered broker's host; empty if it has no listener."""
    return hostname_key(broker.listeners[0].host) if broker.listeners else ""


def fold_hostname(image: ImageDraft, message: pb.HostnameRecord, offset: int, epoch: int) -> None:
    """Fold a HostnameRecord.

    Raises KeyError for the deletion of a mapping that does not exist, UnknownRecordError for an
    unknown cause.
    """
    name = message.hostname
    if message.cause not in _CAUSES:
        raise UnknownRecordError(
            f"the cause {message.cause} at offset {offset} is unknown to this build"
        )
    old = image.hostnames.get(name)
    if message.HasField("broker_id"):
        cause = HostnameCause(message.cause)
        new = Hostname(name, message.version, message.broker_id, offset, message.reason, cause)
        image.hostnames[name] = new
    else:
        new = None
        del image.hostnames[name]
    image.replace("hostname", (), old, new)
