"""The vote, in a file of its own: one lost tail of the log must not take the vote with it,
undetectably.

The file has two forms:

* *Plain*: one checked line (``checked_file``), replaced atomically. Programs that know no higher
  metadata.version than 7 read this form alone, and take the other for damage.
* *In place*, in an open store that was told so: two copies, each a checked line in a block of its
  own, with spaces behind it that nobody reads. A write overwrites both and syncs the file once. Its
  blocks exist, so the file system's journal has no part in it: it takes a sixth of the time.

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
    """Of the write, since the file has this form: the higher one is the newer vote."""

    @property
    def vote(self) -> VoteState:
        return VoteState(self.epoch, self.voted_id, self.voted_directory_id, self.leader_id)


def write_vote_file(directory: Path, vote: VoteState) -> None:
    """Replace the file by one in the plain form, durably when this returns. Raises StorageError."""
    write_checked(directory / VOTE_FILE, _KIND, vote)


def read_vote_file(directory: Path) -> VoteState:
    """The vote of a formatted directory, in either form.

    Raises CorruptLogError if it is missing or corrupt: this node might vote twice; StorageError.
    """
    return _read(directory)[0]


def damaged_copies(directory: Path) -> tuple[str, ...]:
    """What is wrong with the file of a vote that counts all the same, for people.

    Raises CorruptLogError, StorageError.
    """
    path = directory / VOTE_FILE
    raw = read_raw(path)
    if decode_checked(raw, _KIND) is not None or None not in _copies(path, raw):
        return ()
    return (f"{path}: one of the two copies of the vote is not whole, the other counts",)


def _read(directory: Path) -> tuple[VoteState, bool]:
    """The vote, and whether the form is plain."""
    path = directory / VOTE_FILE
    try:
        raw = read_raw(path)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{path} is missing: without its vote this node might vote twice in one epoch"
        ) from None
    plain = decode_checked(raw, _KIND)
    if plain is None:
        return _newest(path, raw), False
    return convert(path, plain, VoteState), True


def _newest(path: Path, raw: bytes) -> VoteState:
    found = _copies(path, raw)
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


def _copies(path: Path, raw: bytes) -> list[_Copy | None]:
    return [_copy_in(path, raw[:COPY_BYTES]), _copy_in(path, raw[COPY_BYTES:])]


def _copy_in(path: Path, block: bytes) -> _Copy | None:
    line, end, _ = block.partition(b"\n")
    content = decode_checked(line + end, _COPY_KIND)
    return None if content is None else convert(path, content, _Copy)


class VoteFile:
    """The vote of an open store.

    Writes and changes of the form run in one thread, one after the other, and end before ``close``.
    """

    def __init__(self, directory: Path) -> None:
        """Read the vote, and put what a crash has left in place into the plain form.

        Raises CorruptLogError, StorageError.
        """
        self._directory = directory
        self._fd = -1
        self._sequence = 0
        self.vote, plain = _read(directory)
        """The one written last."""
        if not plain:
            write_vote_file(directory, self.vote)

    def write(self, vote: VoteState) -> None:
        """Replace the vote, durably when this returns. Raises StorageError."""
        if self._fd < 0:
            write_vote_file(self._directory, vote)
        else:
            self._sequence += 1
            self._overwrite(_two_copies(vote, self._sequence))
        self.vote = vote

    def _overwrite(self, copies: bytes) -> None:
        path = self._directory / VOTE_FILE
        try:
            written = os.pwrite(self._fd, copies, 0)
            os.fdatasync(self._fd)
        except OSError as error:
            raise StorageError(f"can't write {path}: {error}") from error
        if written < len(copies):
            raise StorageError(f"can't write {path}: {written} of {len(copies)} bytes fit")

    def keep_in_place(self, in_place: bool) -> None:
        """Change the form if need be, durably when this returns. Raises StorageError."""
        if in_place and self._fd < 0:
            path = self._directory / VOTE_FILE
            replace_file(path, _two_copies(self.vote, self._sequence))
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageError(f"can't open {path}: {error}") from error
        elif not in_place and self._fd >= 0:
            write_vote_file(self._directory, self.vote)
            self._give_back()

    def close(self, *, in_order: bool) -> None:
        """Give the file back; ``in_order``: in the plain form, with the vote written last.

        Raises StorageError.
        """
        try:
            if in_order:
                self.keep_in_place(False)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _two_copies(vote: VoteState, sequence: int) -> bytes:
    line = encode_checked(_COPY_KIND, asdict(_Copy(**asdict(vote), sequence=sequence)))
    if len(line) > COPY_BYTES:
        raise StorageError(f"the vote takes {len(line)} bytes, {COPY_BYTES} is the most")
    return 2 * line.ljust(COPY_BYTES)
