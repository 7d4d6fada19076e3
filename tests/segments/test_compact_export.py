"""Merging the small files of an export."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.segments.compact import compact, plan
from raftlog.segments.errors import CorruptExportError, ExportError
from raftlog.segments.export import PublishPolicy, export, follow
from raftlog.segments.manifest import (
    KINDS,
    MANIFEST_NAME,
    RAW,
    RECORDS,
    Manifest,
    Retired,
    encode,
    read_manifest,
)
from raftlog.segments.raw import read_segment
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import KEEP_RETIRED_MS, ExportWriter, OpenPair


class Crash(BaseException):
    """The process has died."""


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(101).run(240)


@pytest.fixture(scope="module")
def made(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pairs of about twenty records. Not to be modified: take a copy."""
    directory = tmp_path_factory.mktemp("export")
    with ExportWriter(directory, CLUSTER_ID, 0, max_segment_records=20) as writer:
        writer.append_chunk(b"".join(history.batches))
        writer.commit(history.end_offset)
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
    raw = b"".join(
        data for segment in manifest.of_kind(RAW) for data in read_segment(directory, segment)
    )
    rows = [
        row
        for segment in manifest.of_kind(RECORDS)
        for row in pq.read_table(directory / segment.file).to_pylist()
    ]
    return raw, rows


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
    assert [one.file for one in manifest.segments] == [
        f"raw/{0:020d}-{last:020d}.rls", f"records/{0:020d}-{last:020d}.parquet",
    ]  # fmt: skip
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

    from raftlog.segments.files import LocalPlace

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
    path = exported / segment.file
    good = path.read_bytes()
    path.write_bytes(good[:-40] + bytes([good[-40] ^ 1]) + good[-39:])
    with (
        writer_at(exported) as writer,
        pytest.raises(CorruptExportError, match=f"{segment.file}.*is corrupt"),
    ):
        compact(writer)
    path.write_bytes(good)
    assert len(verify_export(exported).of_kind(RAW)) >= 8


def test_manifest_cannot_remove_files_of_others(exported: Path) -> None:
    manifest = read_manifest(exported)
    path = exported / MANIFEST_NAME
    path.write_bytes(
        encode(replace(manifest, retired=(Retired(file="../../home/thesis.txt", since_ms=0),)))
    )
    with pytest.raises(CorruptExportError, match=r"lists \.\./\.\./home"):
        read_manifest(exported)
    path.write_bytes(
        encode(replace(manifest, retired=(Retired(file=manifest.segments[0].file, since_ms=0),)))
    )
    with pytest.raises(ExportError, match="both as part of the export and as retired"):
        writer_at(exported)


def test_following_export_merges_accumulated_files(tmp_path: Path) -> None:
    history = LogHistory(102).run(90)

    class Source:
        cluster_id, generation, start_offset, at = CLUSTER_ID, 0, 0, 0
        connections = 1

        @property
        def high_watermark(self) -> int:
            return [*history.positions, history.end_offset][self.at]

        def read(self, offset: int, max_bytes: int) -> bytes:
            return history.batches[history.positions[offset]]

        def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
            self.at += 1
            return self.read(offset, max_bytes)

    source = Source()
    most: list[int] = []
    summary = follow(
        source,
        tmp_path,
        PublishPolicy(interval_s=0.5, compact_at=5),
        stop=lambda: source.at == len(history.batches),
        published=lambda manifest: most.append(len(manifest.of_kind(RAW))),
        clock=lambda: float(source.at),
    )
    assert (summary.records, summary.batches) == (history.end_offset, len(history.batches))
    assert max(most) <= 6 < len(most)
    assert content(tmp_path)[0] == b"".join(history.batches)
