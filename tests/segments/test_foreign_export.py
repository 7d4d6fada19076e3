"""An export that somebody else has made cannot have a writer touch anything outside of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.segments.compact import compact
from raftlog.segments.errors import CorruptExportError, ExportError
from raftlog.segments.export import export
from raftlog.segments.files import TEMP_PREFIX
from raftlog.segments.manifest import MANIFEST_NAME, RAW, RECORDS, Retired, encode, read_manifest
from raftlog.segments.verify import verify_export
from raftlog.segments.writer import ExportWriter


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Two ranges, beside a directory with files of others."""
    directory = tmp_path / "exported"
    history = LogHistory(5).run(60)
    with ExportWriter(directory, CLUSTER_ID, 0, max_segment_records=30) as writer:
        writer.append_chunk(b"".join(history.batches))
        writer.commit(history.end_offset)
    return directory


@pytest.fixture
def others(tmp_path: Path, exported: Path) -> Path:
    """What a user has elsewhere: files of another export, and a thesis."""
    directory = tmp_path / "others"
    directory.mkdir()
    for name in (f"{1000:020d}.rls", f"{TEMP_PREFIX}{7:020d}.rls", "thesis.txt"):
        (directory / name).write_text(name)
    return directory


def claim(exported: Path, file: str) -> None:
    """The manifest says that a file is to be removed."""
    manifest = replace(read_manifest(exported), retired=(Retired(file=file, since_ms=0),))
    (exported / MANIFEST_NAME).write_bytes(encode(manifest))


@pytest.mark.parametrize(
    "file",
    [MANIFEST_NAME, ".lock", "raw", "raw/thesis.txt", "mine/thesis.txt", "/etc/passwd", "../x", "raw/../raw/0.rls",
     f"raw/{0:020d}.rls/../../x", "raw/.lock", f"{RECORDS}/{TEMP_PREFIX}{0:020d}.parquet", "raw/" + "٠" * 20 + ".rls"],
)  # fmt: skip
def test_manifest_names_only_files_of_an_export(exported: Path, file: str) -> None:
    claim(exported, file)
    with pytest.raises(CorruptExportError, match="names "):
        read_manifest(exported)


def behind_link(exported: Path, others: Path) -> None:
    (exported / RAW).rename(exported.parent / "away")
    for path in (exported.parent / "away").iterdir():
        path.rename(others / path.name)
    (exported / RAW).symlink_to(others)


def test_writer_removes_nothing_behind_a_link(exported: Path, others: Path) -> None:
    """Neither what its own pattern takes for leftovers, nor what the manifest calls retired."""
    behind_link(exported, others)
    before = sorted(path.name for path in others.iterdir())
    verify_export(exported)
    with pytest.raises(ExportError, match="is a link, or behind one"):
        ExportWriter(exported, CLUSTER_ID, 0)
    claim(exported, f"{RAW}/{1000:020d}.rls")
    with pytest.raises(ExportError, match="is a link, or behind one"):
        ExportWriter(exported, CLUSTER_ID, 0)
    assert sorted(path.name for path in others.iterdir()) == before


def append(exported: Path) -> None:
    export(LogHistory(5).run(90), exported)


def merge(exported: Path) -> None:
    with ExportWriter(exported, CLUSTER_ID, 0) as writer:
        compact(writer)


@pytest.mark.parametrize("work", [append, merge])
def test_writer_writes_nothing_behind_a_link(
    exported: Path, others: Path, work: Callable[[Path], None]
) -> None:
    for path in others.iterdir():
        path.unlink()
    behind_link(exported, others)
    before = sorted(path.name for path in others.iterdir())
    with pytest.raises(ExportError, match="is a link, or behind one"):
        work(exported)
    assert sorted(path.name for path in others.iterdir()) == before


@pytest.mark.parametrize(
    "name", [f"{TEMP_PREFIX}{MANIFEST_NAME}", f"{RECORDS}/{TEMP_PREFIX}{60:020d}.parquet"]
)
def test_writer_does_not_write_through_a_link_at_a_temporary_name(
    exported: Path, others: Path, name: str
) -> None:
    end = read_manifest(exported).end_offset
    (exported / name.replace(f"{60:020d}", f"{end:020d}")).symlink_to(others / "thesis.txt")
    append(exported)
    assert (others / "thesis.txt").read_text() == "thesis.txt"
    assert verify_export(exported).end_offset > end


def test_lock_is_not_made_through_a_link(exported: Path, others: Path) -> None:
    (exported / ".lock").unlink()
    (exported / ".lock").symlink_to(others / "new")
    with pytest.raises(ExportError, match=r"cannot write to"):
        ExportWriter(exported, CLUSTER_ID, 0)
    assert not (others / "new").exists()
