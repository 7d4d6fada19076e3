"""The records that map a host to a broker id or end that, and their cause, as the level of
metadata.version has it.
"""

from __future__ import annotations

from typing import Any, cast

from raftlog.metadata.causes import OLD_HOSTNAME_TEXT_OF, HostnameCause
from raftlog.metadata.entities import Hostname
from raftlog.metadata.hostnames import MAPPING_VERSION
from raftlog.metadata.image import ImageView
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import supports_causes
from raftlog.wire.records.v1 import records_pb2 as pb

_WORDS = {
    HostnameCause.BY_REGISTRATION: "registered",
    HostnameCause.BY_HAND: "set by hand",
    HostnameCause.STALE: "its broker has registered from another host since",
}
"""The causes in words, for people.

Below metadata.version 6 the words decide, so what is written there is the text of old.
"""


def mapping_change(
    view: ImageView, name: str, broker_id: int | None, cause: HostnameCause
) -> Record:
    """Map a host, or delete its mapping (None), with why."""
    if supports_causes(view.features):
        said, reason = int(cause), _WORDS.get(cause, "")
    else:
        said, reason = 0, OLD_HOSTNAME_TEXT_OF.get(cause, "")
    change = pb.HostnameRecord(
        hostname=name,
        version=MAPPING_VERSION,
        broker_id=broker_id,
        reason=reason,
        cause=cast("Any", said),
    )
    return record(change)


def mapping_without_cause(mapping: Hostname) -> Record:
    """What makes the mapping what it would be had its cause been written in words, as programs of
    before the causes read it.
    """
    reason = OLD_HOSTNAME_TEXT_OF.get(mapping.cause, mapping.reason)
    return record(
        pb.HostnameRecord(
            hostname=mapping.name,
            version=mapping.version,
            broker_id=mapping.broker_id,
            reason=reason,
        )
    )
