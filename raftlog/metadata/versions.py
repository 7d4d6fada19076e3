"""The levels of the feature ``metadata.version``: what may stand in the log, and what this build
knows.

A level is raised by UpdateFeatures only when every voter and every broker knows it (KIP-584); what
a level brings is not used below it, so that until then each node can go back to the build before.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METADATA_VERSION = "metadata.version"
"""The feature's name."""
LAO_VERSION = "lao.version"
"""1: brokers report what they have applied, and LAO is made of it."""
BROKER_HEARTBEAT_VERSION = "broker.heartbeat.version"
"""1: brokers heartbeat, are fenced for silence, and fence themselves (KIP-343).

See :func:`heartbeats_in_force`.
"""
MIN_METADATA_VERSION = 1
"""The lowest level this build can work at."""
LATEST_METADATA_VERSION = 8
"""The highest level this build knows.

2: snapshots and the log start, voter sets in the log, exactly-once clients. 3: hostnames. 4: export
cursors. 5: leader epochs that are raised by more than one, after a restore or an unsafe recovery.
6: the causes of brokers' changes and of hosts' mappings, beside their words. 7: access control
entries, clients that belong to who has opened them, and several listeners of a voter. 8: the log
hash, keys of the key-value store and leases, partitions that begin above offset 0.
"""

_SNAPSHOTS = 2
_VOTERS = 2
_CLIENTS = 2
_HOSTNAMES = 3
_REPLICA_EPOCHS = 3
_EXPORT_CURSORS = 4
_LEADER_EPOCH_RANGES = 5
ACLS = 7
"""The level from which on access control entries may be written."""
_VOTER_LISTENERS = 7
_SKETCHES = 8
_VOTE_IN_PLACE = 8
_RETENTION = 8
KEY_VALUES = 8
"""The level from which on there are keys of the key-value store, and leases."""
LOG_HASH = 8
"""The level from which on nodes say the hash of the log's bytes, and the log itself does."""
_HEARTBEAT_LEVELS = 3
STRICT_READS = 3
"""The level from which on there are leases for strict reads."""

Features = Mapping[str, int] | Any
"""Feature name -> finalized level: ``features`` of an image or of a draft."""


def metadata_version(features: Features) -> int:
    """The finalized level; MIN_METADATA_VERSION while none was written."""
    level: int = features.get(METADATA_VERSION, MIN_METADATA_VERSION)
    return level


def supports_snapshots(features: Features) -> bool:
    """Whether snapshots may be taken and the log start may move."""
    return metadata_version(features) >= _SNAPSHOTS


def supports_voters(features: Features) -> bool:
    """Whether VotersRecords may be written."""
    return metadata_version(features) >= _VOTERS


def supports_clients(features: Features) -> bool:
    """Whether OpenClientRecord and CloseClientRecord may be written, and writes may be numbered."""
    return metadata_version(features) >= _CLIENTS


def supports_hostnames(features: Features) -> bool:
    """Whether HostnameRecords may be written (KIP-426)."""
    return metadata_version(features) >= _HOSTNAMES


def supports_heartbeat_levels(features: Features) -> bool:
    """Whether ``broker.heartbeat.version`` may be finalized: builds before would refuse their own
    brokers under it.
    """
    return metadata_version(features) >= _HEARTBEAT_LEVELS


def heartbeats_in_force(features: Features) -> bool:
    """Whether brokers heartbeat, and are fenced for silence: always below metadata.version 3, which
    did not know otherwise.

    LAO rests on what brokers report, so ``lao.version`` 1 implies it: a log that was raised from a
    level before goes on as it was.
    """
    if features.get(BROKER_HEARTBEAT_VERSION, 0) >= 1 or features.get(LAO_VERSION, 0) >= 1:
        return True
    return not supports_heartbeat_levels(features)


def supports_strict_reads(features: Features) -> bool:
    """Whether leases for strict reads may be given: below, a controller of the build before may
    take over, which knows of none.
    """
    return metadata_version(features) >= STRICT_READS


def supports_replica_epochs(features: Features) -> bool:
    """Whether every broker names its epoch in fetches, and every leader those of an ISR it proposes
    (KIP-903): -1 is no epoch then.
    """
    return metadata_version(features) >= _REPLICA_EPOCHS


def supports_export_cursors(features: Features) -> bool:
    """Whether ExportCursorRecords may be written."""
    return metadata_version(features) >= _EXPORT_CURSORS


def supports_leader_epoch_ranges(features: Features) -> bool:
    """Whether a PartitionChangeRecord may say the leader epoch: builds before would count on from
    the old one.
    """
    return metadata_version(features) >= _LEADER_EPOCH_RANGES


def supports_acls(features: Features) -> bool:
    """Whether access control entries may be written, and the owner of a client."""
    return metadata_version(features) >= ACLS


def supports_voter_listeners(features: Features) -> bool:
    """Whether the voter set may name several listeners of a voter: builds before could not dial
    it.
    """
    return metadata_version(features) >= _VOTER_LISTENERS


def supports_log_hash(features: Features) -> bool:
    """Whether progress records and snapshots may name the hash of the log's bytes."""
    return metadata_version(features) >= LOG_HASH


def supports_visibility_sketches(features: Features) -> bool:
    """Whether progress records may say how long records took until all brokers had them."""
    return metadata_version(features) >= _SKETCHES


def supports_vote_in_place(features: Features) -> bool:
    """Whether a controller may keep its vote in a form that builds before take for damage."""
    return metadata_version(features) >= _VOTE_IN_PLACE


def supports_retention(features: Features) -> bool:
    """Whether partitions may begin above offset 0: builds before take that for damage."""
    return metadata_version(features) >= _RETENTION


def supports_key_values(features: Features) -> bool:
    """Whether KeyValueRecords, LeaseRecords and RemoveLeaseRecords may be written."""
    return metadata_version(features) >= KEY_VALUES
