"""Where each partition replica of a store ends: what both stores, the real and the simulated, know
in memory and hold callers to.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.errors import CorruptLogError
from raftlog.storage.chunks import scan_log
from raftlog.storage.partition_api import PartitionKey, RecoveredPartition


class PartitionEnds:
    """End offsets (exclusive) by replica.

    One that holds nothing is not in it: it is as good as new.
    """

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._ends

    def recovered(self, found: Iterable[RecoveredPartition]) -> None:
        """What the store began with."""
        self._ends = {one.key: one.end_offset for one in found}

    def records(self) -> int:
        """How many all replicas hold."""
        return sum(self._ends.values())

    def appended(self, key: PartitionKey, end_offset: int) -> None:
        """The replica ends here now."""
        self._ends[key] = end_offset

    def truncated(self, key: PartitionKey, end_offset: int) -> None:
        """The replica ends here now; at 0 it is gone."""
        if end_offset:
            self._ends[key] = end_offset
        else:
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
        end = self._ends.get(key, 0)
        if not 0 <= end_offset <= end:
            raise ValueError(f"truncate to {end_offset}: {named(key)} is [0, {end})")
        return end_offset < end

    def check_read(self, key: PartitionKey, offset: int, until: int) -> bool:
        """Whether there is anything to read. Raises ValueError if the replica does not hold it."""
        end = self._ends.get(key, 0)
        if not 0 <= offset <= until <= end:
            raise ValueError(f"read of [{offset}, {until}): {named(key)} is [0, {end})")
        return offset < until


def named(key: PartitionKey) -> str:
    """The replica in a message."""
    return f"partition {key[1]} of topic {key[0].hex()}"


def damage_in(key: PartitionKey, error: CorruptLogError) -> CorruptLogError:
    """The error with the replica's name."""
    return CorruptLogError(f"{named(key)}: {error}", offset=error.offset)


def scan_partition(key: PartitionKey, chunks: Iterable[tuple[int, bytes]]) -> RecoveredPartition:
    """Check a whole replica, which begins at 0.

    Raises CorruptLogError naming it and the first bad offset.
    """
    try:
        found = scan_log(chunks, 0)
    except CorruptLogError as error:
        raise damage_in(key, error) from error
    return RecoveredPartition(key, 0, found.end_offset, found.epochs)
