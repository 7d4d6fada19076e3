"""LEVEL_LOWERED beside what the controller says against a downgrade: each thing that a level cannot
read by itself, there and gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_history import LogHistory

from controller.decisions.quorum.features import left_behind
from raftlog.metadata.acls import AclResourceType
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.quorum.core import QuorumDescription
from raftlog.segments.export import export
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.local.runner import compute_local
from replay.request import JobRequest

Puts = Callable[[LogHistory], int]
"""Puts something there; returns the offset of its record."""


def client(log: LogHistory, principal: str = "") -> int:
    return log.append(pb.OpenClientRecord(name="it", principal=principal))


def voters(log: LogHistory, endpoint: str) -> int:
    entry = pb.VoterEntry(voter_id=1, voter_directory_id="d", endpoint=endpoint)
    return log.append(pb.VotersRecord(voters=[entry]), control=True)


def hostname(log: LogHistory, broker_id: int | None, **named: Any) -> int:
    return log.append(pb.HostnameRecord(hostname="host-1", broker_id=broker_id, **named))


def cursor(log: LogHistory, end_offset: int | None) -> int:
    return log.append(pb.ExportCursorRecord(name="nightly", end_offset=end_offset))


def close(log: LogHistory) -> int:
    (id_,) = log.draft.snapshot().clients
    return log.append(pb.CloseClientRecord(client_id=id_, reason="closed"))


def entry(log: LogHistory, resource_type: int = AclResourceType.TOPIC) -> int:
    entry = pb.AccessControlEntryRecord(
        id=b"e" * 16, principal="User:alice", resource_type=resource_type
    )
    return log.append(entry)


def revoke(log: LogHistory) -> int:
    (id_,) = log.draft.snapshot().leases
    return log.append(pb.RemoveLeaseRecord(lease_id=id_, reason="revoked"))


THINGS: dict[str, tuple[int, Puts, Puts | None]] = {
    "the voter set": (2, lambda log: voters(log, "h:1"), None),
    "open clients": (2, client, close),
    "mapped hostnames": (
        3, lambda log: hostname(log, 1, reason="set by hand"), lambda log: hostname(log, None)
    ),
    "export cursors": (4, lambda log: cursor(log, 1), lambda log: cursor(log, None)),
    "access control entries": (
        7, entry, lambda log: log.append(pb.RemoveAccessControlEntryRecord(id=b"e" * 16))
    ),
    "clients of a principal": (7, lambda log: client(log, "User:alice"), close),
    "access control entries of keys": (
        8,
        lambda log: entry(log, AclResourceType.KEY_VALUE),
        lambda log: log.append(pb.RemoveAccessControlEntryRecord(id=b"e" * 16)),
    ),
    "keys": (
        8,
        lambda log: log.append(pb.KeyValueRecord(key="a", value=b"")),
        lambda log: log.append(pb.KeyValueRecord(key="a")),
    ),
    "leases": (8, lambda log: log.append(pb.LeaseRecord(name="l", ttl_ms=1000)), revoke),
    "voters with several": (
        7, lambda log: voters(log, "A://h:1,B://h:2"), lambda log: voters(log, "h:1")
    ),
}  # fmt: skip
"""What it is called -> the first level that can read it, how it comes, and how it goes."""


def lower(log: LogHistory, level: int) -> int:
    return log.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=level))


def found_in(log: LogHistory, directory: Path) -> list[tuple[list[int], str]]:
    export(log, directory)
    asked = JobRequest(job="audit", export=str(directory), rules=("LEVEL_LOWERED",))
    return [(each.offsets, each.found) for each in compute_local(asked).findings]


def objections(log: LogHistory, level: int) -> list[str]:
    whole_log = QuorumDescription("leader", 1, 1, 1, 0, 9, 9, 9, 0, (), ())
    return list(left_behind(log.draft.snapshot(), whole_log, level))


@pytest.mark.parametrize("thing", THINGS)
def test_what_the_lower_level_cannot_read_is_found_while_it_is_there(
    thing: str, tmp_path: Path
) -> None:
    level, put, take = THINGS[thing]
    log = LogHistory(metadata_version=LATEST_METADATA_VERSION)
    # Brokers come with hostnames of their own.
    for name in log.draft.snapshot().hostnames:
        log.append(pb.HostnameRecord(hostname=name))
    at = put(log)
    lower(log, level)
    lower(log, LATEST_METADATA_VERSION)
    assert objections(log, level - 1)
    assert objections(log, level) == []
    found = [(lower(log, level - 1), at)]
    lower(log, LATEST_METADATA_VERSION)
    if take is not None:
        take(log)
        lower(log, level - 1)
    results = found_in(log, tmp_path)
    assert [tuple(offsets) for offsets, _ in results] == found
    assert f"level {level - 1}, with {thing}" in results[0][1]


def test_who_lowers_it_in_several_steps_is_found_where_each_thing_becomes_unreadable(
    tmp_path: Path,
) -> None:
    """Lossless until then, also where cursors have moved in between."""
    log = LogHistory(metadata_version=LATEST_METADATA_VERSION)
    cursor(log, 1)
    lower(log, 5)
    moved = cursor(log, 2)
    lower(log, 4)
    third = lower(log, 3)
    second = lower(log, 2)
    results = found_in(log, tmp_path)
    assert [offsets[0] for offsets, _ in results] == [third, second]
    assert results[0] == ([third, moved], "level 3, with export cursors: 1, the first is nightly")
    assert results[1][1].startswith("level 2, with mapped hostnames: 2, the first is host-0; ")
