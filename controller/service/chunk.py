"""One turn's decisions on their way into the log: folded into the pending image at once, encoded
once, proposed as one chunk.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.voters_log import from_entries
from raftlog.voter import VotersAt
from raftlog.wire.common.v1 import common_pb2

MAX_SHARED_RECORDS = 512
_NOBODY = common_pb2.ClientIdentity()


class ChunkBuilder:
    """Collects decisions until ``cut``.

    Each becomes a batch of its own, which is what makes it atomic.

    But for one case: config writes of one record, next to each other and of one principal, share a
    batch, as they would share nothing but its header, which costs more than they do. A write with a
    sequence number has its own: its result is found by it. A VotersRecord comes alone, in a control
    batch.
    """

    def __init__(self, pending: ImageBuilder, epoch: int) -> None:
        self._pending = pending
        self._epoch = epoch
        self._frames: list[bytes] = []
        self._base_offset = -1
        self._shared: list[Record] = []
        self._shared_principal = ""
        self._shared_base = -1
        self._timestamp_ms = 0
        self._voters: list[VotersAt] = []

    def add(
        self, records: list[Record], client: common_pb2.ClientIdentity | None, timestamp_ms: int
    ) -> None:
        """Fold a decision into the pending image and take its records. Raises FoldError."""
        pending = self._pending
        base_offset = pending.offset + 1
        if client is None:
            client = _NOBODY
        sequence = client.sequence
        if sequence:
            pending.apply_batch(
                records,
                base_offset=base_offset,
                epoch=self._epoch,
                timestamp_ms=timestamp_ms,
                client_id=client.client_id,
                sequence=sequence,
                all_below_done=client.all_below_done,
            )
        else:
            pending.apply_batch(
                records, base_offset=base_offset, epoch=self._epoch, timestamp_ms=timestamp_ms
            )
        if self._base_offset < 0:
            self._base_offset = base_offset
        self._timestamp_ms = timestamp_ms
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

    def cut(self) -> tuple[bytes, int, tuple[VotersAt, ...]] | None:
        """The chunk, its base offset and the voter sets in it; it ends where the pending image
        does. None if nothing was added.
        """
        self._end_shared()
        if not self._frames:
            return None
        chunk, base_offset = b"".join(self._frames), self._base_offset
        voters = tuple(self._voters)
        self._frames, self._base_offset, self._voters = [], -1, []
        return chunk, base_offset, voters
