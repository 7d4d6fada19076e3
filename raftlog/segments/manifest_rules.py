"""Which manifests count: what one may say of its log, its ranges and its files."""

from __future__ import annotations

from itertools import pairwise

from raftlog.quorum_time import MAX_MS
from raftlog.segments.errors import (
    CorruptExportError,
    ExportError,
    ExportGapError,
    UnsupportedExportError,
)
from raftlog.segments.manifest_model import (
    KINDS,
    MANIFEST_NAME,
    ORIGINS,
    RECORDS,
    Manifest,
    is_ours,
)


def check_fields(manifest: Manifest, path: str) -> None:
    """What each field may say. Raises CorruptExportError, UnsupportedExportError."""
    if manifest.format_version < 1:
        raise CorruptExportError(
            f"{path} is corrupt: format_version is {manifest.format_version}", file=MANIFEST_NAME
        )
    if manifest.history_begin < 0:
        raise CorruptExportError(
            f"{path} is corrupt: history_begin is {manifest.history_begin}", file=MANIFEST_NAME
        )
    if manifest.origin not in ORIGINS:
        raise UnsupportedExportError(
            f"{path} is of a log of {manifest.origin!r}, which this build does not know: use a"
            " newer raftlog"
        )
    times = [(one.file, one.min_timestamp_ms) for one in manifest.segments]
    times += [(one.file, one.max_timestamp_ms) for one in manifest.segments]
    times += [(one.file, one.timestamp_ms) for one in manifest.checkpoints]
    for file, time_ms in times:
        if not 0 <= time_ms <= MAX_MS:
            raise CorruptExportError(
                f"{path} is corrupt: it names {time_ms} ms as a time of {file}, and no clock says"
                " that",
                file=MANIFEST_NAME,
            )
    for name in ("state_from", "differs_from"):
        if (value := getattr(manifest, name)) is not None and not manifest.origin:
            raise CorruptExportError(
                f"{path} is corrupt: it has {name} {value}, and only the log of another system"
                " does",
                file=MANIFEST_NAME,
            )


def check_ranges(manifest: Manifest, path: str) -> None:
    """Every kind covers history_begin to the end without a gap and without an overlap.

    Raises ExportError or one of its kinds.
    """
    for segment in manifest.segments:
        if segment.kind not in KINDS or not is_ours(segment.file):
            raise CorruptExportError(
                f"{path} names {segment.file} of kind {segment.kind}", file=MANIFEST_NAME
            )
    others = (manifest.checkpoints, manifest.buckets, manifest.retired)
    for file in (one.file for some in others for one in some):
        if not is_ours(file):
            raise CorruptExportError(f"{path} names {file}", file=MANIFEST_NAME)
    _check_buckets(manifest, path)
    offsets = [one.offset for one in manifest.checkpoints]
    if offsets != sorted(set(offsets)) or not all(
        manifest.history_begin <= offset < manifest.end_offset for offset in offsets
    ):
        raise CorruptExportError(
            f"{path} names checkpoints that are not in order, or not of its offsets",
            file=MANIFEST_NAME,
        )
    for kind in KINDS:
        segments = manifest.of_kind(kind)
        if segments and segments[0].base_offset != manifest.history_begin:
            raise ExportGapError(
                f"{path}: history begins at {manifest.history_begin}, {segments[0].describe()}"
                " does not"
            )
        for left, right in pairwise(segments):
            if right.base_offset != left.last_offset + 1:
                what = "a gap" if right.base_offset > left.last_offset else "an overlap"
                raise ExportGapError(
                    f"{path}: {what} between {left.describe()} and {right.describe()}"
                )
        end = segments[-1].last_offset + 1 if segments else manifest.history_begin
        if end != manifest.end_offset:
            raise ExportGapError(
                f"{path}: {kind} files end before offset {end}, the others before"
                f" {manifest.end_offset}"
            )
    if manifest.high_watermark < manifest.end_offset:
        raise ExportError(
            f"{path}: exported up to {manifest.end_offset}, above the high watermark"
            f" {manifest.high_watermark}"
        )


def _check_buckets(manifest: Manifest, path: str) -> None:
    """Each range that has buckets is one of the records', and has all of them."""
    if manifest.bucketing is None:
        return
    ranges = {(one.base_offset, one.last_offset) for one in manifest.of_kind(RECORDS)}
    found: dict[tuple[int, int], list[int]] = {}
    for one in manifest.buckets:
        found.setdefault((one.base_offset, one.last_offset), []).append(one.bucket)
    count = manifest.bucketing.count
    for span, buckets in found.items():
        if span not in ranges or len(buckets) != count or buckets != list(range(len(buckets))):
            raise CorruptExportError(
                f"{path} names buckets {buckets} of offsets {span[0]} to {span[1]}, of"
                f" {count} that there must be of a range of records",
                file=MANIFEST_NAME,
            )
