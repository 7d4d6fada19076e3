"""Where the log begins, and what that rests on: the rules of a start that is not 0, for the real
store and for readers.

The start is durable in ``log-state.json`` before anything below it is deleted, and a complete
snapshot ends at it or later. A log that the newest snapshot is not a part of is one whose
replacement by that snapshot a crash cut short, between the rename and the emptying of the log: it
is done again (KIP-630). Such a log ends below the snapshot, or has another record, of another
epoch, before its end: by Log Matching, the same epoch at one offset means the same log up to there.
A snapshot is of what is committed, so nothing that counts is dropped with such a log.
"""

from __future__ import annotations

from dataclasses import replace

from raftlog.errors import CorruptLogError
from raftlog.metadata.log_generation import SNAPSHOT, GenerationAt
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.storage.chunks import LogScan
from raftlog.storage.layout import LogState
from raftlog.voter import VotersAt


def require_snapshot(
    directory: object, state: LogState, newest: tuple[SnapshotId, SnapshotHeader] | None
) -> None:
    """Raises CorruptLogError if the log begins above 0 and no sound snapshot holds what lies
    before.
    """
    if state.start_offset and (newest is None or newest[0].end_offset < state.start_offset):
        raise CorruptLogError(
            f"the log in {directory} begins at offset {state.start_offset}, and no sound snapshot"
            " holds what lies before it: this node's state is lost; format it anew and let it join"
            " as a new one",
            offset=state.start_offset,
        )


def require_vote(where: object, vote: VoteState, last_epoch: int) -> None:
    """``where``: its file, for the message.

    Raises CorruptLogError if the log holds an epoch that the vote has not reached.

    Every epoch is durable in the vote before the first record of it is fetched or written: the vote
    was put back to an older state, and the node might vote twice. One that was put back within the
    log's last epoch can't be told from a right one.
    """
    if last_epoch > vote.epoch:
        raise CorruptLogError(
            f"{where} is too old: the vote is of epoch {vote.epoch}, the log holds records of epoch"
            f" {last_epoch}: the vote is older than the log, and this node might vote twice in one"
            " epoch; format it anew and let it join as a new one"
        )


def started_at(state: LogState, snapshot_id: SnapshotId) -> LogState:
    """The state of a log that begins at the end of ``snapshot_id``."""
    end = snapshot_id.end_offset
    return replace(
        state,
        start_offset=end,
        start_epoch=snapshot_id.epoch,
        end_offset_at_least=max(state.end_offset_at_least, end),
    )


def emptied_at(state: LogState, snapshot_id: SnapshotId) -> LogState:
    """The state of a log of which nothing is left but ``snapshot_id``."""
    return replace(
        state,
        start_offset=snapshot_id.end_offset,
        start_epoch=snapshot_id.epoch,
        end_offset_at_least=snapshot_id.end_offset,
    )


def log_start_of(state: LogState) -> SnapshotId:
    """The snapshot that a log which begins above 0 begins with: none that counts ends before it."""
    return SnapshotId(state.start_offset, state.start_epoch)


def is_part(snapshot_id: SnapshotId, state: LogState, epoch_before_end: int | None) -> bool:
    """Whether a snapshot is of this very log.

    ``epoch_before_end``: of the record before its end in the log, None if it has none.
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
    """What a store reports of a log that was scanned from its start on, and of the snapshots beside
    it. ``bound_generation``: of the directory's identity.
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
    """The voter set of the newest snapshot, also if it is empty, and those of the log behind it."""
    if newest is None:
        return in_log
    end, voters = newest[0].end_offset, newest[1].voters
    return (VotersAt(end, voters), *(one for one in in_log if one.offset >= end))
