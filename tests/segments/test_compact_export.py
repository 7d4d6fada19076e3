"""Merging the small files of an export."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from exports import Crash, flip, publish, written
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace
from test_follow_export import Growing

from raftlog.segments.compact import compact, plan
from raftlog.segments.errors import CorruptExportError, ExportError
from raftlog.segments.export import PublishPolicy, export, follow
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import KINDS, RAW, RECORDS, Manifest, Retired, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import KEEP_RETIRED_MS, ExportWriter, OpenPair


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(101).run(240)


@pytest.fixture(scope="module")
def made(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pairs of about twenty records. Not to be modified: take a copy."""
    directory = written(history, tmp_path_factory.mktemp("export"), max_segment_records=20)
    assert len(read_manifest(directory).of_kind(RAW)) >= 8
    return directory


@pytest.fixture
def exported(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "exported"))


def writer_at(
    directory: Path, *, now_ms: int = 1_000_000_000, max_records: int = 10_000
) -> ExportWriter:
    return ExportWriter(
        directory, CLUSTER_ID, 0, max_segment_records=max_records, clock=lambda: now_ms / 1000
    )


def content(directory: Path) -> tuple[bytes, list[dict[str, object]]]:
    """Return all that an export holds, by its manifest only."""
    manifest = verify_export(directory)
    segments = manifest.of_kind(RAW)
    raw = b"".join(data for one in segments for data in read_segment(directory, one))
    files = [directory / one.file for one in manifest.of_kind(RECORDS)]
    return raw, [row for file in files for row in pq.read_table(file).to_pylist()]


def on_disk(directory: Path) -> set[str]:
    return {f"{kind}/{path.name}" for kind in KINDS for path in (directory / kind).iterdir()}


def named(manifest: Manifest) -> set[str]:
    return {segment.file for segment in manifest.segments}


def test_merged_pair_has_the_same_records(history: LogHistory, exported: Path) -> None:
    before, files = content(exported), named(read_manifest(exported))
    with writer_at(exported) as writer:
        assert compact(writer) == len(files) // 2 - 1
    manifest = read_manifest(exported)
    last = history.end_offset - 1
    span = f"{0:020d}-{last:020d}"
    names = [one.file for one in manifest.segments]
    assert names == [f"raw/{span}.rls", f"records/{span}.parquet"]
    assert manifest.segments[0].batches == len(history.batches)
    assert content(exported) == before
    # The small ones are there for readers under way, an hour long.
    assert {one.file for one in manifest.retired} == files
    assert on_disk(exported) == files | named(manifest)
    with writer_at(exported, now_ms=1_000_000_000 + KEEP_RETIRED_MS - 1) as writer:
        assert len(writer.manifest.retired) == len(files)
    with writer_at(exported, now_ms=1_000_000_000 + KEEP_RETIRED_MS) as writer:
        writer.commit(history.end_offset)
    assert (read_manifest(exported).retired, on_disk(exported)) == ((), named(manifest))
    # And it goes on where it ended.
    grown = LogHistory(101).run(240).run(300)
    export(grown, exported)
    assert content(exported)[0] == b"".join(grown.batches)


def test_large_files_are_left_alone_and_merged_ones_stay_within_the_bounds(exported: Path) -> None:
    manifest = read_manifest(exported)
    for max_records in (30, 60, 100, 5000):
        groups = list(plan(manifest, max_records, 1 << 30))
        for group in groups:
            assert sum(pair.raw.records for pair in group) <= max_records
            assert all(pair.raw.records * 2 <= max_records for pair in group)
            assert [pair.raw.last_offset + 1 for pair in group[:-1]] == [
                pair.raw.base_offset for pair in group[1:]
            ]
    assert list(plan(manifest, 30, 1 << 30)) == []
    sizes = [pair.raw.bytes for pair in next(iter(plan(manifest, 5000, 1 << 30)))]
    assert list(plan(manifest, 5000, max(sizes) * 2 - 2)) != list(plan(manifest, 5000, 1 << 30))
    with writer_at(exported, max_records=60) as writer:
        assert compact(writer, at_least=50) == 0
        compact(writer)
        sizes = [segment.records for segment in writer.manifest.of_kind(RAW)]
        assert all(size <= 60 for size in sizes)
        # Once more finds nothing: no record is rewritten again and again.
        assert compact(writer) == 0


def test_range_that_differs_between_the_forms_is_left_alone(exported: Path) -> None:
    manifest = read_manifest(exported)
    first, second = manifest.of_kind(RECORDS)[2:4]
    joined = replace(first, last_offset=second.last_offset)
    segments = tuple(joined if one == first else one for one in manifest.segments if one != second)
    groups = list(plan(replace(manifest, segments=segments), 10_000, 1 << 30))
    assert [len(group) for group in groups] == [2, len(manifest.of_kind(RAW)) - 4]


@pytest.mark.parametrize("call", range(4))
def test_crash_at_any_step_loses_nothing_and_leaves_nothing(
    history: LogHistory, exported: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Two manifests and two files are written: the process dies after each of them in turn."""
    before, calls = content(exported), 0

    def counted(real: object) -> object:
        def step(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls > call + 1:
                raise Crash
            return real(*arguments)  # type: ignore[operator]

        return step

    with monkeypatch.context() as patch:
        for name in ("put", "replace"):
            patch.setattr(LocalPlace, name, counted(getattr(LocalPlace, name)))
        # A dead process tidies nothing up.
        patch.setattr(OpenPair, "abandon", lambda self: None)
        with writer_at(exported) as writer:
            if call < 3:
                with pytest.raises(Crash):
                    compact(writer)
            else:
                compact(writer)
    assert content(exported) == before
    with writer_at(exported) as writer:
        compact(writer)
    assert content(exported) == before
    with writer_at(exported, now_ms=2_000_000_000) as writer:
        writer.commit(history.end_offset)
    assert on_disk(exported) == named(read_manifest(exported))
    assert content(exported) == before


def test_damaged_files_are_not_merged(exported: Path) -> None:
    segment = read_manifest(exported).of_kind(RAW)[3]
    good = (exported / segment.file).read_bytes()
    flip(exported / segment.file, len(good) - 40)
    told = pytest.raises(CorruptExportError, match=f"{segment.file}.*is corrupt")
    with writer_at(exported) as writer, told:
        compact(writer)
    (exported / segment.file).write_bytes(good)
    assert len(verify_export(exported).of_kind(RAW)) >= 8


def test_file_of_the_export_cannot_be_retired(exported: Path) -> None:
    (first, *_) = read_manifest(exported).segments
    publish(exported, retired=(Retired(file=first.file, since_ms=0),))
    with pytest.raises(ExportError, match="both as part of the export and as retired"):
        writer_at(exported)


def test_following_export_merges_accumulated_files(tmp_path: Path) -> None:
    source = Growing(LogHistory(102).run(90), batches=1)
    most: list[int] = []
    summary = follow(
        source,
        tmp_path,
        PublishPolicy(interval_s=0.5, compact_at=5),
        stop=source.over,
        published=lambda manifest: most.append(len(manifest.of_kind(RAW))),
        clock=source.clock,
    )
    batches = source.history.batches
    assert (summary.records, summary.batches) == (source.history.end_offset, len(batches))
    assert max(most) <= 6 < len(most)
    assert content(tmp_path)[0] == b"".join(batches)
