"""Exports at a URI."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import fsspec
import pytest
from exports import Crash, written
from log_history import CLUSTER_ID, LogHistory

from raftlog.ops.logs import ExportLog
from raftlog.segments.compact import compact
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.export import export
from raftlog.segments.files import LocalPlace, is_uri, open_place
from raftlog.segments.manifest import MANIFEST_NAME, RAW, read_manifest
from raftlog.segments.raw import read_segment
from raftlog.segments.remote import LOCK_EXPIRES_S, LOCK_NAME, RemotePlace, open_remote
from raftlog.segments.verify import checkpoint_faults, verify_export
from raftlog.segments.writer import ExportWriter

URI = "memory://bucket/exported"
Store: TypeAlias = fsspec.AbstractFileSystem


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """The store, empty before and after."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file_system = fsspec.filesystem("memory")
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]
    yield file_system
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]


def objects(file_system: Store) -> set[str]:
    return {path.removeprefix("/bucket/exported/") for path in file_system.find("/bucket/exported")}


def test_remote_export_has_the_same_files_as_a_directory(memory: Store, tmp_path: Path) -> None:
    history = LogHistory(71).run(150)
    for target in (URI, tmp_path):
        export(history, target)
    history.run(300)
    for target in (URI, tmp_path):
        assert export(history, target).end_offset == history.end_offset
    there, here = verify_export(URI), verify_export(tmp_path)
    assert there.segments == here.segments
    assert objects(memory) == {MANIFEST_NAME, *(segment.file for segment in there.segments)}
    for segment in here.segments:
        assert (
            memory.cat_file(f"/bucket/exported/{segment.file}")
            == (tmp_path / segment.file).read_bytes()
        )
    found = b"".join(b"".join(read_segment(URI, segment)) for segment in there.of_kind(RAW))
    assert found == b"".join(history.batches) == ExportLog(URI).read(0, 1 << 30)


def test_uris_are_distinguished_from_paths(tmp_path: Path) -> None:
    assert [is_uri(text) for text in ("s3://b/x", "memory:x", "a/b", "file:///x", "/2026-11-21T10:00")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    place = open_place(f"file://{tmp_path}/x")
    assert isinstance(place, LocalPlace)
    assert str(place) == f"{tmp_path}/x"
    with pytest.raises(
        ExportError, match="nonsense://x cannot be opened: Protocol not known: nonsense"
    ):
        open_place("nonsense://x")


@pytest.mark.parametrize("step", ["put", "replace"])
def test_crash_leaves_the_old_export(
    memory: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    history = LogHistory(72).run(80)
    export(history, URI)
    before = memory.cat_file(f"/bucket/exported/{MANIFEST_NAME}")
    real = RemotePlace.put

    def crashing(self: RemotePlace, *arguments: object) -> None:
        if step == "put" and str(arguments[1]).startswith(RAW):
            real(self, *arguments)  # type: ignore[arg-type]
        else:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RemotePlace, step, crashing)
        # A dead process tells nobody.
        patch.setattr(RemotePlace, "end", lambda self: None)
        with pytest.raises(Crash):
            export(history.run(160), URI)
    assert memory.cat_file(f"/bucket/exported/{MANIFEST_NAME}") == before
    assert len(objects(memory)) > 3 + 1
    verify_export(URI)

    # This process runs, so its lock counts.
    with pytest.raises(ExportError, match="another export is writing"):
        export(history, URI)
    lock = json.loads(memory.cat_file(f"/bucket/exported/{LOCK_NAME}"))
    memory.pipe_file(
        f"/bucket/exported/{LOCK_NAME}", json.dumps(lock | {"pid": 2**22 + 1}).encode()
    )
    export(history.run(200), URI)
    named = {segment.file for segment in verify_export(URI).segments}
    assert objects(memory) == {MANIFEST_NAME, *named}


def test_remote_export_admits_one_writer(memory: Store) -> None:
    history = LogHistory(73).run(30)
    now = [1000.0]

    def place() -> RemotePlace:
        return RemotePlace(URI, memory, "/bucket/exported", clock=lambda: now[0])

    first = ExportWriter(place(), CLUSTER_ID, 0)
    first.append_chunk(history.batches[0])
    with pytest.raises(
        ExportError, match=r"another export is writing to memory://.*: process \d+ on .*5 minutes"
    ):
        ExportWriter(place(), CLUSTER_ID, 0)
    now[0] += LOCK_EXPIRES_S - 1
    first.commit(history.end_offset)
    now[0] += LOCK_EXPIRES_S - 1
    with pytest.raises(ExportError, match="another export is writing"):
        ExportWriter(place(), CLUSTER_ID, 0)
    now[0] += 2
    # The first one sleeps, and counts as dead: when it wakes up it must not publish.
    with ExportWriter(place(), CLUSTER_ID, 0) as second:
        first.append_chunk(history.batches[1])
        with pytest.raises(ExportError, match="another export has started to write to"):
            first.commit(history.end_offset)
        first.close()
        second.append_chunk(b"".join(history.batches[1:]))
        second.commit(history.end_offset)
    assert verify_export(URI).end_offset == history.end_offset
    assert LOCK_NAME not in objects(memory)


def test_directory_that_is_not_an_export_is_left_alone(memory: Store) -> None:
    memory.pipe_file("/bucket/exported/thesis.txt", b"years of work")
    with pytest.raises(ExportError, match=r"not empty \(thesis\.txt\) and contains no manifest"):
        ExportWriter(URI, CLUSTER_ID, 0)
    with pytest.raises(ExportError, match="memory://nowhere is not an export"):
        read_manifest("memory://nowhere")


def test_damage_of_a_remote_export_is_reported(memory: Store) -> None:
    export(LogHistory(74).run(60), URI)
    raw, records = read_manifest(URI).segments
    path = f"/bucket/exported/{raw.file}"
    good = memory.cat_file(path)
    memory.pipe_file(path, good[:200] + bytes([good[200] ^ 1]) + good[201:])
    with pytest.raises(
        CorruptExportError, match=rf"{raw.file} \(offsets 0 to .* is corrupt: expected the SHA-256"
    ):
        verify_export(URI)
    memory.rm_file(path)
    with pytest.raises(CorruptExportError, match=f"{raw.file}.*is missing"):
        verify_export(URI)
    other = LogHistory(74)
    other.cluster_id = "another-cluster"
    export(other.run(60), "memory://other")
    foreign = read_manifest("memory://other").segments
    memory.pipe_file(path, memory.cat_file(f"/other/{foreign[0].file}"))
    with pytest.raises(ExportMismatchError, match="belongs to cluster another-cluster"):
        verify_export(URI)
    memory.pipe_file(path, good)
    memory.pipe_file(f"/bucket/exported/{records.file}", b"")
    with pytest.raises(CorruptExportError, match=r"expected \d+ bytes, found 0"):
        verify_export(URI)


class Refusing:
    """A store whose plugin raises its library's exceptions."""

    protocol = ("s3", "s3a")

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("Unable to locate credentials")

        return refuse


def test_directories_are_created_only_where_they_exist(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store would create a bucket for a mistyped name."""
    made: list[str] = []
    monkeypatch.setattr(type(memory), "makedirs", lambda self, path, exist_ok: made.append(path))
    export(LogHistory(76).run(30), URI)
    # fsspec's own upload asks for what is right above the object.
    assert "/bucket/exported" not in made
    monkeypatch.setattr(type(memory), "protocol", ("sftp", "ssh"))
    export(LogHistory(76).run(30), RemotePlace(URI, memory, "/home/exported"))
    assert "/home/exported" in made


def test_checkpoints_are_objects_too(memory: Store) -> None:
    history = LogHistory(77).run(300)
    export(history, URI, checkpoint_records=50)
    export(history.run(400), URI, checkpoint_records=50)
    manifest = verify_export(URI)
    assert len(manifest.checkpoints) >= 3
    assert {one.file for one in manifest.checkpoints} < objects(memory)
    place = open_place(URI)
    assert list(checkpoint_faults(place, manifest, manifest.end_offset - 1)) == []
    place.remove(manifest.checkpoints[0].file)
    (fault,) = checkpoint_faults(place, manifest, manifest.end_offset - 1)
    assert "it is missing" in fault.message


def test_small_objects_are_merged(memory: Store) -> None:
    history = LogHistory(77).run(100)
    written(history, URI, max_segment_records=20)
    with ExportWriter(URI, CLUSTER_ID, 0) as writer:
        assert compact(writer) >= 3
    manifest = verify_export(URI)
    assert len(manifest.segments) == 2
    assert ExportLog(URI).read(0, 1 << 30) == b"".join(history.batches)
    retired = {one.file for one in manifest.retired}
    assert objects(memory) == {
        MANIFEST_NAME,
        *(segment.file for segment in manifest.segments),
        *retired,
    }


def test_plugin_error_is_one_message() -> None:
    place = RemotePlace("s3://b/x", Refusing(), "b/x")
    with pytest.raises(
        ExportError, match=r"^cannot write to s3://b/x: RuntimeError: Unable to locate credentials$"
    ):
        ExportWriter(place, CLUSTER_ID, 0)
    with pytest.raises(
        ExportError, match=r"^cannot read s3://b/x/manifest\.json: RuntimeError: Unable to locate"
    ):
        read_manifest(place)


def test_truncated_upload_is_detected(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    history = LogHistory(75).run(40)
    monkeypatch.setattr(
        type(memory), "put_file", lambda self, local, path: self.pipe_file(path, b"x")
    )
    with pytest.raises(
        ExportError, match=r"the upload of raw/.* is incomplete: 1 of \d+ bytes arrived"
    ):
        export(history, open_remote(URI))
    assert read_manifest(URI).segments == ()
