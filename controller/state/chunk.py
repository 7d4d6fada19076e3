"""One turn's decisions on their way into the log: encoded once, proposed as one chunk.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog import batch
from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.voters_log import from_entries
from raftlog.voter import VotersAt
from raftlog.wire.common.v1 import common_pb2

MAX_SHARED_RECORDS = 512


class Chunk(NamedTuple):
    """Whole batches back to back."""

    data: bytes
    base_offset: int
    voters: tuple[VotersAt, ...]
    """The voter sets in it."""


class ChunkBuilder:
    """Collects decisions until ``cut``.

    Each becomes a batch of its own, which is what makes it atomic.

    But for one case: config writes of one record, next to each other and of one principal, share a
    batch, as they would share nothing but its header, which costs more than they do. A write with a
    sequence number has its own: its result is found by it. A VotersRecord comes alone, in a control
    batch.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._frames: list[bytes] = []
        self._base_offset = -1
        self._shared: list[Record] = []
        self._shared_principal = ""
        self._shared_base = -1
        self._timestamp_ms = 0
        self._voters: list[VotersAt] = []

    def add(
        self,
        records: list[Record],
        base_offset: int,
        client: common_pb2.ClientIdentity,
        timestamp_ms: int,
    ) -> None:
        """Take the records of a decision; they follow those taken before."""
        if self._base_offset < 0:
            self._base_offset = base_offset
        self._timestamp_ms = timestamp_ms
        sequence = client.sequence
        if len(records) == 1 and records[0].type == RecordType.CONFIG and not sequence:
            principal = client.principal
            if principal != self._shared_principal or len(self._shared) >= MAX_SHARED_RECORDS:
                self._end_shared()
            if not self._shared:
                self._shared_principal, self._shared_base = principal, base_offset
            self._shared.append(records[0])
            return
        self._end_shared()
        control = records[0].type == RecordType.VOTERS
        if control:
            self._voters.append(VotersAt(base_offset, from_entries(records[0].message.voters)))
        self._frames.append(
            batch.encode(
                records,
                base_offset=base_offset,
                epoch=self._epoch,
                timestamp_ms=timestamp_ms,
                principal=client.principal,
                client_id=client.client_id,
                sequence=sequence,
                all_below_done=client.all_below_done,
                control=control,
            )
        )

    def _end_shared(self) -> None:
        if self._shared:
            shared, self._shared = self._shared, []
            self._frames.append(
                batch.encode(
                    shared,
                    base_offset=self._shared_base,
                    epoch=self._epoch,
                    timestamp_ms=self._timestamp_ms,
                    principal=self._shared_principal,
                )
            )

    def cut(self) -> Chunk | None:
        """All that was added since the last cut; None: nothing."""
        self._end_shared()
        if not self._frames:
            return None
        chunk = Chunk(b"".join(self._frames), self._base_offset, tuple(self._voters))
        self._frames, self._base_offset, self._voters = [], -1, []
        return chunk
