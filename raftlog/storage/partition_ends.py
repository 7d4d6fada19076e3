"""Where each partition replica of a store begins and ends: what both stores, the real and the
simulated, know in memory and hold callers to.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.errors import CorruptLogError
from raftlog.storage.chunks import scan_log
from raftlog.storage.log_runs import LogRuns
from raftlog.storage.partition_api import PartitionKey, RecoveredPartition


class PartitionEnds:
    """End offsets (exclusive) by replica, and start offsets of those that do not begin at 0.

    One that ends at 0 is not in it: it is as good as new.
    """

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, int] = {}
        self._starts: dict[PartitionKey, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._ends

    def recovered(self, found: Iterable[RecoveredPartition]) -> None:
        """What the store began with."""
        for one in found:
            self.reset(one.key, one.start_offset)
            self._ends[one.key] = one.end_offset

    def records(self) -> int:
        """How many all replicas hold."""
        return sum(self._ends.values()) - sum(self._starts.values())

    def start(self, key: PartitionKey) -> int:
        """Where a replica begins."""
        return self._starts.get(key, 0)

    def appended(self, key: PartitionKey, end_offset: int) -> None:
        """The replica ends here now."""
        self._ends[key] = end_offset

    def truncated(self, key: PartitionKey, end_offset: int) -> None:
        """The replica ends here now; at 0 it is gone."""
        if end_offset:
            self._ends[key] = end_offset
        else:
            self.reset(key, 0)

    def advanced(self, key: PartitionKey, start_offset: int) -> None:
        """The replica begins here now."""
        self._starts[key] = start_offset

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """The replica is empty and begins here; at 0 it is gone."""
        if start_offset:
            self._starts[key] = self._ends[key] = start_offset
        else:
            self._starts.pop(key, None)
            self._ends.pop(key, None)

    def check_append(self, key: PartitionKey, base_offset: int, end_offset: int) -> None:
        """Raises ValueError if [base_offset, end_offset) is not what comes next."""
        end = self._ends.get(key, 0)
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(
                f"append of [{base_offset}, {end_offset}) to {named(key)}, which ends at {end}"
            )

    def check_truncate(self, key: PartitionKey, end_offset: int) -> bool:
        """Whether there is anything to drop.

        Raises ValueError if the replica does not reach that far.
        """
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= end_offset <= end:
            raise ValueError(f"truncate to {end_offset}: {named(key)} is [{start}, {end})")
        return end_offset < end

    def check_advance(self, key: PartitionKey, start_offset: int) -> bool:
        """Whether there is anything to drop. Raises ValueError unless the replica goes on there."""
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= start_offset < end:
            raise ValueError(f"begin at {start_offset}: {named(key)} is [{start}, {end})")
        return start_offset > start

    def check_read(self, key: PartitionKey, offset: int, until: int) -> bool:
        """Whether there is anything to read. Raises ValueError if the replica does not hold it."""
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= offset <= until <= end:
            raise ValueError(f"read of [{offset}, {until}): {named(key)} is [{start}, {end})")
        return offset < until


def named(key: PartitionKey) -> str:
    """The replica in a message."""
    return f"partition {key[1]} of topic {key[0].hex()}"


def damage_in(key: PartitionKey, error: CorruptLogError) -> CorruptLogError:
    """The error with the replica's name."""
    return CorruptLogError(f"{named(key)}: {error}", offset=error.offset)


def scan_partition(
    key: PartitionKey, chunks: Iterable[tuple[int, bytes]], start_offset: int = 0
) -> RecoveredPartition:
    """Check a whole replica.

    Raises CorruptLogError naming it and the first bad offset.
    """
    runs = LogRuns()
    try:
        found = scan_log(chunks, start_offset, seen=runs.append)
    except CorruptLogError as error:
        raise damage_in(key, error) from error
    return RecoveredPartition(key, start_offset, found.end_offset, found.epochs, runs)
