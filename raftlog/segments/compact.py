"""Compaction of an export: small files, which slow readers down, are merged into large ones.

Offsets, bytes and rows stay the same. A merged pair of files is made from the raw segments, and
replaces the small ones in the manifest at once; the small ones are kept for a while as *retired*,
for active readers. The manifest also lists unfinished files in advance, so that after a crash the
next writer knows which files it may remove.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from raftlog.segments.manifest import Bucketing, Manifest, Retired, Segment
from raftlog.segments.range_checks import check_segment
from raftlog.segments.raw import RawHeader, read_headed
from raftlog.segments.writer import ExportWriter, OpenPair, raw_name, records_name


class Pair(NamedTuple):
    """The two files of one range of offsets."""

    raw: Segment
    records: Segment


def compact(writer: ExportWriter, *, at_least: int = 2) -> int:
    """Merge adjacent small files, at least ``at_least`` ranges into one. Return by how much the
    number of ranges has decreased.

    A range is small if it is below half of the writer's limits, and a merged one stays within them,
    so that a record is not rewritten again and again. Every appended record must have been
    published. Raises ExportError and its subclasses: damaged files are not merged.
    """
    merged = 0
    for group in plan(writer.manifest, writer.max_records, writer.max_bytes):
        if len(group) >= at_least:
            _merge(writer, group)
            merged += len(group) - 1
    return merged


def plan(manifest: Manifest, max_records: int, max_bytes: int) -> Iterator[list[Pair]]:
    """Yield the groups of adjacent small ranges that fit into one range, by offset. A range's size
    is that of its raw segment.
    """
    group: list[Pair] = []
    records = size = 0
    for pair in _pairs(manifest):
        small = (
            pair is not None
            and pair.raw.records * 2 <= max_records
            and pair.raw.bytes * 2 <= max_bytes
        )
        if (
            pair is None
            or not small
            or records + pair.raw.records > max_records
            or size + pair.raw.bytes > max_bytes
        ):
            if len(group) > 1:
                yield group
            group, records, size = [], 0, 0
        if pair is not None and small:
            group.append(pair)
            records, size = records + pair.raw.records, size + pair.raw.bytes
    if len(group) > 1:
        yield group


def _pairs(manifest: Manifest) -> Iterator[Pair | None]:
    """Yield the ranges that have equal bounds in both forms, as this program writes them; None for
    any other raw segment.
    """
    written = {(one.base_offset, one.last_offset): one for one in manifest.of_kind("records")}
    for raw in manifest.of_kind("raw"):
        records = written.get((raw.base_offset, raw.last_offset))
        yield None if records is None else Pair(raw, records)


def _merge(writer: ExportWriter, group: Sequence[Pair]) -> None:
    place, manifest = writer.place, writer.manifest
    first, last = group[0].raw.base_offset, group[-1].raw.last_offset
    made = [
        Retired(file=name, since_ms=0)
        for name in (raw_name(first, last), records_name(first, last))
    ]
    writer.amend(retired=(*manifest.retired, *made))
    pair = OpenPair(
        place, RawHeader(manifest.cluster_id, manifest.generation, first), whole_name=True
    )
    try:
        for raw, _ in group:
            check_segment(place, raw, manifest.cluster_id, manifest.generation)
            for found in read_headed(place, raw):
                pair.append(*found)
        new = pair.finish()
    except BaseException:
        pair.abandon()
        raise
    old = {segment.file for one in group for segment in one}
    bucketing, old_buckets = _without(manifest.bucketing, first, last)
    kept = [segment for segment in manifest.segments if segment.file not in old]
    # At the position of the first merged segment: the manifest is in offset order.
    at = next(index for index, segment in enumerate(manifest.segments) if segment.file in old)
    retired = [Retired(file=name, since_ms=writer.now_ms()) for name in sorted(old | old_buckets)]
    writer.amend(
        segments=(*kept[:at], *new, *kept[at:]),
        bucketing=bucketing,
        retired=(*manifest.retired, *retired),
    )


def _without(
    bucketing: Bucketing | None, first: int, last: int
) -> tuple[Bucketing | None, set[str]]:
    """Return the buckets outside a range of offsets, and the files of the dropped ones.

    A range that one writer considered large, and gave buckets, may be small for another writer.
    """
    if bucketing is None:
        return None, set()
    gone = {one.file for one in bucketing.segments if first <= one.base_offset <= last}
    left = tuple(one for one in bucketing.segments if one.file not in gone)
    return replace(bucketing, segments=left), gone
