"""Where the log begins, and what that rests on: the rules of a start that is not 0, for the real store and for readers.

The start is durable in ``log-state.json`` before anything below it is deleted, and a complete snapshot ends at it or later.
A snapshot that ends above the log is one whose installation a crash cut short, between its rename and the emptying of the log: it
is done again (KIP-630).
"""

from __future__ import annotations

from dataclasses import replace

from raftlog.errors import CorruptLogError
from raftlog.snapshot_file import SnapshotHeader
from raftlog.storage.api import SnapshotId
from raftlog.storage.layout import LogState
from raftlog.voter import VotersAt


def require_snapshot(directory: object, state: LogState, newest: tuple[SnapshotId, SnapshotHeader] | None) -> None:
    """Raises CorruptLogError if the log begins above 0 and no sound snapshot holds what lies before."""
    if state.start_offset and (newest is None or newest[0].end_offset < state.start_offset):
        raise CorruptLogError(
            f"the log in {directory} begins at offset {state.start_offset}, and no sound snapshot holds what lies before it: "
            "this node's state is lost; format it anew and let it join as a new one",
            offset=state.start_offset,
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


def known_voters(
    newest: tuple[SnapshotId, SnapshotHeader] | None, in_log: tuple[VotersAt, ...]
) -> tuple[VotersAt, ...]:
    """The voter set of the newest snapshot, also if it is empty, and those of the log behind it."""
    if newest is None:
        return in_log
    end, voters = newest[0].end_offset, newest[1].voters
    return (VotersAt(end, voters), *(one for one in in_log if one.offset >= end))
