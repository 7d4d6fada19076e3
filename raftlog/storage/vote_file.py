"""The vote, in a file of its own: one lost tail of the log must not take the vote with it,
undetectably.

Why: docs/decisions/006-vote-outside-the-log.md
"""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import CorruptLogError
from raftlog.storage.api import VoteState
from raftlog.storage.checked_file import read_checked, write_checked

VOTE_FILE = "quorum-state.json"
_KIND = "vote"


def write_vote_file(directory: Path, vote: VoteState) -> None:
    """Replace the vote, durably when this returns. Raises StorageError."""
    write_checked(directory / VOTE_FILE, _KIND, vote)


def read_vote_file(directory: Path) -> VoteState:
    """The vote of a formatted directory.

    Raises CorruptLogError if it is missing or corrupt: this node might vote twice.
    """
    try:
        return read_checked(directory / VOTE_FILE, _KIND, VoteState)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{directory / VOTE_FILE} is missing: without its vote this node might vote twice in"
            " one epoch"
        ) from None
