"""Damage and misuse are reported in one line that names the file, never by a wrong answer. Exit codes: 2, not
an export for this build; 3, not as written; 6, disk error.
"""

import errno
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from asking import ask, opened
from exports import fit, flip, flip_column, written
from log_history import CLUSTER_ID, LogHistory
from test_export_seam import files_of_at_most

from raftlog.cli.exits import Exit
from raftlog.cli.main import main
from raftlog.cli.streams import UNREAD
from raftlog.errors import RaftlogError
from raftlog.metadata.image import FoldError
from raftlog.segments.errors import CorruptExportError, ExportMismatchError
from raftlog.segments.export import export
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import MANIFEST_NAME, RAW, RECORDS, Segment, read_manifest
from raftlog.segments.writer import ExportWriter
from replay.errors import ReplayError, exit_code, explain
from replay.report import page
from replay.request import LOCAL_JOBS

TOPIC = ("topic", "topic-1")
OF_RAW: dict[str, tuple[str, ...]] = {
    "history": ("history", *TOPIC, "--export", "{}"),
    "log dump": ("log", "dump", "--export", "{}"),
    "image show": ("log", "image", "--export", "{}"),
}
"""Commands that read the raw segments."""
_ASKED = {"history": TOPIC}
OF_PARQUET: dict[str, tuple[str, ...]] = {
    f"replay {job}": ("replay", job, "{}", *_ASKED.get(job, ()), "--engine", "local")
    for job in LOCAL_JOBS
    if job not in ("report", "verify")
}
OF_BOTH: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "{}"),
    "replay verify": ("replay", "verify", "{}", "--engine", "local"),
}
COMMANDS = OF_RAW | OF_PARQUET | OF_BOTH

Harms = Callable[[Path], None]


def second(directory: Path, kind: str = RECORDS) -> Segment:
    """The second segment: the first one is often read separately."""
    return read_manifest(directory).of_kind(kind)[1]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def of_second(kind: str, harm: Harms) -> Harms:
    return lambda directory: harm(directory / second(directory, kind).file)


def manifest_with(**values: Any) -> Harms:
    def harm(directory: Path) -> None:
        path = directory / MANIFEST_NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return harm


def empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


NOTHING_WRONG, USAGE, FOUND, DISK = 0, 2, 3, 6
HARMS: dict[str, tuple[Harms, int, dict[str, tuple[str, ...]]]] = {
    "nothing": (lambda _: None, NOTHING_WRONG, COMMANDS),
    "no directory": (shutil.rmtree, USAGE, COMMANDS),
    "an empty directory": (empty, USAGE, COMMANDS),
    "no manifest": (lambda path: (path / MANIFEST_NAME).unlink(), USAGE, COMMANDS),
    "a newer format": (manifest_with(format_version=99), USAGE, COMMANDS),
    "another manifest": (manifest_with(cluster_id="another"), FOUND, COMMANDS),
    "half a manifest": (lambda path: cut(path / MANIFEST_NAME), FOUND, COMMANDS),
    "no Parquet file": (of_second(RECORDS, Path.unlink), FOUND, OF_PARQUET | OF_BOTH),
    "half a Parquet file": (of_second(RECORDS, cut), FOUND, OF_PARQUET | OF_BOTH),
    "a bit in Parquet": (of_second(RECORDS, flip), FOUND, OF_PARQUET | OF_BOTH),
    "no raw file": (of_second(RAW, Path.unlink), FOUND, OF_RAW | OF_BOTH),
    "half a raw file": (of_second(RAW, cut), FOUND, OF_RAW | OF_BOTH),
    "a bit in a raw file": (of_second(RAW, flip), FOUND, OF_RAW | OF_BOTH),
}
"""The exit code of each damage, with the commands that notice it; the others do not read that part.
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported")
    history = LogHistory(61, with_entries=False)
    export(history.run(100), directory)
    export(history.run(200), directory)
    return directory


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def code_of(command: tuple[str, ...], directory: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([word.replace("{}", str(directory)) for word in command])
    code = ended.value.code
    return 0 if code is None else int(code)


@pytest.mark.parametrize("harm", HARMS)
def test_exit_code_names_the_kind_of_damage(
    harm: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harms, code, commands = HARMS[harm]
    harms(copy)
    found = {}
    for name, command in COMMANDS.items():
        found[name] = code_of(command, copy)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        if found[name] in (USAGE, DISK):
            assert len(said.err.splitlines()) == 1
    assert found == {name: code if name in commands else NOTHING_WRONG for name in COMMANDS}


class Broken(io.BytesIO):
    """A file on a failing disk."""

    def _fail(self, *_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read = readinto = read1 = _fail


@pytest.mark.parametrize("suffix", [".parquet", ".rls", MANIFEST_NAME])
def test_failing_disk_is_not_reported_as_damage(
    suffix: str, exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = LocalPlace.open

    def fails(self: LocalPlace, name: str) -> BinaryIO:
        file = opened(self, name)
        if not name.endswith(suffix):
            return file
        with file:
            return Broken(file.read())

    monkeypatch.setattr(LocalPlace, "open", fails)
    of = {".parquet": OF_PARQUET | OF_BOTH, ".rls": OF_RAW | OF_BOTH}.get(suffix, COMMANDS)
    found, said = {}, []
    for name, command in COMMANDS.items():
        found[name] = code_of(command, exported)
        said += capsys.readouterr().err.splitlines()
    assert found == {name: DISK if name in of else NOTHING_WRONG for name in COMMANDS}
    assert len(said) == len(of)
    assert all("Input/output error" in line and "corrupt" not in line for line in said)


def run(command: str, exported: Path, stdout: Any) -> subprocess.CompletedProcess[str]:
    words = [word.replace("{}", str(exported)) for word in COMMANDS[command]]
    program = str(Path(sys.executable).with_name("raftlog"))
    done = subprocess.run(
        [program, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=90
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("command", ["verify", "history", "replay audit"])
def test_unwritable_output_is_reported_as_a_disk_error(command: str, exported: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(command, exported, full)
    assert done.returncode == DISK
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("command", ["verify", "log dump", "replay summary"])
def test_unread_output_is_neither_success_nor_a_refusal(command: str, exported: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(command, exported, writing)
    os.close(writing)
    assert done.returncode == UNREAD


def test_report_on_a_full_disk_is_a_disk_error(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    with files_of_at_most(100), pytest.raises(RaftlogError, match="File too large") as caught:
        page.write("x" * 1000, tmp_path / "report.html")
    assert exit_code(caught.value) == DISK
    assert list(tmp_path.iterdir()) == []


def readable(error: Exception) -> str:
    text = str(error)
    assert len(text.splitlines()) == 1
    for noise in ("Traceback", "py4j", "org.apache", "\tat "):
        assert noise not in text
    return text


@pytest.mark.parametrize(
    ("harm", "why"), [(flip, "is corrupt: expected the SHA-256"), (Path.unlink, "is missing")]
)
def test_damaged_file_is_named_with_its_offsets(copy: Path, harm: Harms, why: str) -> None:
    segment = second(copy)
    harm(copy / segment.file)
    with pytest.raises(CorruptExportError) as caught:
        ask("summary", copy)
    text = readable(caught.value)
    assert f"{segment.file} (offsets {segment.base_offset} to {segment.last_offset})" in text
    assert why in text
    before = segment.base_offset - 1
    assert ask("state", copy, at_offset=before).point.offset == before, "it is not needed for that"


@pytest.mark.parametrize("engine", ["this process", "Spark"])
def test_page_changed_after_the_check_fails_its_checksum(
    request: pytest.FixtureRequest, copy: Path, engine: str
) -> None:
    """The hash in the manifest is made to match, as if the byte had flipped between check and read."""
    segment = second(copy)
    flip_column(copy, segment, "body")
    fit(copy, segment)
    run = ask if engine == "this process" else request.getfixturevalue("replay")
    with pytest.raises(CorruptExportError) as caught:
        run("summary", copy)
    text = readable(caught.value)
    assert f"{segment.file} (offsets {segment.base_offset} to {segment.last_offset})" in text
    assert "checksum of a page does not match" in text


def test_file_of_another_cluster_is_reported(copy: Path, tmp_path: Path) -> None:
    other = LogHistory(61)
    other.cluster_id = "another-cluster"
    (foreign,) = read_manifest(written(other, tmp_path / "other")).of_kind(RECORDS)
    shutil.copy(tmp_path / "other" / foreign.file, copy / second(copy).file)
    with pytest.raises(
        ExportMismatchError,
        match=f"cluster another-cluster .* but the export belongs to cluster {CLUSTER_ID}",
    ):
        ask("summary", copy)


def test_export_without_records_is_refused(tmp_path: Path) -> None:
    ExportWriter(tmp_path, CLUSTER_ID, 0).close()
    with pytest.raises(ReplayError, match="is an export without records"):
        ask("summary", tmp_path)


@pytest.mark.parametrize("job", ["state", "audit", "history", "lao", "summary"])
def test_history_with_a_late_start_is_refused(tmp_path: Path, job: str) -> None:
    history = LogHistory(62).run(100)
    begin = sorted(history.positions)[5]
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=begin) as writer:
        writer.append_chunk(b"".join(history.batches[5:]))
        writer.commit(history.end_offset)
    with pytest.raises(ReplayError, match=f"begins at offset {begin}"):
        ask(job, tmp_path, key=("broker", "1"))


def test_record_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    log = LogHistory(63).run(50)
    log.batches.append(log.unfoldable())
    written(log, tmp_path)
    with pytest.raises(FoldError) as caught:
        ask("state", tmp_path)
    told = f"record PARTITION_CHANGE at offset {log.end_offset} names"
    assert readable(caught.value).startswith(told)


def test_time_range_after_the_end_is_refused(exported: Path) -> None:
    end_ms = read_manifest(exported).segments[-1].max_timestamp_ms
    assert opened(exported, since_ms=end_ms).segments
    with pytest.raises(ReplayError, match=r"holds nothing at or after 2023-.*Z: it ends at 2023-"):
        opened(exported, since_ms=end_ms + 1)


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("java.io.FileNotFoundException: File {} does not exist", "is missing", Exit.FOUND),
        (
            "java.io.IOException: Input/output error reading {}",
            "can't be read: Input/output error",
            Exit.DISK,
        ),
        ("java.io.IOException: {} (Permission denied)", "can't be read: Permission", Exit.USAGE),
        ("org.apache.parquet: CRC mismatch in {}", "checksum of a page does not", Exit.FOUND),
        ("org.apache.parquet: expected magic number at tail of {}", "not parse", Exit.FOUND),
        ("java.lang.OutOfMemoryError: Java heap space in {}", "ran out of memory", Exit.USAGE),
        ("java.io.IOException: No space left on device", "No space left on device", Exit.DISK),
        ("[X] not known\n\tat org.apache.spark.X(X.scala:1)", "failed: [X] not known", Exit.USAGE),
    ],
)
def test_errors_of_spark_are_told_apart_in_one_line(text: str, said: str, code: Exit) -> None:
    name = "00000000000000000000-00000000000000000009.parquet"
    segment = Segment(
        kind=RECORDS, file=f"records/{name}", base_offset=0, last_offset=9, first_epoch=1,
        last_epoch=1, min_timestamp_ms=0, max_timestamp_ms=0, batches=1, records=10, bytes=1,
        sha256="",
    )  # fmt: skip
    error = explain(text.format(name), [segment])
    found = readable(error)
    assert said in found
    assert ("corrupt" in found) is ("parquet:" in text)
    assert exit_code(error) == code
