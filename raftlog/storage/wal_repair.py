"""A WAL or MANIFEST that power loss left longer than its data: the file had grown, and blocks of it
were never written.

What was never written reads as zeros, from the boundary of a sector to the end of the file. RocksDB
takes zeros for the end of the file where a record could begin, and refuses them in the midst of
one. That record was never synced, so nothing of it was acknowledged, and it is cut off here. Only
that: a record that ends before the zeros begin, one with no zeros behind it, and anything that
something follows is damage, which RocksDB or wal_tail.py refuses.

A few zeros may be the last bytes of a synced record that is damaged elsewhere. Up to three of them
are a tear if other bytes in their place would give the record its checksum. From four on such bytes
always exist, and the count decides: in a WAL four to seven zeros are refused, as a record with an
empty body ends in four; in a MANIFEST they are a tear, as none of its records ends so.

RocksDB deletes a WAL only after the MANIFEST's record that makes it unnecessary is synced: what is
cut off the MANIFEST is in a WAL still.

A log's WAL has zeros ahead of it. What power loss does to it beside this:
:mod:`raftlog.storage.wal_holes`.

How far the log was durable at least (log-state.json) is checked later, by ``recover``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import StorageError
from raftlog.storage.wal_ahead import wals
from raftlog.storage.wal_holes import (
    SECTOR_BYTES,
    ZEROS_MIN_BYTES,
    WalStream,
    find_hole,
    lacks_its_end,
)
from raftlog.storage.wal_tail import (
    BLOCK,
    FULL,
    HEADER,
    LAST,
    length_changed,
    pieces,
    records_behind,
)

MANIFEST_ZEROS_MIN_BYTES = 4
"""A VersionEdit ends in a varint, a terminating tag or text: never in so many zeros, unless
compaction is round-robin, which it is not.
"""
_MANIFEST = re.compile(r"MANIFEST-\d+")


class TornTail(NamedTuple):
    """Where a file is to end, and where its zeros begin. Bytes from the file's beginning."""

    path: Path
    cut_at: int
    zeros_from: int
    size: int
    is_hole: bool = False
    """Not only zeros are cut off."""

    def __str__(self) -> str:
        if self.is_hole:
            return (
                f"{self.path}: a hole at byte {self.zeros_from}, as power loss leaves them; nothing"
                f" from there to the end at {self.size} was ever synced, and it is cut off at byte"
                f" {self.cut_at}"
            )
        return (
            f"{self.path}: zeros from byte {self.zeros_from} to the end at {self.size}, as power"
            " loss leaves them; the record that they cut in two was never synced, and is cut off"
            f" at byte {self.cut_at}"
        )


def find_torn_tails(rocks: Path) -> tuple[TornTail, ...]:
    """The zeros at the end of the last WAL, and of the MANIFEST in force, that cut a record in two;
    the first hole in a log's WALs, and what is behind it.

    Raises StorageError; CorruptLogError if the hole had been synced.
    """
    try:
        paths = wals(rocks)
        contents = [path.read_bytes() for path in paths]
        stream = WalStream(contents)
        tails = list(_holes(stream, paths, contents))
        grown = []
        if stream.cut is not None and not tails:
            # No hole: the last one may have grown, as those of older builds do.
            grown.append((paths[-1], contents[-1]))
        if (manifest := _manifest_in_force(rocks)) is not None:
            grown.append((manifest, manifest.read_bytes()))
    except OSError as error:
        raise StorageError(f"can't read the WAL in {rocks}: {error}") from error
    found = (_find(path, data) for path, data in grown if data.endswith(b"\0"))
    return (*tails, *(tail for tail in found if tail is not None))


def _holes(
    stream: WalStream, paths: Sequence[Path], contents: Sequence[bytes]
) -> Iterator[TornTail]:
    cut = find_hole(stream, paths, contents)
    if cut is None:
        return
    size = len(contents[cut.wal])
    yield TornTail(paths[cut.wal], cut.cut_at, cut.broken_at, size, is_hole=True)
    for path, content in zip(paths[cut.wal + 1 :], contents[cut.wal + 1 :], strict=True):
        yield TornTail(path, 0, 0, len(content), is_hole=True)


def _manifest_in_force(rocks: Path) -> Path | None:
    current = rocks / "CURRENT"
    in_force = current.read_text(errors="replace").rstrip("\n") if current.is_file() else ""
    manifest = rocks / in_force
    return manifest if _MANIFEST.fullmatch(in_force) and manifest.is_file() else None


def cut_off(tail: TornTail) -> None:
    """Cut the file, durably when this returns. Raises StorageError."""
    try:
        with tail.path.open("r+b") as file:
            file.truncate(tail.cut_at)
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"can't cut the torn tail off {tail.path}: {error}") from error


def _find(path: Path, data: bytes) -> TornTail | None:
    zeros_from, size = len(data.rstrip(b"\0")), len(data)
    cut_at, broken_at = _whole(data)
    if broken_at < 0:
        return None
    tail = TornTail(path, cut_at, zeros_from, size)
    if zeros_from <= broken_at:
        # Nothing but zeros, which no header is: harmless at the beginning of a record, and between
        # two fragments of one the same tear.
        return tail if cut_at < broken_at else None
    torn_at = -(-zeros_from // SECTOR_BYTES) * SECTOR_BYTES
    behind = broken_at + HEADER.size
    if behind <= zeros_from:
        behind += HEADER.unpack_from(data, broken_at)[1]
    if torn_at >= min(behind, size):
        return None
    enough = MANIFEST_ZEROS_MIN_BYTES if _MANIFEST.fullmatch(path.name) else ZEROS_MIN_BYTES
    if size - torn_at < enough and not (
        behind == size and lacks_its_end(data[broken_at:], torn_at - broken_at)
    ):
        return None
    return None if _something_behind(data, broken_at, behind, zeros_from) else tail


def _something_behind(data: bytes, broken_at: int, behind: int, zeros_from: int) -> bool:
    """Whether the broken record's length is what is wrong: it overruns its block, or hides a whole
    record, perhaps its own.
    """
    start = broken_at // BLOCK * BLOCK
    if broken_at + HEADER.size <= len(data) and length_changed(data, broken_at):
        return True
    ends = [start + BLOCK, zeros_from] if zeros_from - broken_at >= HEADER.size else [start + BLOCK]
    return behind > start + BLOCK or any(
        records_behind(data[start:end], broken_at - start) for end in ends
    )


def _whole(data: bytes) -> tuple[int, int]:
    """Where the last whole record ends (its last fragment), and where the first broken fragment
    begins (-1: none is).
    """
    whole_to = 0
    for position, type_, behind in pieces(data):
        if behind < 0:
            return whole_to, position
        if type_ in {FULL, LAST}:
            whole_to = behind
    return whole_to, -1
