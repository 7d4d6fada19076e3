"""Rules for the start and end of logs, for RocksDB and the simulated stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raftlog.endpoint import VotersAt
from raftlog.errors import CorruptLogError
from raftlog.metadata.control_records import NO_GENERATION, SNAPSHOT, GenerationAt
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.node.storage.chunks import LogScan, scan_log
from raftlog.node.storage.directory import LogState
from raftlog.node.storage.partition_api import LogRuns, PartitionKey, RecoveredPartition


def require_snapshot(
    directory: object, state: LogState, newest: tuple[SnapshotId, SnapshotHeader] | None
) -> None:
    """Raise CorruptLogError if the log begins above 0 and no intact snapshot covers the state
    before it.
    """
    if state.start_offset and (newest is None or newest[0].end_offset < state.start_offset):
        raise CorruptLogError(
            f"the log in {directory} begins at offset {state.start_offset}, but no intact snapshot"
            " covers the state before it: this node's state is lost; format its directory anew and"
            " let it join as a new node",
            offset=state.start_offset,
        )


def require_header(header: SnapshotHeader, cluster_id: str, generation: int) -> None:
    """Raise CorruptLogError if a fetched snapshot belongs to another cluster, or to a generation
    that does not descend from the directory's.
    """
    if header.cluster_id != cluster_id:
        raise CorruptLogError(
            f"the snapshot belongs to cluster {header.cluster_id!r}, but this directory to cluster"
            f" {cluster_id!r}"
        )
    if generation not in (NO_GENERATION, *header.generations):
        raise CorruptLogError(
            f"the snapshot has generation {header.generation}, which does not descend from"
            f" generation {generation} of this directory"
        )


def require_vote(where: object, vote: VoteState, last_epoch: int) -> None:
    """Raise CorruptLogError if the log has an epoch above the vote's; ``where`` is the file of the
    vote.

    Every epoch is durable in the vote before its first record is fetched or written. So the vote
    was replaced with an older one, and the node might vote twice. A replaced vote of the log's last
    epoch cannot be detected.
    """
    if last_epoch > vote.epoch:
        raise CorruptLogError(
            f"{where} is older than the log: its vote is for epoch {vote.epoch}, but the log has"
            f" records of epoch {last_epoch}, so this node might vote twice in one epoch; format"
            " its directory anew and let it join as a new node"
        )


def started_at(state: LogState, snapshot_id: SnapshotId) -> LogState:
    """Return the state of a log that begins at the end of ``snapshot_id``."""
    end = snapshot_id.end_offset
    return replace(
        state,
        start_offset=end,
        start_epoch=snapshot_id.epoch,
        end_offset_at_least=max(state.end_offset_at_least, end),
        end_epoch=-1,
    )


def emptied_at(state: LogState, snapshot_id: SnapshotId) -> LogState:
    """Return the state of a log that is empty after ``snapshot_id``."""
    return replace(
        state,
        start_offset=snapshot_id.end_offset,
        start_epoch=snapshot_id.epoch,
        end_offset_at_least=snapshot_id.end_offset,
        end_epoch=-1,
    )


def log_start_of(state: LogState) -> SnapshotId:
    """Return the id of a snapshot that ends at the start of the log; no valid snapshot ends before
    that.
    """
    return SnapshotId(state.start_offset, state.start_epoch)


def is_part(snapshot_id: SnapshotId, state: LogState, epoch_before_end: int | None) -> bool:
    """Return whether a snapshot belongs to this same log.

    ``epoch_before_end`` is the epoch, in the log, of the last record before the snapshot's end, or
    None.
    """
    if snapshot_id.end_offset == state.start_offset:
        return snapshot_id.epoch == state.start_epoch
    return snapshot_id.epoch == epoch_before_end


def recovered(
    vote: VoteState,
    state: LogState,
    found: LogScan,
    snapshots: tuple[SnapshotId, ...],
    newest: tuple[SnapshotId, SnapshotHeader] | None,
    bound_generation: int,
) -> RecoveredLog:
    """Return the report of a log that was scanned from its start, with its snapshots.

    ``bound_generation`` is the generation in the directory's identity.
    """
    ends_with_snapshot = newest is not None and newest[0].end_offset >= found.end_offset
    return RecoveredLog(
        vote,
        state.start_offset,
        found.end_offset,
        found.epochs,
        (
            newest[1].last_timestamp_ms
            if newest is not None and ends_with_snapshot
            else found.last_timestamp_ms
        ),
        state.start_epoch,
        snapshots,
        known_voters(newest, found.voters),
        _known_generations(newest, found.generations),
        bound_generation,
    )


def _known_generations(
    newest: tuple[SnapshotId, SnapshotHeader] | None, in_log: tuple[GenerationAt, ...]
) -> tuple[GenerationAt, ...]:
    if newest is None:
        return in_log
    snapshot_id, header = newest
    below = (GenerationAt(SNAPSHOT, generation) for generation in header.generations)
    return (*below, *(one for one in in_log if one.offset >= snapshot_id.end_offset))


def known_voters(
    newest: tuple[SnapshotId, SnapshotHeader] | None, in_log: tuple[VotersAt, ...]
) -> tuple[VotersAt, ...]:
    """Return the voter set of the newest snapshot, even if it is empty, and those of the log after
    it.
    """
    if newest is None:
        return in_log
    end, voters = newest[0].end_offset, newest[1].voters
    return (VotersAt(end, voters), *(one for one in in_log if one.offset >= end))


class PartitionEnds:
    """The end offsets (exclusive) of partition replicas, and the start offsets of those that do not
    begin at 0.

    A replica that ends at 0 is left out, as it equals a new one.
    """

    def __init__(self) -> None:
        self._ends: dict[PartitionKey, int] = {}
        self._starts: dict[PartitionKey, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._ends

    def recovered(self, found: Iterable[RecoveredPartition]) -> None:
        """Add the recovered replicas of the store."""
        for one in found:
            self.reset(one.key, one.start_offset)
            self._ends[one.key] = one.end_offset

    def records(self) -> int:
        """Return the number of records in all replicas."""
        return sum(self._ends.values()) - sum(self._starts.values())

    def start(self, key: PartitionKey) -> int:
        """Return the first offset of a replica."""
        return self._starts.get(key, 0)

    def appended(self, key: PartitionKey, end_offset: int) -> None:
        """Set the end of a replica."""
        self._ends[key] = end_offset

    def truncated(self, key: PartitionKey, end_offset: int) -> None:
        """Set the end of a replica, or remove the replica if the end is 0."""
        if end_offset:
            self._ends[key] = end_offset
        else:
            self.reset(key, 0)

    def advanced(self, key: PartitionKey, start_offset: int) -> None:
        """Set the start of a replica."""
        self._starts[key] = start_offset

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """Empty a replica, which then begins at ``start_offset``, or remove it if that is 0."""
        if start_offset:
            self._starts[key] = self._ends[key] = start_offset
        else:
            self._starts.pop(key, None)
            self._ends.pop(key, None)

    def check_append(self, key: PartitionKey, base_offset: int, end_offset: int) -> None:
        """Raise ValueError if [base_offset, end_offset) does not continue the replica."""
        end = self._ends.get(key, 0)
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(
                f"cannot append [{base_offset}, {end_offset}) to {named(key)}, which ends at {end}"
            )

    def check_truncate(self, key: PartitionKey, end_offset: int) -> bool:
        """Return whether there is anything to delete at or above ``end_offset``.

        Raises ValueError if it lies outside the replica.
        """
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= end_offset <= end:
            raise ValueError(
                f"cannot truncate {named(key)} to {end_offset}: it has [{start}, {end})"
            )
        return end_offset < end

    def check_advance(self, key: PartitionKey, start_offset: int) -> bool:
        """Return whether there is anything to delete below ``start_offset``.

        Raises ValueError if it lies outside the replica, or at its end.
        """
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= start_offset < end:
            raise ValueError(
                f"cannot move the start of {named(key)} to {start_offset}: it has [{start}, {end})"
            )
        return start_offset > start

    def check_read(self, key: PartitionKey, offset: int, until: int) -> bool:
        """Return whether there is anything to read. Raises ValueError outside the replica."""
        start, end = self.start(key), self._ends.get(key, 0)
        if not start <= offset <= until <= end:
            raise ValueError(
                f"cannot read [{offset}, {until}) of {named(key)}: it has [{start}, {end})"
            )
        return offset < until


def named(key: PartitionKey) -> str:
    """Return the name of the replica for messages."""
    return f"partition {key[1]} of topic {key[0].hex()}"


def damage_in(key: PartitionKey, error: CorruptLogError) -> CorruptLogError:
    """Return the error with the name of the replica."""
    return CorruptLogError(f"{named(key)}: {error}", offset=error.offset)


def scan_partition(
    key: PartitionKey, chunks: Iterable[tuple[int, bytes]], start_offset: int = 0
) -> RecoveredPartition:
    """Check a whole replica.

    Raises CorruptLogError with its name and the first damaged offset.
    """
    runs = LogRuns()
    try:
        found = scan_log(chunks, start_offset, seen=runs.append)
    except CorruptLogError as error:
        raise damage_in(key, error) from error
    return RecoveredPartition(key, start_offset, found.end_offset, found.epochs, runs)
