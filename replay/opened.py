"""An export as one question reads it: the files that may hold records of interest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raftlog.metadata.versions import LATEST_METADATA_VERSION
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
from replay.request import JobRequest, format_time


@dataclass(frozen=True, slots=True)
class Export:
    """An export, as far as a question reaches into it.

    ``segments`` are those that may hold records of interest.

    ``target``: an absolute path, or a URI for fsspec. ``begin``: the state from which on records
    are of interest (replay/beginning.py); None: all of them are.
    """

    target: str
    manifest: Manifest
    segments: tuple[Segment, ...]
    at_offset: int | None = None
    begin: Checkpoint | None = None

    @property
    def begin_offset(self) -> int:
        """The first offset of interest."""
        return self.manifest.history_begin if self.begin is None else self.begin.offset + 1

    @property
    def buckets(self) -> int:
        """Number of buckets by group, of the ranges with buckets; 0: none, or by another rule than
        this build knows.
        """
        bucketing = self.manifest.bucketing
        if bucketing is None or bucketing.by != BY_GROUP or not bucketing.segments:
            return 0
        return bucketing.count

    def bucket_files(self, bucket: int | None = None) -> list[Bucket]:
        """Return the files of one bucket, or of all (None), in the ranges of the request."""
        ranges = {one.base_offset for one in self.segments}
        return [
            one
            for one in self.manifest.buckets
            if one.base_offset in ranges and bucket in {None, one.bucket}
        ]

    @property
    def record_count(self) -> int:
        """Number of records in ``segments`` from ``begin`` on: no question is about more."""
        return sum(
            one.last_offset + 1 - max(one.base_offset, self.begin_offset) for one in self.segments
        )


def open_export(request: JobRequest) -> Export:
    """Read the manifest and choose the files.

    Raises ExportError and its kinds, ReplayError if nothing is there to answer with.
    """
    target = request.export
    if not is_uri(target):
        target = str(Path(str(open_place(target))).absolute())
    manifest = read_manifest(target)
    require_known_level(manifest, target)
    everything = manifest.of_kind(RECORDS)
    if not everything:
        raise ReplayError(
            f"{target} is an export without records: run the export again once the log has some"
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
            raise ReplayError(
                f"{target} holds nothing from {asked} or before: it begins at {begin}"
            )
        at_offset = until if at_offset is None else min(at_offset, until)
    end_ms = everything[-1].max_timestamp_ms
    if request.since_ms is not None and request.since_ms > end_ms:
        raise ReplayError(
            f"{target} holds nothing from {format_time(request.since_ms)} on: it ends at"
            f" {format_time(end_ms)}"
        )
    segments = tuple(
        segment for segment in everything if at_offset is None or segment.base_offset <= at_offset
    )
    return Export(target, manifest, segments, at_offset)


def require_known_level(manifest: Manifest, target: str) -> None:
    """Records of a later metadata.version may mean what this build does not know.

    Raises ReplayError.
    """
    level = manifest.metadata_version or 0
    if level > LATEST_METADATA_VERSION:
        raise ReplayError(
            f"{target} was exported at metadata.version {level}, and this build knows up to"
            f" {LATEST_METADATA_VERSION}: use a newer raftlog"
        )


def require_whole_history(export: Export) -> None:
    """A fold needs every record from the first. Raises ReplayError."""
    if export.manifest.history_begin > 0 and export.manifest.state_from is None:
        raise ReplayError(
            f"{export.target} begins at offset {export.manifest.history_begin}: the state cannot be"
            " folded without what came before"
        )
