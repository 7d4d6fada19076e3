"""The generated log: every batch is folded as nodes fold it, and encoded as the leader does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, extended
from raftlog.metadata.records import Record

CHUNK_BYTES = 1 << 20
Listener = Callable[[Sequence[Record], int], None]
"""Told of each batch: its records and its base offset."""


class GeneratedLog:
    """The generated log, one epoch after the other. ``draft`` is the state at the end; the clock
    never goes back.
    """

    def __init__(self, seed: int, begin_ms: int, sink: Callable[[bytes], None]) -> None:
        """``sink`` is given chunks of whole batches, in order."""
        self.rng = random.Random(seed)
        self.draft = ImageBuilder(Image())
        self.epoch = 0
        self.timestamp_ms = begin_ms
        self.listeners: list[Listener] = []
        self._sink = sink
        self.log_hash = EMPTY
        """Log hash up to the end, as every controller has it."""
        self._batches: list[bytes] = []
        self._waiting_bytes = 0

    @property
    def end_offset(self) -> int:
        """Offset of the next batch."""
        return self.draft.offset + 1

    def append(
        self,
        records: Sequence[Record],
        at_ms: int,
        *,
        principal: str = "",
        control: bool = False,
        client: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """One batch; nothing if there is no record.

        ``client``: its id, the write's number, and below which number all is done.
        """
        if not records:
            return
        base, at_ms = self.draft.offset + 1, max(at_ms, self.timestamp_ms)
        self.timestamp_ms = at_ms
        client_id, sequence, done = client
        data = batch.encode(
            records,
            base_offset=base,
            epoch=self.epoch,
            timestamp_ms=at_ms,
            control=control,
            principal=principal,
            client_id=client_id,
            sequence=sequence,
            all_below_done=done,
        )
        self.draft.apply_batch(
            list(records),
            base_offset=base,
            epoch=self.epoch,
            timestamp_ms=at_ms,
            client_id=client_id,
            sequence=sequence,
            all_below_done=done,
        )
        for listener in self.listeners:
            listener(records, base)
        self.log_hash = extended(self.log_hash, data)
        self._batches.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over what has come together."""
        if self._batches:
            self._sink(b"".join(self._batches))
        self._batches, self._waiting_bytes = [], 0
