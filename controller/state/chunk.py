"""One turn's decisions on their way into the log: encoded once, proposed as one chunk.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raftlog import batch
from raftlog.config_writes import codec
from raftlog.config_writes.messages import ConfigWrites
from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.voters_log import from_entries
from raftlog.principals import ANONYMOUS_PRINCIPAL
from raftlog.voter import VotersAt
from raftlog.wire.common.v1 import common_pb2

MAX_SHARED_RECORDS = 512
_NOBODY = common_pb2.ClientIdentity()


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
        self._shared: list[bytes] = []
        """Records that share a batch, encoded."""
        self._shared_count = 0
        self._shared_principal = ""
        self._shared_base = -1
        self._timestamp_ms = 0
        self._voters: list[VotersAt] = []

    def add(
        self,
        records: list[Record],
        base_offset: int,
        client: common_pb2.ClientIdentity | None,
        timestamp_ms: int,
    ) -> None:
        """Take the records of a decision; they follow those taken before.

        ``client``: the author; None: the controller itself, or a node.
        """
        if self._base_offset < 0:
            self._base_offset = base_offset
        self._timestamp_ms = timestamp_ms
        principal = "" if client is None else client.principal or ANONYMOUS_PRINCIPAL
        client = client or _NOBODY
        sequence = client.sequence
        if len(records) == 1 and records[0].type == RecordType.CONFIG and not sequence:
            one = records[0]
            self._share(
                (batch.record_head(one.type, one.version, len(one.body)), one.body),
                1,
                base_offset,
                principal,
            )
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
                principal=principal,
                client_id=client.client_id,
                sequence=sequence,
                all_below_done=client.all_below_done,
                control=control,
            )
        )

    def add_configs(self, writes: ConfigWrites, base_offset: int, timestamp_ms: int) -> None:
        """As ``add``, of a group of config writes: those of one record share a batch, too."""
        if self._base_offset < 0:
            self._base_offset = base_offset
        self._timestamp_ms = timestamp_ms
        changes, total = writes.changes, len(writes.changes)
        principal = writes.principal or ANONYMOUS_PRINCIPAL
        if total == len(writes.counts):
            self._share((codec.encoded(changes, 0, total),), total, base_offset, principal)
            return
        begin = 0
        for count in writes.counts:
            end, offset = begin + count, base_offset + begin
            data = codec.encoded(changes, begin, end)
            if count == 1:
                self._share((data,), 1, offset, principal)
            else:
                self._end_shared()
                self._frames.append(
                    batch.encode_framed(
                        (data,),
                        count,
                        base_offset=offset,
                        epoch=self._epoch,
                        timestamp_ms=timestamp_ms,
                        principal=principal,
                    )
                )
            begin = end

    def _share(self, parts: Iterable[bytes], count: int, base_offset: int, principal: str) -> None:
        if principal != self._shared_principal or self._shared_count + count > MAX_SHARED_RECORDS:
            self._end_shared()
        if not self._shared:
            self._shared_principal, self._shared_base = principal, base_offset
        self._shared += parts
        self._shared_count += count

    def _end_shared(self) -> None:
        if self._shared:
            shared, self._shared = self._shared, []
            count, self._shared_count = self._shared_count, 0
            self._frames.append(
                batch.encode_framed(
                    shared,
                    count,
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
