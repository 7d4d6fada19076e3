"""The whole records on the disk of a damaged controller, read without changing it, and the mended
log that replaces the damaged one.

RocksDB is opened on links to its tables alone, and the write-ahead logs are read beside it: a
damaged record there is a hole, in which anything may have been written. A damaged block of a table
hides its chunks, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from raftlog.errors import ApiError, CorruptLogError, ErrorCode, StorageError
from raftlog.files import fsync_directory, make_directories
from raftlog.node.recovery.mending import DamagedLog, Got, Section, Span
from raftlog.node.storage.api import FORMAT_VERSION, NodeIdentity, SnapshotId
from raftlog.node.storage.chunks import end_of, scan_log, walk
from raftlog.node.storage.directory import (
    DAMAGED_DIRECTORY,
    LOG_DIRECTORY,
    MENDED_DIRECTORY,
    LogState,
    read_identity,
    read_log_state,
    write_identity,
    write_log_state,
)
from raftlog.node.storage.files import (
    DIRECTORY_MODE,
    VOTE_FILE,
    private_files,
    read_vote_file,
)
from raftlog.node.storage.log_bounds import require_vote, started_at
from raftlog.node.storage.reader import leave_torn_tails_out, mirror_of
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.node.storage.wal import Drop, Put, operations, wals, whole_writes

_READ_BYTES = 1 << 20
_MENDING_DIRECTORY = "log.mending"


class Stretch(NamedTuple):
    """A span with its batches."""

    span: Span
    bases: list[int]
    batches: list[bytes]

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches from ``offset`` on, at least one, as many as fit.

        Raises ApiError OFFSET_OUT_OF_RANGE if none begins there.
        """
        at = bisect_left(self.bases, offset)
        if at == len(self.bases) or self.bases[at] != offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"no batch begins at {offset}")
        found: list[bytes] = []
        size = 0
        for base, batch in zip(self.bases[at:], self.batches[at:], strict=True):
            if base >= until or (found and size + len(batch) > max_bytes):
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)


def stretches(chunks: Iterable[tuple[int, bytes]]) -> list[Stretch]:
    """Return the whole batches of chunks in order. Of a damaged chunk those before the damage
    count.
    """
    found: list[Stretch] = []
    for key, chunk in chunks:
        with suppress(CorruptLogError):
            for base, end, epoch, position, behind in walk(chunk, key):
                last = found[-1] if found else None
                if last is not None and base < last.span.end:
                    break  # What follows was written before: a truncation was lost.
                if last is not None and (last.span.end, last.span.epoch) == (base, epoch):
                    found[-1] = last._replace(span=last.span._replace(end=end))
                else:
                    found.append(Stretch(Span(base, end, epoch), [], []))
                found[-1].bases.append(base)
                found[-1].batches.append(chunk[position:behind])
    return found


@dataclass(frozen=True, slots=True)
class Salvage:
    """The whole records of a damaged log, in sections as ``DamagedLog`` has them."""

    identity: NodeIdentity
    state: LogState
    contents: Sequence[Sequence[Stretch]]
    snapshots: Sequence[SnapshotId] = ()
    why_not: str = ""
    """Reason why this log cannot be mended, only others with it; empty if it can."""

    @property
    def end_offset(self) -> int:
        """End offset of the last section: what was written after all damage."""
        last = self.contents[-1] if self.contents else ()
        return last[-1].span.end if last else self.state.start_offset

    def sections(self, offset: int) -> list[Section]:
        """Return the spans that end above ``offset``."""
        return [[one.span for one in content if one.span.end > offset] for content in self.contents]

    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches of a section. Raises ApiError OFFSET_OUT_OF_RANGE."""
        if 0 <= section < len(self.contents):
            for one in self.contents[section]:
                if one.span.base <= offset < one.span.end:
                    return one.read(offset, until, max_bytes)
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not whole here")

    def assemble(self, log: DamagedLog, got: Got) -> Iterator[bytes]:
        """Yield the whole log in order, from what is certain here and what others sent.

        Raises ApiError if anything is missing.
        """
        own = list(log.certain())
        at = log.start_offset
        while at < log.end_offset:
            if at in got:
                at, records = got[at]
            else:
                piece = next((one for one in own if one.base <= at < one.end), None)
                section = -1 if piece is None else piece.section
                end = at if piece is None else piece.end
                records = self.read(section, at, end, _READ_BYTES)
                at = end_of(records, at)
            yield records

    def damaged_log(self) -> DamagedLog:
        """Return the log as the decision sees it."""
        return DamagedLog(
            self.state.start_offset,
            self.end_offset,
            self.sections(0),
            start_epoch=self.state.start_epoch,
            snapshots=[(one.end_offset, one.epoch) for one in self.snapshots],
        )


def salvage(directory: Path) -> Salvage:
    """Read what is whole; the caller has locked the directory.

    Raises CorruptLogError, DamagedIdentityError, ConfigError, StorageError if nothing can be read.
    """
    identity, state = read_identity(directory), read_log_state(directory)
    files = SnapshotFiles(directory)
    files.find(clean=False)
    whole = []
    for one in files.complete:
        with suppress(CorruptLogError):
            files.verify(one)
            whole.append(one)
    mirror = mirror_of(directory / LOG_DIRECTORY)
    try:
        if not state.clean:
            # It raises what the start has reported: a hole that had been synced.
            with suppress(CorruptLogError):
                leave_torn_tails_out(Path(mirror.name))
        logs = [path.read_bytes() for path in wals(Path(mirror.name))]
        for path in wals(Path(mirror.name)):
            path.unlink()
        rocks = RocksLog(Path(mirror.name), read_only=True)
        try:
            chunks = _sections(dict(rocks.readable()), rocks.last_sequence() + 1, logs)
        finally:
            rocks.close()
    except OSError as error:
        raise StorageError(f"can't read {directory / LOG_DIRECTORY}: {error}") from error
    finally:
        mirror.cleanup()
    contents = [stretches(sorted(one.items())) for one in chunks]
    found = Salvage(identity, state, contents, whole)
    return replace(found, why_not=_why_not(directory, found))


def _why_not(directory: Path, found: Salvage) -> str:
    last = found.contents[-1] if found.contents else ()
    if not last or found.end_offset < found.state.end_offset_at_least:
        known = max((one[-1].span.end for one in found.contents if one), default=found.end_offset)
        return (
            f"nothing whole says how the log ended after offset {known}: what this node has"
            " acknowledged there cannot be known"
        )
    try:
        require_vote(directory / VOTE_FILE, read_vote_file(directory), last[-1].span.epoch)
    except (CorruptLogError, StorageError) as error:
        return str(error)
    start = found.state.start_offset
    if start and not any(one.end_offset >= start for one in found.snapshots):
        return f"no sound snapshot holds what lies before offset {start}"
    damaged = found.damaged_log()
    # It begins later than the log did if a snapshot makes what is missing below dispensable.
    if not damaged.missing() and damaged.start_offset == start:
        return "no record of it is missing"
    return ""


def _sections(
    chunks: dict[int, bytes], expected: int, logs: Sequence[bytes]
) -> list[dict[int, bytes]]:
    """Return the chunks of each section, oldest first. ``chunks``: those of the tables; they, and
    the writes up to the first hole, are the first section.
    """
    sections: list[dict[int, bytes]] = [chunks]
    begun = False
    for write in (one for data in logs for one in whole_writes(data)):
        if write is None or write.sequence > expected or (begun and write.sequence < expected):
            sections.append({})
        if write is None:
            # What follows has any number above.
            expected = 2**64
            begun = False
            continue
        begun, expected = True, write.sequence + write.numbers
        for one in operations(write.payload):
            _carry_out(sections[-1], one)
    if expected == 2**64:
        return [*sections, {}] if sections[-1] else sections
    return sections


def _carry_out(chunks: dict[int, bytes], one: Put | Drop) -> None:
    if isinstance(one, Put):
        chunks[one.offset] = one.chunk
        return
    for base in [base for base in chunks if one.begin <= base < one.end]:
        del chunks[base]


def replace_log(
    directory: Path, found: Salvage, start_offset: int, records: Iterable[bytes], name: str
) -> Path:
    """Put a log of ``records``, which begins at ``start_offset``, in the place of the damaged one,
    which moves to ``damaged/NAME``; return where it is.

    The new log is read whole before it counts: it has to end where the damaged one did, and to have
    every certain batch of it. A crash leaves the damaged log in force, or the new one. Raises
    CorruptLogError, StorageError.
    """
    mending, mended = directory / _MENDING_DIRECTORY, directory / MENDED_DIRECTORY
    state = found.state
    kept = directory / DAMAGED_DIRECTORY / name
    try:
        with private_files():
            rmtree(mending, ignore_errors=True)
            rmtree(mended, ignore_errors=True)
            rocks = RocksLog(mending, create=True)
            try:
                at = start_offset
                for chunk in records:
                    rocks.put(at, chunk)
                    at = end_of(chunk, at)
                rocks.sync()
            finally:
                rocks.close()
            if start_offset > state.start_offset:
                snapshot = next(one for one in found.snapshots if one.end_offset == start_offset)
                state = started_at(state, snapshot)
            _require_same(mending, found, state)
            if state.start_offset and found.identity.format_version < FORMAT_VERSION:
                write_identity(directory, replace(found.identity, format_version=FORMAT_VERSION))
            make_directories(kept, DIRECTORY_MODE)
            mending.rename(mended)
            fsync_directory(directory)
            write_log_state(directory, replace(state, clean=False))
            (directory / LOG_DIRECTORY).rename(kept / LOG_DIRECTORY)
            fsync_directory(kept)
            mended.rename(directory / LOG_DIRECTORY)
            fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"can't mend the log in {directory}: {error}") from error
    return kept


def _require_same(path: Path, found: Salvage, state: LogState) -> None:
    """Raise CorruptLogError unless the log at ``path`` is the one that was damaged."""
    rocks = RocksLog(path, read_only=True)
    try:
        chunks = list(rocks.scan(state.start_offset))
    finally:
        rocks.close()
    scanned = scan_log(chunks, state.start_offset, state.start_epoch)
    if scanned.end_offset != found.end_offset:
        raise CorruptLogError(
            f"the mended log ends at {scanned.end_offset}, the damaged one at {found.end_offset}",
            offset=min(scanned.end_offset, found.end_offset),
        )
    batches = {
        base: chunk[position:behind]
        for key, chunk in chunks
        for base, _, _, position, behind in walk(chunk, key)
    }
    for one in found.contents[-1]:
        for base, whole in zip(one.bases, one.batches, strict=True):
            if base >= state.start_offset and batches.get(base) != whole:
                raise CorruptLogError(
                    f"the mended log differs at offset {base} from what is whole in the damaged"
                    " one",
                    offset=base,
                )
