"""The intact records on a damaged controller's disk, read without changing it, and the mended log
that replaces the damaged one.

RocksDB is opened on links to its tables only, and the write-ahead logs are read separately: a
damaged record in them is a hole, in which anything may have been written. A damaged block of a
table costs only its own chunks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from raftlog.errors import ApiError, CorruptLogError, ErrorCode, StorageError
from raftlog.files import fsync_directory, make_directories
from raftlog.node.recovery.mending import DamagedLog, Got, Section, Span
from raftlog.node.storage.api import FORMAT_VERSION, NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.chunks import batches_from, end_of, last_epoch, scan_log, walk
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
    write_vote_file,
)
from raftlog.node.storage.log_bounds import require_header, require_vote, started_at
from raftlog.node.storage.reader import leave_torn_tails_out, mirror_of
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.snapshot_files import SnapshotFiles
from raftlog.node.storage.wal import (
    NO_END,
    DamagedWrite,
    Drop,
    LogEnd,
    Put,
    operations,
    read_writes,
    wals,
)

_READ_BYTES = 1 << 20
_MENDING_DIRECTORY = "log.mending"


class Stretch(NamedTuple):
    """A span with its batches."""

    span: Span
    bases: list[int]
    batches: list[bytes]

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches from ``offset`` onwards: at least one, as many as fit.

        Raises ApiError OFFSET_OUT_OF_RANGE if no batch begins at ``offset``.
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
    """Return the intact batches of the chunks, in order. From a damaged chunk, the batches before
    the damage are used.
    """
    found: list[Stretch] = []
    for key, chunk in chunks:
        with suppress(CorruptLogError):
            for base, end, epoch, position, behind in walk(chunk, key):
                last = found[-1] if found else None
                if last is not None and base < last.span.end:
                    break  # Older writes follow: a truncation was lost.
                if last is not None and (last.span.end, last.span.epoch) == (base, epoch):
                    found[-1] = last._replace(span=last.span._replace(end=end))
                else:
                    found.append(Stretch(Span(base, end, epoch), [], []))
                found[-1].bases.append(base)
                found[-1].batches.append(chunk[position:behind])
    return found


@dataclass(frozen=True, slots=True)
class Salvage:
    """The intact records of a damaged log, in sections as for ``DamagedLog``."""

    identity: NodeIdentity
    state: LogState
    contents: Sequence[Sequence[Stretch]]
    end: LogEnd
    """End of the log, according to the mark of its last write."""
    snapshots: dict[SnapshotId, int]
    """Sizes of the intact snapshots, in bytes."""
    snapshot_bytes: Callable[[SnapshotId, int, int], bytes]
    """Function that reads a snapshot from a position onwards, up to a number of bytes."""
    why_not: str = ""
    """Why this log itself cannot be mended, although it can help others; empty if it can."""

    @property
    def is_whole(self) -> bool:
        """Whether the log is undamaged, although a snapshot may be damaged."""
        damaged = self.damaged_log()
        # It begins later than the log did if a snapshot replaces the missing records.
        begins_later = damaged.start_offset > self.state.start_offset
        return not (damaged.missing() or begins_later or len(self.contents) > 1)

    @property
    def log_start(self) -> SnapshotId | None:
        """Id of a snapshot that ends at the start of the log, if that is undamaged and above 0."""
        start = SnapshotId(self.state.start_offset, self.state.start_epoch)
        return start if start.end_offset and self.is_whole else None

    def sections(self, offset: int) -> list[Section]:
        """Return all sections, each with only its spans that end above ``offset``."""
        return [[one.span for one in content if one.span.end > offset] for content in self.contents]

    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches of a section. Raises ApiError OFFSET_OUT_OF_RANGE."""
        if 0 <= section < len(self.contents):
            for one in self.contents[section]:
                if one.span.base <= offset < one.span.end:
                    return one.read(offset, until, max_bytes)
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not intact on this disk")

    def snapshot_ids(self) -> Sequence[SnapshotId]:
        """Return the intact snapshots, ascending."""
        return sorted(self.snapshots)

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes of an intact snapshot, none at its end. Raises ApiError SNAPSHOT_NOT_FOUND,
        POSITION_OUT_OF_RANGE.
        """
        if snapshot_id not in self.snapshots:
            raise ApiError(
                ErrorCode.SNAPSHOT_NOT_FOUND, f"there is no intact snapshot {snapshot_id}"
            )
        if not 0 <= position <= self.snapshots[snapshot_id]:
            raise ApiError(
                ErrorCode.POSITION_OUT_OF_RANGE,
                f"position {position} must be in 0 .. {self.snapshots[snapshot_id]}, the size of"
                f" snapshot {snapshot_id}",
            )
        return self.snapshot_bytes(snapshot_id, position, max_bytes)

    def assemble(self, log: DamagedLog, got: Got) -> Iterator[bytes]:
        """Yield the whole log in order, from the certain records on this disk and those fetched
        from others.

        Raises ApiError if anything is missing.
        """
        own = list(log.certain())
        bases = sorted(got)
        at = log.start_offset
        while at < log.end_offset:
            index = bisect_right(bases, at) - 1
            if index >= 0 and got[bases[index]][0] > at:
                end, records = got[bases[index]]
                # The log may begin later than when these records were fetched.
                records, at = batches_from(records, bases[index], at), end
            else:
                piece = next((one for one in own if one.base <= at < one.end), None)
                section = -1 if piece is None else piece.section
                end = at if piece is None else piece.end
                records = self.read(section, at, end, _READ_BYTES)
                at = end_of(records, at)
            yield records

    def damaged_log(self) -> DamagedLog:
        """Return the log in the form on which ``mending`` decides."""
        return DamagedLog(
            self.state.start_offset,
            self.end,
            self.sections(0),
            start_epoch=self.state.start_epoch,
            snapshots=self.snapshots,
        )


def salvage(directory: Path) -> Salvage:
    """Read the intact records; the caller has locked the directory.

    Raises CorruptLogError, DamagedIdentityError, ConfigError, StorageError if nothing can be read.
    """
    identity, state = read_identity(directory), read_log_state(directory)
    files = SnapshotFiles(directory)
    files.find(clean=False)
    whole = {}
    for one in files.complete:
        with suppress(CorruptLogError):
            files.verify(one)
            whole[one] = files.size(one)
    mirror = mirror_of(directory / LOG_DIRECTORY)
    try:
        if not state.clean:
            # It raises the error that was reported at startup: a hole in synced data.
            with suppress(CorruptLogError):
                leave_torn_tails_out(Path(mirror.name))
        logs = [path.read_bytes() for path in wals(Path(mirror.name))]
        for path in wals(Path(mirror.name)):
            path.unlink()
        rocks = RocksLog(Path(mirror.name), read_only=True)
        try:
            chunks, end = _sections(dict(rocks.readable()), rocks.last_sequence() + 1, logs)
            if end is None and logs:
                with suppress(CorruptLogError):
                    end = rocks.marked_end()
        finally:
            rocks.close()
    except OSError as error:
        raise StorageError(f"cannot read {directory / LOG_DIRECTORY}: {error}") from error
    finally:
        mirror.cleanup()
    contents = [stretches(_emptied(one)) for one in chunks]
    if state.end_epoch >= 0:
        end = LogEnd(state.end_offset_at_least, state.end_epoch)
    found = Salvage(identity, state, contents, end or NO_END, whole, files.read)
    return replace(found, why_not=_why_not(directory, found))


def _why_not(directory: Path, found: Salvage) -> str:
    if found.end.offset < found.state.end_offset_at_least:
        known = max((one[-1].span.end for one in found.contents if one), default=0)
        return (
            f"no intact data shows where the log ended after offset {known}, so it is unknown"
            " which later records this node has acknowledged"
        )
    try:
        require_vote(directory / VOTE_FILE, read_vote_file(directory), found.end.epoch)
    except (CorruptLogError, StorageError) as error:
        return str(error)
    damaged = found.damaged_log()
    if found.is_whole and not damaged.lacks_snapshot:
        return "none of its records is damaged or missing"
    return ""


def _sections(
    chunks: dict[int, bytes], expected: int, logs: Sequence[bytes]
) -> tuple[list[dict[int, bytes]], LogEnd | None]:
    """Return the chunks of each section, oldest first, and the end of the log after the last write,
    or None if there is no write.

    ``chunks``: the chunks in the tables; together with the writes up to the first hole they form
    the first section.
    """
    sections: list[dict[int, bytes]] = [chunks]
    begun, end = False, None
    for write in (one for data in logs for one in read_writes(data)):
        end = write.end
        if (
            isinstance(write, DamagedWrite)
            or write.sequence > expected
            or (begun and write.sequence < expected)
        ):
            sections.append({})
        if isinstance(write, DamagedWrite):
            # The next write may have any higher number.
            expected = 2**64
            begun = False
            continue
        begun, expected = True, write.sequence + write.numbers
        for one in operations(write.payload):
            _carry_out(sections[-1], one)
    if expected == 2**64 and sections[-1]:
        sections.append({})
    return sections, end


def _carry_out(chunks: dict[int, bytes], one: Put | Drop) -> None:
    if isinstance(one, Put):
        chunks[one.offset] = one.chunk
        return
    for base in [base for base in chunks if one.begin <= base < one.end]:
        del chunks[base]


def _emptied(chunks: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks in order and drop each, so that only its batches stay in memory."""
    for key in sorted(chunks):
        yield key, chunks.pop(key)


class SnapshotDownload:
    """Storage for a snapshot that is fetched into a data directory; the caller has locked it."""

    def __init__(self, directory: Path, identity: NodeIdentity) -> None:
        self._files = SnapshotFiles(directory)
        self._directory, self._identity = directory, identity

    def store(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """See ``FetchedSnapshots``."""
        self._files.store(snapshot_id, position, data)

    def keep(self, snapshot_id: SnapshotId) -> None:
        """See ``FetchedSnapshots``."""
        identity = self._identity
        if read_vote_file(self._directory).epoch < snapshot_id.epoch:
            # An epoch in which this node has not voted.
            write_vote_file(self._directory, VoteState(epoch=snapshot_id.epoch))
        self._files.freezer(
            snapshot_id,
            lambda header: require_header(header, identity.cluster_id, identity.generation),
        )()


def replace_log(
    directory: Path, found: Salvage, log: DamagedLog, records: Iterable[bytes], name: str
) -> Path:
    """Replace the damaged log by ``records``, the mended ``log``; return where the damaged one is
    kept, ``damaged/NAME``.

    The new log is read completely before it replaces the old one: it must end where it should, and
    contain every certain batch of the damaged one. After a crash either the damaged log or the new
    one is in place. Raises CorruptLogError, StorageError.
    """
    mending, mended = directory / _MENDING_DIRECTORY, directory / MENDED_DIRECTORY
    state, start_offset = found.state, log.start_offset
    kept = directory / DAMAGED_DIRECTORY / name
    try:
        with private_files():
            rmtree(mending, ignore_errors=True)
            rmtree(mended, ignore_errors=True)
            rocks = RocksLog(mending, create=True)
            try:
                at = start_offset
                for chunk in records:
                    end = end_of(chunk, at)
                    rocks.put(at, chunk, LogEnd(end, last_epoch(chunk)))
                    at = end
                rocks.sync()
            finally:
                rocks.close()
            if start_offset > state.start_offset:
                state = started_at(state, log.starts_behind)
            _require_same(mending, found, state, log.end_offset)
            if state.start_offset and found.identity.format_version < FORMAT_VERSION:
                write_identity(directory, replace(found.identity, format_version=FORMAT_VERSION))
            make_directories(kept, DIRECTORY_MODE)
            mending.rename(mended)
            fsync_directory(directory)
            write_log_state(directory, replace(state, clean=False, end_epoch=-1))
            (directory / LOG_DIRECTORY).rename(kept / LOG_DIRECTORY)
            fsync_directory(kept)
            mended.rename(directory / LOG_DIRECTORY)
            fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot mend the log in {directory}: {error}") from error
    return kept


def _require_same(path: Path, found: Salvage, state: LogState, end_offset: int) -> None:
    """Raise CorruptLogError unless the log at ``path`` equals the damaged one up to
    ``end_offset``.
    """
    rocks = RocksLog(path, read_only=True)
    try:
        scanned = scan_log(rocks.scan(state.start_offset), state.start_offset, state.start_epoch)
        if scanned.end_offset != end_offset:
            raise CorruptLogError(
                f"the mended log ends at {scanned.end_offset}, not at {end_offset}",
                offset=min(scanned.end_offset, end_offset),
            )
        mended = (
            (base, chunk[position:behind])
            for key, chunk in rocks.scan(state.start_offset)
            for base, _, _, position, behind in walk(chunk, key)
        )
        for base, whole in _intact(found, state.start_offset):
            if next((one for one in mended if one[0] >= base), None) != (base, whole):
                raise CorruptLogError(
                    f"the mended log differs at offset {base} from an intact batch of the damaged"
                    " one",
                    offset=base,
                )
    finally:
        rocks.close()


def _intact(found: Salvage, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the intact batches of the last section from ``offset`` onwards, with their offsets."""
    for one in found.contents[-1]:
        for base, whole in zip(one.bases, one.batches, strict=True):
            if base >= offset:
                yield base, whole
