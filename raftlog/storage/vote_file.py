"""The vote, in a file of its own: one lost tail of the log must not take the vote with it,
undetectably.

The file has two forms:

* *At rest*: one checked line (``checked_file``), replaced atomically. Older programs know this form
  alone.
* *In use*, while a store is open: two copies, each a checked line in a block of its own, with
  spaces behind it that nobody reads. A write overwrites both and syncs the file once. Its blocks
  exist, so the file system's journal has no part in it: a vote takes a sixth of the time.

A vote counts as written when both copies are durable. So whatever happens to *one* copy, a write
that power loss cut short or damage, the other is at least as new as the last vote that anybody was
told of. If neither is whole, the file is corrupt.

Why: docs/decisions/006-vote-outside-the-log.md
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from raftlog.errors import CorruptLogError, StorageError
from raftlog.logger import get_logger
from raftlog.storage.api import VoteState
from raftlog.storage.checked_file import (
    convert,
    decode_checked,
    encode_checked,
    not_intact,
    read_raw,
    replace_file,
    write_checked,
)

log = get_logger(__name__)

VOTE_FILE = "quorum-state.json"
COPY_BYTES = 4096
"""A block of the file system, and at least a sector: what tears one copy leaves the other."""
_KIND = "vote"
_COPY_KIND = "vote-copy"


@dataclass(frozen=True, slots=True)
class _Copy(VoteState):
    sequence: int = 0
    """Of the write, since the file is in use: the higher one is the newer vote."""

    @property
    def vote(self) -> VoteState:
        return VoteState(self.epoch, self.voted_id, self.voted_directory_id, self.leader_id)


def write_vote_file(directory: Path, vote: VoteState) -> None:
    """Replace the vote by one at rest, durably when this returns. Raises StorageError."""
    write_checked(directory / VOTE_FILE, _KIND, vote)


def read_vote_file(directory: Path) -> VoteState:
    """The vote of a formatted directory, in either form.

    Raises CorruptLogError if it is missing or corrupt: this node might vote twice; StorageError.
    """
    path = directory / VOTE_FILE
    try:
        raw = read_raw(path)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{path} is missing: without its vote this node might vote twice in one epoch"
        ) from None
    at_rest = decode_checked(raw, _KIND)
    return _newest(path, raw) if at_rest is None else convert(path, at_rest, VoteState)


def _newest(path: Path, raw: bytes) -> VoteState:
    found = [_copy_in(path, raw[:COPY_BYTES]), _copy_in(path, raw[COPY_BYTES:])]
    whole = [copy for copy in found if copy is not None]
    if not whole:
        raise not_intact(path)
    if len(whole) < len(found):
        log.warning(
            "one of the two copies of the vote is not whole, the other counts",
            file=str(path),
            whole=found.index(whole[0]),
        )
    return max(whole, key=lambda copy: copy.sequence).vote


def _copy_in(path: Path, block: bytes) -> _Copy | None:
    line, end, _ = block.partition(b"\n")
    content = decode_checked(line + end, _COPY_KIND)
    return None if content is None else convert(path, content, _Copy)


class VoteInUse:
    """The vote of an open store, overwritten in place.

    ``write`` runs in the disk's thread, the rest in the loop's while nothing is written.
    """

    def __init__(self, directory: Path, vote: VoteState) -> None:
        """Put the file into the form in use, durably. Raises StorageError."""
        self._directory = directory
        self._newest = _Copy(**asdict(vote))
        path = directory / VOTE_FILE
        replace_file(path, 2 * _block(self._newest))
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"can't open {path}: {error}") from error

    def write(self, vote: VoteState) -> None:
        """Overwrite both copies, durably when this returns. Raises StorageError."""
        newest = _Copy(**asdict(vote), sequence=self._newest.sequence + 1)
        blocks = 2 * _block(newest)
        try:
            written = os.pwrite(self._fd, blocks, 0)
            os.fdatasync(self._fd)
        except OSError as error:
            raise StorageError(f"can't write {self._directory / VOTE_FILE}: {error}") from error
        if written < len(blocks):
            raise StorageError(f"can't write {self._directory / VOTE_FILE}: {written} bytes fit")
        self._newest = newest

    def close(self, *, in_order: bool) -> None:
        """Give the file back; ``in_order``: at rest, with the vote written last.

        Raises StorageError.
        """
        os.close(self._fd)
        if in_order:
            write_vote_file(self._directory, self._newest.vote)


def _block(copy: _Copy) -> bytes:
    line = encode_checked(_COPY_KIND, asdict(copy))
    if len(line) > COPY_BYTES:
        raise StorageError(f"the vote takes {len(line)} bytes, {COPY_BYTES} is the most")
    return line.ljust(COPY_BYTES)
