"""An export as one query reads it: the files with records in question, and the checkpoint at which
the fold starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from raftlog.metadata.image import Image
from raftlog.metadata.kinds import by_group, put
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.segments.checkpoints import last_at, load_checkpoint
from raftlog.segments.files import is_uri, open_place
from raftlog.segments.manifest import (
    BY_GROUP,
    RECORDS,
    Bucket,
    Checkpoint,
    Manifest,
    Segment,
    read_manifest,
)
from raftlog.segments.parquet_files import offset_at
from replay.errors import ReplayError
from replay.kernels.folding import Groups, UnhashedDraft
from replay.request import JobRequest
from replay.text import format_time


@dataclass(frozen=True, slots=True)
class Export:
    """The part of an export that a query needs.

    ``target``: an absolute path, or a URI for fsspec. ``segments``: the files that may hold records
    in question. ``begin``: the checkpoint after which records are in question, or None if all are.
    """

    target: str
    manifest: Manifest
    segments: tuple[Segment, ...]
    at_offset: int | None = None
    begin: Checkpoint | None = None

    @property
    def begin_offset(self) -> int:
        """The first offset in question."""
        return self.manifest.history_begin if self.begin is None else self.begin.offset + 1

    @property
    def buckets(self) -> int:
        """The number of buckets by group in the ranges that have buckets; 0 if none, or if they
        follow a rule that this build does not know.
        """
        bucketing = self.manifest.bucketing
        if bucketing is None or bucketing.by != BY_GROUP or not bucketing.segments:
            return 0
        return bucketing.count

    def bucket_files(self, bucket: int | None = None) -> list[Bucket]:
        """Return the files of a bucket, or of all buckets if None, in the ranges in question."""
        ranges = {one.base_offset for one in self.segments}
        return [
            one
            for one in self.manifest.buckets
            if one.base_offset in ranges and bucket in {None, one.bucket}
        ]

    @property
    def last_offset(self) -> int:
        """The last offset in question, according to the manifest."""
        last = self.segments[-1].last_offset
        return last if self.at_offset is None else min(last, self.at_offset)

    @property
    def last_timestamp_ms(self) -> int:
        """A time at or after that of the last record in question, according to the manifest."""
        return self.segments[-1].max_timestamp_ms

    @property
    def record_count(self) -> int:
        """Number of records in ``segments`` after ``begin``: an upper bound for any query."""
        return sum(
            one.last_offset + 1 - max(one.base_offset, self.begin_offset) for one in self.segments
        )


def open_export(request: JobRequest) -> Export:
    """Read the manifest and choose the files that a request needs.

    Raises ExportError and its subclasses, and ReplayError if the export has no records in question.
    """
    target = request.export
    if not is_uri(target):
        target = str(Path(str(open_place(target))).absolute())
    manifest = read_manifest(target)
    require_known_level(manifest, target)
    everything = manifest.of_kind(RECORDS)
    if not everything:
        raise ReplayError(
            f"{target} is an export without records: export again once the log has some"
        )
    at_offset = request.at_offset
    first, end = everything[0], manifest.end_offset
    if at_offset is not None and not manifest.history_begin <= at_offset < end:
        raise ReplayError(
            f"offset {at_offset} is not in {target}: it holds offsets {manifest.history_begin} to"
            f" {end - 1}"
        )
    if request.at_time_ms is not None:
        until = offset_at(open_place(target), everything, request.at_time_ms)
        if until is None:
            asked, begin = format_time(request.at_time_ms), format_time(first.min_timestamp_ms)
            raise ReplayError(f"{target} holds nothing at or before {asked}: it begins at {begin}")
        at_offset = until if at_offset is None else min(at_offset, until)
    end_ms = everything[-1].max_timestamp_ms
    if request.since_ms is not None and request.since_ms > end_ms:
        raise ReplayError(
            f"{target} holds nothing at or after {format_time(request.since_ms)}: it ends at"
            f" {format_time(end_ms)}"
        )
    segments = tuple(
        segment for segment in everything if at_offset is None or segment.base_offset <= at_offset
    )
    return Export(target, manifest, segments, at_offset)


def require_known_level(manifest: Manifest, target: str) -> None:
    """Raise ReplayError if the export's metadata.version is newer than this build, as its records
    may have a meaning that is unknown here.
    """
    level = manifest.metadata_version or 0
    if level > LATEST_METADATA_VERSION:
        raise ReplayError(
            f"{target} was exported at metadata.version {level}, but this build supports at most"
            f" {LATEST_METADATA_VERSION}: use a newer raftlog"
        )


def require_whole_history(export: Export) -> None:
    """Raise ReplayError if the export lacks records from before its beginning, as a fold needs
    them.
    """
    if export.manifest.history_begin > 0 and export.manifest.state_from is None:
        raise ReplayError(
            f"{export.target} begins at offset {export.manifest.history_begin}: the state cannot be"
            " folded without the records before it"
        )


class StartingCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint from which an answer started. Nothing up to its offset was read."""

    offset: int
    file: str
    state_hash: str

    @property
    def words(self) -> str:
        """Text about the starting point."""
        return (
            f"Started from the checkpoint at offset {self.offset}; nothing before it was read\n"
            "(verify checks the checkpoint; --from-the-beginning ignores it)"
        )


def from_checkpoint(export: Export, request: JobRequest) -> Export:
    """Return the export from the last checkpoint that can serve the request, or the whole export if
    there is none.

    A state needs a checkpoint at or before its point, a diff one at or before its first point, and
    a history one before its first offset.
    """
    if request.from_the_beginning:
        return export
    offsets, until_ms = [export.at_offset], None
    if request.job == "diff":
        begin = begin_offset(export, request)
        offsets.append(-1 if begin is None else begin)
    elif request.job == "history":
        offsets.append(history_start(request))
        until_ms = None if request.since_ms is None else request.since_ms - 1
    one = last_at(export.manifest.checkpoints, offset=_least(offsets), timestamp_ms=until_ms)
    if one is None:
        return export
    after = tuple(each for each in export.segments if each.last_offset > one.offset)
    # At least one: engines need a file for the columns, even without rows.
    return replace(export, segments=after or export.segments[-1:], begin=one)


def begin_offset(export: Export, request: JobRequest) -> int | None:
    """Return the offset at which a diff starts, -1 if before the first record, or None if the
    request names no start.
    """
    if request.from_time_ms is None or request.from_offset is not None:
        return request.from_offset
    found = offset_at(open_place(export.target), export.segments, request.from_time_ms)
    return -1 if found is None else found


def history_start(request: JobRequest) -> int | None:
    """Return the offset after which a history's changes are requested, -1 for all of them, or None
    if the history starts at a time.
    """
    if request.from_offset is not None:
        return request.from_offset - 1
    return -1 if request.since_ms is None else None


def _least(bounds: list[int | None]) -> int | None:
    return min((one for one in bounds if one is not None), default=None)


def starting_checkpoint(export: Export) -> StartingCheckpoint | None:
    """Return the checkpoint that an answer starts from, or None if it starts at the beginning of
    the log.
    """
    one = export.begin
    return None if one is None else StartingCheckpoint(one.offset, one.file, one.state_hash)


def base_of(export: Export) -> Image:
    """Return the state that a fold of the export starts from.

    Raises CorruptExportError and its subclasses.
    """
    if export.begin is None:
        return Image()
    return _loaded(export.target, export.manifest.owner, export.begin)


def base_of_groups(export: Export, groups: Groups) -> Image:
    """Return the given groups of ``base_of``, without its state hash.

    A fold of some groups must start from these groups alone; otherwise a topic deleted before their
    first record would still occupy its name.
    """
    base = base_of(export)
    if export.begin is None or groups.all:
        return base
    draft = UnhashedDraft(Image())
    for one in by_group(base, groups.has, imported=bool(export.manifest.origin)):
        put(draft, one.body)
    draft.offset = base.offset
    return draft.snapshot()


def base_topic_id(export: Export, name: str) -> str | None:
    """Return the id of the topic with this name in ``base_of``, or None."""
    found = base_of(export).topic_ids.get(name)
    return None if found is None else found.hex()


@lru_cache(maxsize=1)
def _loaded(target: str, owner: tuple[str, int], one: Checkpoint) -> Image:
    """Load the image of a checkpoint. Images are immutable, so callers may share it."""
    return load_checkpoint(open_place(target), owner, one)


def require_order(request: JobRequest, end_offset: int, end_ms: int) -> None:
    """Raise ReplayError if a diff starts below offset 0 or after its end (both inclusive)."""
    if request.from_offset is not None:
        if request.from_offset < 0:
            raise ReplayError(f"there is no offset {request.from_offset}: logs begin at offset 0")
        if request.from_offset > end_offset:
            raise ReplayError(
                f"offset {request.from_offset} is after the end of the diff, offset {end_offset}"
            )
    elif request.from_time_ms is not None and (
        request.from_time_ms > end_ms and request.at_time_ms is not None
    ):
        raise ReplayError(
            f"{format_time(request.from_time_ms)} is after the end of the diff,"
            f" {format_time(end_ms)}"
        )
