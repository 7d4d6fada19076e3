"""Verification names every flipped byte, and missing, foreign and newer files."""

import json
import pickle
import shutil
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from exports import flipped, publish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_history import LogHistory
from msgspec.structs import replace

from raftlog.ops.logs import ExportLog, chunks
from raftlog.segments.errors import (
    CorruptExportError,
    ExportError,
    ExportGapError,
    ExportMismatchError,
    UnsupportedExportError,
)
from raftlog.segments.export import export
from raftlog.segments.manifest import MANIFEST_NAME, RAW, RECORDS, read_manifest
from raftlog.segments.raw import read_batches
from raftlog.segments.verify import verify_export


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits, so two segments of each kind. Not to be modified: take a copy."""
    directory = tmp_path_factory.mktemp("export")
    history = LogHistory(8).run(60)
    export(history, directory)
    export(history.run(120), directory)
    return directory


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_sound_export_passes(exported: Path) -> None:
    seen: list[str] = []
    manifest = verify_export(exported, lambda segment: seen.append(segment.file))
    assert seen == [segment.file for segment in manifest.segments]
    assert len(seen) == 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(which=st.integers(0, 3), position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_byte_is_reported(
    exported: Path, which: int, position: float, bit: int
) -> None:
    segment = read_manifest(exported).segments[which]
    damage = pytest.raises((CorruptExportError, ExportMismatchError))
    with flipped(exported / segment.file, position, bit), damage as caught:
        verify_export(exported)
    named = f"{segment.file} (offsets {segment.base_offset} to {segment.last_offset})"
    assert named in str(caught.value)


def test_any_flipped_byte_of_the_manifest_is_detected(copy: Path) -> None:
    path = copy / MANIFEST_NAME
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 7
        path.write_bytes(bad)
        with pytest.raises(ExportError, match=r"manifest\.json"):
            verify_export(copy)


def test_raw_segment_shows_damage_by_itself(copy: Path) -> None:
    path = copy / read_manifest(copy).of_kind(RAW)[0].file
    good = path.read_bytes()
    assert b"".join(read_batches(path)) in good
    for position in range(0, len(good), 29):
        bad = bytearray(good)
        bad[position] ^= 4
        path.write_bytes(bad)
        with pytest.raises(CorruptExportError, match=r"corrupt|format version"):
            list(read_batches(path))
    for size in range(0, len(good), 37):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptExportError):
            list(read_batches(path))
    path.write_bytes(good + b"x")
    with pytest.raises(CorruptExportError):
        list(read_batches(path))


def test_raw_segment_names_the_first_bad_offset(copy: Path) -> None:
    path = copy / read_manifest(copy).of_kind(RAW)[0].file
    batches = list(read_batches(path))
    data = bytearray(path.read_bytes())
    data[data.index(batches[20]) + 30] ^= 1
    path.write_bytes(data)
    reader = read_batches(path)
    assert list(islice(reader, 20)) == batches[:20]
    with pytest.raises(CorruptExportError, match="corrupt from offset") as caught:
        next(reader)
    assert caught.value.base_offset >= 20


def test_missing_or_truncated_file_is_reported(copy: Path) -> None:
    segment = read_manifest(copy).of_kind(RECORDS)[1]
    path = copy / segment.file
    path.write_bytes(path.read_bytes()[:-10])
    size = f"{segment.file}.* expected {segment.bytes} bytes"
    with pytest.raises(CorruptExportError, match=size):
        verify_export(copy)
    path.unlink()
    with pytest.raises(CorruptExportError, match=f"{segment.file}.*is missing"):
        verify_export(copy)


@pytest.mark.parametrize("kind", [RAW, RECORDS])
def test_file_of_another_cluster_is_reported(copy: Path, tmp_path: Path, kind: str) -> None:
    other = LogHistory(8)
    other.cluster_id = "another-cluster"
    export(other.run(60), tmp_path / "other")
    foreign = read_manifest(tmp_path / "other").of_kind(kind)[0]
    segment = read_manifest(copy).of_kind(kind)[0]
    shutil.copy(tmp_path / "other" / foreign.file, copy / segment.file)
    told = f"{segment.file}.*belongs to cluster another-cluster"
    with pytest.raises(ExportMismatchError, match=told):
        verify_export(copy)


@pytest.mark.parametrize(("shift", "what"), [(5, "a gap"), (-5, "an overlap")])
def test_gap_and_overlap_in_the_manifest_are_reported(copy: Path, shift: int, what: str) -> None:
    *rest, last = read_manifest(copy).segments
    moved = replace(last, base_offset=last.base_offset + shift)
    publish(copy, segments=(*rest, moved))
    told = f"{what} between .*offsets {moved.base_offset} to {moved.last_offset}"
    with pytest.raises(ExportGapError, match=told):
        verify_export(copy)


def test_kind_that_ends_early_is_reported(copy: Path) -> None:
    manifest = read_manifest(copy)
    publish(copy, segments=(*manifest.segments[:2], manifest.segments[3]))
    with pytest.raises(ExportGapError, match="raw files end before offset"):
        read_manifest(copy)


def test_manifest_may_not_point_outside(copy: Path) -> None:
    manifest = read_manifest(copy)
    outside = replace(manifest.segments[0], file="../../etc/passwd")
    publish(copy, segments=(outside, *manifest.segments[1:]))
    with pytest.raises(CorruptExportError, match="etc/passwd"):
        read_manifest(copy)


def test_newer_format_is_reported_before_anything_else(copy: Path) -> None:
    path = copy / MANIFEST_NAME
    document = json.loads(path.read_bytes()) | {"format_version": 2, "checksum": "of another rule"}
    path.write_bytes(msgspec.json.encode(document))
    told = "format version 2, but this build reads up to 1"
    with pytest.raises(UnsupportedExportError, match=told):
        read_manifest(copy)


def test_directory_without_a_manifest_is_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is not an export: it contains no manifest\.json"):
        read_manifest(tmp_path)
    with pytest.raises(ExportError, match="nowhere is not an export: it does not exist"):
        read_manifest(tmp_path / "nowhere")


def test_swapped_raw_segments_are_not_read(copy: Path) -> None:
    """Each file is sound by itself: only the manifest says where it belongs."""
    manifest = read_manifest(copy)
    one, two = manifest.of_kind(RAW)
    first, second = copy / one.file, copy / two.file
    content = first.read_bytes(), second.read_bytes()
    assert list(chunks(ExportLog(copy), manifest.end_offset))
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    with pytest.raises(CorruptExportError, match=f"{one.file}.* found {two.base_offset}$"):
        list(chunks(ExportLog(copy), manifest.end_offset))
    second.write_bytes(content[1])
    first.write_bytes(content[0] + b"more")
    with pytest.raises(CorruptExportError, match="its footer does not match"):
        list(chunks(ExportLog(copy), manifest.end_offset))
    first.write_bytes(content[0])
    publish(copy, cluster_id="another")
    with pytest.raises(ExportMismatchError, match=f"{one.file}.* belongs to cluster"):
        list(chunks(ExportLog(copy), manifest.end_offset))


def test_corruption_error_keeps_its_type_across_processes() -> None:
    one = CorruptExportError("x is corrupt", file="x", base_offset=3, last_offset=9)
    other = pickle.loads(pickle.dumps(one))
    assert (type(other), str(other), vars(other)) == (type(one), str(one), vars(one))
