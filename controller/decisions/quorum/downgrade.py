"""Lowering feature levels (KIP-584): what stands against it, and what it means for those who have
to live with it. No refusal names a command that takes anything away: an operator copies it.

A downgrade is lossless or refused, also where the request says that it may be unsafe: what the log
holds beyond the lower level could not be read by the programs that the level is lowered for. What
is lost otherwise is said as a warning.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.metadata import versions
from raftlog.metadata.acls import AclResourceType
from raftlog.metadata.entities import owner_of
from raftlog.metadata.image import Image
from raftlog.quorum.description import QuorumDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc

_SNAPSHOTS_VOTERS_CLIENTS = 2
_HOSTNAMES = 3
_EXPORT_CURSORS = 4
_ACLS = 7
_VOTER_LISTENERS = 7
_KEY_VALUES = 8


def left_behind(image: Image, seen: QuorumDescription, level: int) -> Iterator[str]:
    """What the levels above ``level`` of metadata.version have left where its programs would
    stumble over it, as far as the state tells.

    What was there and is gone leaves no trace: a program of a lower level stops at such records,
    with a clear message.
    """
    cannot = f"programs of metadata.version {level} cannot read that"
    if level < _SNAPSHOTS_VOTERS_CLIENTS:
        if image.voters is not None:
            yield f"the log names the voter set, at offset {image.voters.offset}: {cannot}"
        if len(image.clients):
            yield (
                f"{len(image.clients)} exactly-once clients are open, the first is"
                f" {min(image.clients)}: close them first"
            )
        if seen.log_start_offset > 0:
            yield f"the log begins at {seen.log_start_offset}, behind a snapshot: {cannot}"
    if level < _HOSTNAMES and len(image.hostnames):
        yield (
            f"{len(image.hostnames)} hostnames are mapped to broker ids, the first is"
            f" {min(image.hostnames)!r}: {cannot}; delete those that nothing needs (`raftlog"
            " hostnames list`)"
        )
    if level < _EXPORT_CURSORS and len(image.export_cursors):
        yield (
            f"{len(image.export_cursors)} export cursors are set, the first is"
            f" {min(image.export_cursors)!r}: {cannot}; delete those that no export needs (`raftlog"
            " cursors list`)"
        )
    if level < _ACLS:
        if len(image.acls):
            yield (
                f"{len(image.acls)} access control entries are set: {cannot}; without them nobody"
                " but super users may do anything (`raftlog acls list`)"
            )
        owned = [id_ for id_, client in image.clients.items() if owner_of(client)]
        if owned:
            yield (
                f"{len(owned)} exactly-once clients belong to a principal, the first is"
                f" {min(owned)}: {cannot}; close them first"
            )
    if level < _KEY_VALUES and len(image.key_values):
        yield (
            f"the key-value store has {len(image.key_values)} keys, the first is"
            f" {min(image.key_values)!r}: {cannot}. Programs keep locks, elections and settings"
            " there: look whose they are first (`raftlog kv list`)"
        )
    of_keys = sum(one.resource_type == AclResourceType.KEY_VALUE for one in image.acls.values())
    if _ACLS <= level < _KEY_VALUES and of_keys:
        yield f"{of_keys} access control entries are about keys: {cannot}; remove them"
    if level < _KEY_VALUES and len(image.leases):
        yield (
            f"there are {len(image.leases)} leases, the first is {min(image.leases)}: {cannot};"
            " revoke them, or let them expire"
        )
    named = [] if image.voters is None else image.voters.voters
    if level < _VOTER_LISTENERS and (several := [v.id for v in named if "://" in v.endpoint]):
        yield (
            f"the voter set names several listeners of {several}: {cannot}; leave each of these"
            " nodes one listener, and restart it"
        )


def warnings(image: Image, updates: Iterable[rpc.FeatureUpdate]) -> Iterator[str]:
    """What the accepted updates that lower a level mean, for people."""
    for update in updates:
        current, level = image.features.get(update.name, 0), update.max_version_level
        if level >= current:
            continue
        if update.name == versions.METADATA_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: what came with the levels above is"
                " refused from now on; a log that holds records of them, used up or not, cannot be"
                " read by programs that do not know them"
            )
        elif update.name == versions.LAO_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: the lowest acknowledged offset is"
                " not promised any more"
            )
        elif update.name == versions.BROKER_HEARTBEAT_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: brokers are not fenced for silence"
                " any more, and do not fence themselves"
            )
        else:
            yield f"{update.name} goes from {current} to {level}"
