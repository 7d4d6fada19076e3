"""The voter sets in the bytes of the log (KIP-853): encoded by the leader, decoded by every replica
as it appends them.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog import batch
from raftlog.endpoint import Voter, VotersAt
from raftlog.metadata.records import RecordType, parse
from raftlog.wire.records.v1 import records_pb2 as pb


def to_entries(voters: Iterable[Voter]) -> list[pb.VoterEntry]:
    """Return voters as a record holds them."""
    return [
        pb.VoterEntry(
            voter_id=voter.node_id, voter_directory_id=voter.directory_id, endpoint=voter.endpoint
        )
        for voter in voters
    ]


def from_entries(entries: Iterable[pb.VoterEntry]) -> tuple[Voter, ...]:
    """Return the voters of a record."""
    return tuple(
        Voter(entry.voter_id, entry.endpoint, entry.voter_directory_id) for entry in entries
    )


def voters_in(chunk: bytes, control_at: Iterable[int]) -> tuple[VotersAt, ...]:
    """Return the VotersRecords in a checked chunk, in order.

    ``control_at``: its control batches (``batch.Scan.control_at``).

    Raises UnknownRecordError, CorruptLogError.
    """
    found: list[VotersAt] = []
    for position in control_at:
        header = batch.header_at(chunk, position)
        found.extend(
            VotersAt(header.base_offset, from_entries(parse(data).voters))
            for data in batch.records(chunk, header)
            if data.type == RecordType.VOTERS
        )
    return tuple(found)
