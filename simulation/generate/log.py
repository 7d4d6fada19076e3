"""The generated log with its progress records; batches are folded and encoded as by nodes."""

import math
import random
from collections.abc import Callable, Sequence

from controller.visibility.progress import ProgressPolicy
from raftlog import batch
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, extended
from raftlog.metadata.records import Record, record

CHUNK_BYTES = 1 << 20
INTERVAL_MS = 1_000
APPLIED_AFTER_MS = 4
"""Time from a commit until all brokers that do not stall have applied the record, in ms."""
_STRAGGLERS = 0.05
_STRAGGLES_RECORDS = 5
Applied = tuple[int, int, int]
Listener = Callable[[Sequence[Record], int], None]


class GeneratedLog:
    """The generated log. ``draft``: the state at its end; the clock never goes back."""

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
        """Append one batch, if not empty. ``client``: id, write number, all_below_done."""
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
        if self._batches:
            self._sink(b"".join(self._batches))
        self._batches, self._waiting_bytes = [], 0


class Observation:
    """LAO as a controller knows it. Its policy, here in ms, decides when it is recorded."""

    def __init__(self, log: GeneratedLog, broker_ids: Sequence[int]) -> None:
        self._log, self._broker_ids = log, broker_ids
        self._policy = ProgressPolicy(INTERVAL_MS)
        self._known_from_ms = 0
        self._lowest = -1
        self._stalled: dict[int, int] = {}
        self._told: dict[tuple[int, int], int] = {}
        log.listeners.append(self._proposed)

    def _proposed(self, records: Sequence[Record], base_offset: int) -> None:
        self._policy.observe_proposed(records, base_offset)

    def new_epoch(self, known_from_ms: int) -> None:
        """A new controller: it knows nothing until every broker has reported to it."""
        self._policy = ProgressPolicy(INTERVAL_MS)
        self._known_from_ms = known_from_ms

    def stall(self, broker_id: int) -> None:
        self._stalled[broker_id] = self._log.end_offset - 1

    def resume(self, broker_id: int) -> None:
        self._stalled.pop(broker_id, None)

    def advance(self, until_ms: int) -> None:
        """Write the progress records that are due before ``until_ms``."""
        while True:
            applied = self._applied()
            lowest = self._lowest_of(applied)
            due = self._policy.next_due(lowest)
            if due == math.inf:
                return
            at_ms = max(int(due), self._log.timestamp_ms + APPLIED_AFTER_MS, self._known_from_ms)
            if at_ms >= until_ms:
                return
            straggling = self._straggling(applied)
            behind = self._lowest_of(straggling)
            if self._policy.next_due(behind) < math.inf:
                applied, lowest = straggling, behind
            self._write(lowest, applied, at_ms)

    def _applied(self) -> list[Applied]:
        newest, stalled = self._log.end_offset - 1, self._stalled
        found = map(self._log.draft.brokers.get, self._broker_ids)
        return [
            (broker.id, broker.epoch, stalled.get(broker.id, newest))
            for broker in found
            if broker is not None and not broker.fenced
        ]

    def _lowest_of(self, applied: list[Applied]) -> int:
        """Return LAO: never lower than before, and unchanged without members."""
        return max(self._lowest, min((offset for _, _, offset in applied), default=-1))

    def _straggling(self, applied: list[Applied]) -> list[Applied]:
        """Return applied offsets with some brokers slightly behind, not behind LAO or before."""
        rng, told = self._log.rng, self._told
        behind = []
        for broker_id, epoch, offset in applied:
            if rng.random() < _STRAGGLERS:
                least = min(offset, max(self._lowest, told.get((broker_id, epoch), epoch)))
                offset = max(least, offset - rng.randrange(_STRAGGLES_RECORDS))  # noqa: PLW2901
            behind.append((broker_id, epoch, offset))
        return behind

    def _write(self, lowest: int, applied: list[Applied], at_ms: int) -> None:
        message = self._policy.decide(lowest, self._log.end_offset, applied, at_ms)
        assert message is not None
        known = self._log.log_hash
        if known.is_known:
            message.log_hash_begin_offset = known.begin_offset
            message.log_hash_end_offset = known.end_offset
            message.log_hash = known.digest
        self._lowest = lowest
        self._told = {(broker_id, epoch): offset for broker_id, epoch, offset in applied}
        self._log.append([record(message)], at_ms)
        self._policy.proposed(message, at_ms)
