"""The log of one controller epoch as its leader builds it: the committed part, the proposed part,
and the chunk under construction.

No other module changes any of them. An epoch has three stages. *Claim*: ``inherit`` folds the log
that the leader found, inherited tail included, until ``claimed``. *Active*: ``add`` appends each
decision, ``end_chunk`` completes a chunk, ``commit`` follows the high watermark. *Closed*: from
``close`` onwards.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from controller.rules.partition_change import Elections, elections_outside_isr
from controller.visibility.lao import LaoTracker, LaoView
from raftlog import batch
from raftlog.config_writes import records as config_records
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import ConfigWrites
from raftlog.endpoint import VotersAt
from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata.control_records import from_entries
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image, ImageView
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.metadata.records import Record, RecordType
from raftlog.wire.common.v1 import common_pb2

MAX_SHARED_RECORDS = 512
_NOBODY = common_pb2.ClientIdentity()


class Chunk(NamedTuple):
    """Whole batches back to back, as one unit of the log."""

    data: bytes
    base_offset: int
    voters: tuple[VotersAt, ...]


class ChunkBuilder:
    """Collects decisions into a chunk until ``end``.

    Each decision becomes a batch of its own, and is therefore atomic. One exception: adjacent
    config writes of one record each by the same principal share a batch, as a batch header is
    larger than such a write. A write with a sequence number has its own batch, which identifies its
    result. A VotersRecord has its own control batch.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._frames: list[bytes] = []
        self._base_offset = -1
        self._shared: list[bytes] = []
        """Encoded records of the shared batch."""
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
        """Append the records of a decision.

        ``client``: the author, or None for the controller itself or another node.
        """
        self._begin(base_offset, timestamp_ms)
        principal = "" if client is None else client.principal or ANONYMOUS_PRINCIPAL
        client = client or _NOBODY
        sequence = client.sequence
        if len(records) == 1 and records[0].type == RecordType.CONFIG and not sequence:
            one = records[0]
            head = batch.record_head(one.type, one.version, len(one.body))
            self._share((head, one.body), 1, base_offset, principal)
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

    def add_group(self, writes: ConfigWrites, base_offset: int, timestamp_ms: int) -> None:
        """Append a group of config writes; those with one record each share a batch."""
        self._begin(base_offset, timestamp_ms)
        changes, total = writes.changes, len(writes.changes)
        principal = writes.principal or ANONYMOUS_PRINCIPAL
        if total == len(writes.counts):
            self._share((config_records.encoded(changes, 0, total),), total, base_offset, principal)
            return
        begin = 0
        for count in writes.counts:
            end, offset = begin + count, base_offset + begin
            data = config_records.encoded(changes, begin, end)
            if count > 1:
                # Atomic, so it has a batch to itself.
                self._end_shared()
            self._share((data,), count, offset, principal)
            if count > 1:
                self._end_shared()
            begin = end

    def _begin(self, base_offset: int, timestamp_ms: int) -> None:
        if self._base_offset < 0:
            self._base_offset = base_offset
        self._timestamp_ms = timestamp_ms

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

    def end(self) -> Chunk | None:
        """Return everything added since the last chunk, or None if nothing was."""
        self._end_shared()
        if not self._frames:
            return None
        chunk = Chunk(b"".join(self._frames), self._base_offset, tuple(self._voters))
        self._frames, self._base_offset, self._voters = [], -1, []
        return chunk


LaoReport = Callable[[int, int, int, int, int], None]
"""``LaoTracker.report``: broker id, broker epoch, controller epoch, applied offset, known LAO."""


class LogView(Protocol):
    """Read-only view of the epoch's whole log, for decisions."""

    @property
    def epoch(self) -> int:
        """The controller epoch."""

    @property
    def epoch_start_offset(self) -> int:
        """Offset of the first record of this epoch (inclusive)."""

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""

    @property
    def committed(self) -> Image:
        """The newest image known to be committed; answers show this one."""

    @property
    def log_hash(self) -> LogHash:
        """Hash of the log up to ``committed``."""

    @property
    def pending(self) -> ImageView:
        """The image of the whole local log and everything added; decisions validate against it."""

    @property
    def pending_but_configs(self) -> ImageView:
        """As ``pending``, but the last config writes may be missing."""

    @property
    def lao(self) -> LaoView:
        """The LAO tracker."""

    @property
    def elections(self) -> Elections:
        """Numbers of elections from outside ISRs that this epoch has decided."""


class EpochLog:
    """Owner of one epoch's pending image, committed image and LAO.

    Other modules hold this object and read through it; no alias of ``pending`` outlives a function
    call.
    """

    def __init__(
        self, epoch: int, epoch_start_offset: int, committed: Image, log_hash: LogHash
    ) -> None:
        """``committed``: the node's committed image. ``log_hash``: hash of the log up to it. The
        log above is inherited next.
        """
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.committed = committed
        self.log_hash = log_hash
        self._pending = ImageBuilder(committed)
        self.pending_but_configs: ImageView = self._pending
        """As ``pending``, but the last config writes may be missing: none of them affects another
        decision.
        """
        self._unfolded: list[tuple[list[Change], int, int]] = []
        """Config writes added since the last fold, in order: changes, base offset, timestamp in ms.
        """
        self.end_offset = committed.offset + 1
        """Offset of the next record."""
        self._lao = LaoTracker(epoch, epoch_start_offset)
        self._lao.seed(committed)
        self.lao: LaoView = self._lao
        """The LAO tracker, read-only."""
        self.elections = Elections()
        self.report: LaoReport = self._lao.report
        """Processes a broker's report."""
        self._chunk = ChunkBuilder(epoch)
        self._proposed: deque[tuple[int, Image, bytes]] = deque()
        """End offset, image and bytes of each proposed chunk; at commit the image is reused, so the
        chunk need not be folded again. The first may be the inherited tail, whose bytes are not
        kept (empty).
        """
        self._unfolded_chunk: Chunk | None = None
        """The last chunk that was ended, while its groups are not folded."""
        self._inherited_bytes = 0
        self._inherited_hash = log_hash
        """Hash of the log up to the end of the inherited tail."""

    @property
    def pending(self) -> ImageView:
        """See ``LogView``."""
        if self._unfolded:
            self.fold()
        return self._pending

    @property
    def unfolded(self) -> bool:
        """True while some of the added groups are not folded."""
        return bool(self._unfolded)

    @property
    def uncommitted_chunks(self) -> int:
        """Number of proposed, uncommitted chunks; the inherited tail counts as one."""
        return len(self._proposed) + (self._unfolded_chunk is not None)

    @property
    def only_inherited(self) -> bool:
        """True while the inherited tail is uncommitted and no chunk was ended after it."""
        proposed = self._proposed
        return len(proposed) == 1 and not proposed[0][2] and self._unfolded_chunk is None

    # --- claim -----------------------------------------------------------------------------------

    def inherit(self, chunk: bytes) -> None:
        """Fold the next part of the log that the leader found.

        Raises FoldError or UnknownRecordError.
        """
        pending = self._pending
        self._inherited_bytes += len(chunk)
        self._inherited_hash = extended(self._inherited_hash, chunk)
        for header in batch.headers(chunk, verify=False):
            bodies = list(batch.bodies(chunk, header))
            pending.apply_bodies(header, bodies)
            self._lao.inherited(bodies, header.base_offset)
        self.end_offset = pending.offset + 1

    def claimed(self) -> None:
        """End the claim: the whole log is inherited, including this epoch's first record."""
        self._keep_image(self.end_offset, b"")

    # --- active ----------------------------------------------------------------------------------

    def add(
        self,
        records: list[Record] | ConfigWrites,
        client: common_pb2.ClientIdentity | None,
        timestamp_ms: int,
    ) -> int:
        """Append a decision, which the next decision sees, and return the offset of its first
        record.

        Raises FoldError. ``client``: the author; None for the controller itself, for another node,
        and for a group, which names its author. A group is folded only when its configs are read,
        or by ``fold``: its bytes can be sent before that.
        """
        base_offset = self.end_offset
        if isinstance(records, ConfigWrites):
            count = len(records.changes)
            self.end_offset = base_offset + count
            if self._unfolded_chunk is not None:
                self.fold()
            self._unfolded.append((records.changes, base_offset, timestamp_ms))
            self._chunk.add_group(records, base_offset, timestamp_ms)
            self._lao.passed(count, base_offset)
            return base_offset
        self.fold()
        changes = [one for one in records if one.type == RecordType.PARTITION_CHANGE]
        if changes:
            found = elections_outside_isr(self._pending, changes)
            self.elections = Elections(*map(sum, zip(self.elections, found, strict=True)))
        self.end_offset = base_offset + len(records)
        numbered = client if client is not None and client.sequence else _NOBODY
        self._pending.apply_batch(
            records,
            base_offset=base_offset,
            epoch=self.epoch,
            timestamp_ms=timestamp_ms,
            client_id=numbered.client_id,
            sequence=numbered.sequence,
            all_below_done=numbered.all_below_done,
        )
        self._chunk.add(records, base_offset, client, timestamp_ms)
        self._lao.proposed(records, base_offset)
        return base_offset

    def end_chunk(self) -> Chunk | None:
        """Return everything added since the last chunk, for the proposal, or None if nothing was
        added.

        The chunk ends at ``end_offset``.
        """
        chunk = self._chunk.end()
        if chunk is None:
            return None
        if self._unfolded:
            self._unfolded_chunk = chunk
        else:
            self._keep_image(self.end_offset, chunk.data)
        return chunk

    def fold(self) -> None:
        """Fold the groups added since the last fold."""
        pending, unfolded = self._pending, self._unfolded
        for changes, base_offset, timestamp_ms in unfolded:
            pending.apply_configs(
                changes, base_offset=base_offset, epoch=self.epoch, timestamp_ms=timestamp_ms
            )
        unfolded.clear()
        chunk, self._unfolded_chunk = self._unfolded_chunk, None
        if chunk is not None:
            self._keep_image(pending.offset + 1, chunk.data)

    def commit(self, high_watermark: int) -> int | None:
        """Record that everything below ``high_watermark`` is committed.

        Returns the size in bytes of the log between the previous committed image and the new one,
        or None if the image has not changed.
        """
        if self._unfolded_chunk is not None:
            self.fold()
        proposed, total_bytes = self._proposed, None
        while proposed and proposed[0][0] <= high_watermark:
            _, self.committed, data = proposed.popleft()
            if data:
                self.log_hash = extended(self.log_hash, data)
                size = len(data)
            else:
                self.log_hash, size = self._inherited_hash, self._inherited_bytes
            total_bytes = (total_bytes or 0) + size
        self._lao.committed(high_watermark)
        return total_bytes

    # --- closed ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the pending image and every uncommitted image."""
        self._proposed.clear()
        self._unfolded.clear()
        self._unfolded_chunk = None
        self._pending.abandon()

    def _keep_image(self, end_offset: int, data: bytes) -> None:
        self._proposed.append((end_offset, self._pending.snapshot(), data))
