"""Logs of partition replicas (I23), kept again from what brokers write, cut and delete.

* Equal base offset and leader epoch mean the same batch, and the same log below it, everywhere and
  forever.
* A replica's log continues at its end, with non-decreasing epochs.
* A process begins with its durable log of whole batches.
"""

from bisect import bisect_left
from typing import Any

from broker.partition import events as ev
from raftlog import batch
from raftlog.node.storage.partition_api import PartitionKey
from simulation.checks.api import BrokerView, Checker, fail, present


def name_of(key: PartitionKey) -> str:
    return f"partition {key[1]} of {key[0].hex()}"


class ReplicaLog:
    """Batches in order, with exclusive ends and a chain for each. Dropped batches stay; ``before``
    stands for unknown ones below ``begin``.
    """

    __slots__ = ("bases", "batches", "before", "begin", "chains", "ends", "epochs")

    def __init__(self, begin: int = 0, before: int | None = None) -> None:
        self.begin = begin
        self.before = hash(("unknown", begin)) if begin and before is None else before or 0
        self.bases: list[int] = []
        self.ends: list[int] = []
        self.epochs: list[int] = []
        self.chains: list[int] = []
        self.batches: list[bytes] = []

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.begin

    def append(self, base: int, end: int, epoch: int, data: bytes, chain: int | None = None) -> int:
        """Append a batch and return its hash chain. ``chain``: the value, if known."""
        if chain is None:
            before = self.chains[-1] if self.chains else self.before
            chain = hash((before, base, end, epoch, _digest(data)))
        self.bases.append(base)
        self.ends.append(end)
        self.epochs.append(epoch)
        self.chains.append(chain)
        self.batches.append(data)
        return chain

    def truncate(self, end: int) -> None:
        kept = bisect_left(self.bases, end)
        for column in (self.bases, self.ends, self.epochs, self.chains, self.batches):
            del column[kept:]

    def index_at(self, end: int) -> int:
        """Return the index of the batch that ends there; -1 if none does, as at offset 0."""
        index = bisect_left(self.ends, end)
        return index if index < len(self.ends) and self.ends[index] == end else -1

    def index_of(self, offset: int) -> int:
        index = bisect_left(self.ends, offset + 1)
        return index if index < len(self.ends) and self.bases[index] <= offset else -1

    def chain_at(self, end: int) -> int | None:
        """Return the chain of all records below ``end``; None if no batch ends there."""
        if end == 0:
            return 0
        if end == self.begin:
            return self.before
        index = self.index_at(end)
        return self.chains[index] if index >= 0 else None


def _digest(data: bytes) -> int:
    """Return the first 8 bytes of a batch, length and checksum, which identify it."""
    return int.from_bytes(data[:8])


class ReplicaLogs(Checker):
    """Checker of I23, and the logs for later checkers."""

    def __init__(self) -> None:
        self.logs: dict[str, dict[PartitionKey, ReplicaLog]] = {}
        """Readable logs of each broker's host that is up."""
        self._chains: dict[tuple[PartitionKey, int, int], tuple[int, int]] = {}
        """(partition, base offset, leader epoch) -> hash chain, and digest of the batch."""
        self._before: dict[tuple[str, PartitionKey, int], int] = {}
        """(disk, partition, log start) -> hash chain of what was dropped below."""
        self.appends = self.truncations = self.deletions = self.starts = self.resets = 0

    def log(self, host: BrokerView, key: PartitionKey) -> ReplicaLog:
        return self.logs.get(host.name, {}).get(key) or ReplicaLog()

    def epoch_at(self, host: BrokerView, key: PartitionKey, offset: int) -> int:
        """Return the leader epoch of a record there; -1 if the log does not have it."""
        log = self.log(host, key)
        index = log.index_of(offset)
        return log.epochs[index] if index >= 0 else -1

    def broker_started(self, host: BrokerView) -> None:
        self.logs[host.name] = {}

    def data_recovered(self, host: BrokerView) -> None:
        disk, logs = present(host.disk), dict[PartitionKey, ReplicaLog]()
        self.logs[host.name] = logs
        for key in sorted(disk.live):
            start = disk.live[key].start
            log = logs[key] = ReplicaLog(start, self._before.get((disk.directory_id, key, start)))
            for _, chunk in disk.live[key].scan(0):
                self._append(host, key, log, chunk, start)

    def data_step(self, host: BrokerView, event: ev.Event, effects: Any, now: float) -> None:
        logs = self.logs[host.name]
        for effect in effects:
            kind = type(effect)
            if kind is ev.Append:
                log = logs.get(effect.key)
                if log is None:
                    log = logs[effect.key] = ReplicaLog()
                self.appends += 1
                self._append(host, effect.key, log, effect.chunk)
                if log.end != effect.end_offset:
                    fail(f"I23: {host.name} appends up to {effect.end_offset}, and it is {log.end}")
            elif kind is ev.Truncate:
                log = logs.get(effect.key)
                if log is not None:
                    self.truncations += 1
                    log.truncate(effect.end_offset)
                    if log.end != effect.end_offset:
                        fail(f"I23: {host.name} cuts {name_of(effect.key)} inside a batch")
            elif kind is ev.AdvanceStart:
                self._start_moves(host, logs[effect.key], effect)
            elif kind is ev.Reset:
                self.resets += 1
                logs[effect.key] = ReplicaLog(effect.start_offset)
            elif kind is ev.Delete:
                self.deletions += logs.pop(effect.key, None) is not None

    def _start_moves(self, host: BrokerView, log: ReplicaLog, effect: ev.AdvanceStart) -> None:
        self.starts += 1
        before = log.chain_at(effect.start_offset)
        if before is None or effect.start_offset >= log.end:
            fail(f"I23: {host.name} moves {name_of(effect.key)} to {effect.start_offset}")
        self._before[present(host.disk).directory_id, effect.key, effect.start_offset] = before

    def _append(
        self, host: BrokerView, key: PartitionKey, log: ReplicaLog, chunk: bytes, start: int = 0
    ) -> None:
        for header in batch.headers(chunk, verify=False):
            base, epoch = header.base_offset, header.epoch
            if base < start:
                continue  # It is of a chunk that reaches over the log start.
            if base != log.end or (log.epochs and epoch < log.epochs[-1]):
                fail(
                    f"I23: {host.name} has {name_of(key)} up to {log.end}, epoch"
                    f" {log.epochs[-1] if log.epochs else None}, and appends at {base}, epoch"
                    f" {epoch}"
                )
            data = chunk[header.position : header.position + header.size]
            # What a log that does not begin at 0 has before is as with those who have all of it.
            known, digest = self._chains.get((key, base, epoch)), _digest(data)
            is_first = known is not None and log.begin > 0 and not log.bases
            chain = log.append(
                base, header.end_offset, epoch, data, known[0] if known and is_first else None
            )
            if self._chains.setdefault((key, base, epoch), (chain, digest)) != (chain, digest):
                fail(f"I23: {name_of(key)} has two logs to {base}, {epoch}; one at {host.name}")
