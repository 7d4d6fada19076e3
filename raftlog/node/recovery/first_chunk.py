"""The first records of a log after an event that no quorum voted on: an unsafe recovery, or a
restore from a backup.

The chunk has two control batches: a RecoveryRecord that describes the event, and a VotersRecord
with the new voters.
"""

from __future__ import annotations

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.metadata.control_records import to_entries
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as pb

RECORDS = 2
"""Number of offsets in the chunk."""


def beginning_chunk(
    what: pb.RecoveryRecord,
    voters: tuple[Voter, ...],
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
) -> bytes:
    """Return the chunk. As it is one write, it becomes durable entirely or not at all.

    The same arguments give the same bytes.
    """
    messages = (what, pb.VotersRecord(voters=to_entries(voters)))
    return b"".join(
        batch.encode(
            [record(message).data],
            base_offset=base_offset + at,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            control=True,
        )
        for at, message in enumerate(messages)
    )
