"""Exit codes for damage: 2, not an export for this build; 3, not as written; 6, disk error."""

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
from log_history import LogHistory
from spark_runs import Replay
from test_export_seam import files_of_at_most

from raftlog.cli.main import main
from raftlog.cli.streams import UNREAD
from raftlog.errors import RaftlogError
from raftlog.segments.export import export
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import MANIFEST_NAME, RAW, RECORDS, read_manifest
from replay.errors import exit_code
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
OF_BOTH: dict[str, tuple[str, ...]] = {"verify": ("verify", "{}")}
if "verify" in LOCAL_JOBS:
    OF_BOTH["replay verify"] = ("replay", "verify", "{}", "--engine", "local")
COMMANDS = OF_RAW | OF_PARQUET | OF_BOTH

Harms = Callable[[Path], None]


def segment(directory: Path, kind: str) -> Path:
    """The second segment: the first one is often read separately."""
    return directory / read_manifest(directory).of_kind(kind)[1].file


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def manifest_with(**values: Any) -> Harms:
    def harm(directory: Path) -> None:
        path = directory / MANIFEST_NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return harm


def empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def without_manifest(directory: Path) -> None:
    (directory / MANIFEST_NAME).unlink()


NOTHING_WRONG, USAGE, FOUND, DISK = 0, 2, 3, 6
HARMS: dict[str, tuple[Harms, int, dict[str, tuple[str, ...]]]] = {
    "nothing": (lambda _: None, NOTHING_WRONG, COMMANDS),
    "no directory": (shutil.rmtree, USAGE, COMMANDS),
    "an empty directory": (empty, USAGE, COMMANDS),
    "no manifest": (without_manifest, USAGE, COMMANDS),
    "a newer format": (manifest_with(format_version=99), USAGE, COMMANDS),
    "another manifest": (manifest_with(cluster_id="another"), FOUND, COMMANDS),
    "half a manifest": (lambda path: cut(path / MANIFEST_NAME), FOUND, COMMANDS),
    "no Parquet file": (lambda path: segment(path, RECORDS).unlink(), FOUND, OF_PARQUET | OF_BOTH),
    "half a Parquet file": (lambda path: cut(segment(path, RECORDS)), FOUND, OF_PARQUET | OF_BOTH),
    "a bit in Parquet": (lambda path: flip(segment(path, RECORDS)), FOUND, OF_PARQUET | OF_BOTH),
    "no raw file": (lambda path: segment(path, RAW).unlink(), FOUND, OF_RAW | OF_BOTH),
    "half a raw file": (lambda path: cut(segment(path, RAW)), FOUND, OF_RAW | OF_BOTH),
    "a bit in a raw file": (lambda path: flip(segment(path, RAW)), FOUND, OF_RAW | OF_BOTH),
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


def code_of(command: tuple[str, ...], directory: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([word.replace("{}", str(directory)) for word in command])
    code = ended.value.code
    return 0 if code is None else int(code)


@pytest.mark.parametrize("harm", HARMS)
def test_exit_code_names_the_kind_of_damage(
    harm: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harms, code, commands = HARMS[harm]
    directory = tmp_path / "exported"
    shutil.copytree(exported, directory)
    harms(directory)
    found = {}
    for name, command in COMMANDS.items():
        found[name] = code_of(command, directory)
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


@pytest.mark.parametrize("command", ["verify", "history", "replay audit"])
def test_unwritable_output_is_reported_as_a_disk_error(command: str, exported: Path) -> None:
    words = [word.replace("{}", str(exported)) for word in COMMANDS[command]]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("raftlog")), *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=90,
        )  # fmt: skip
    assert done.returncode == DISK
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["verify", "log dump", "replay summary"])
def test_unread_output_is_neither_success_nor_a_refusal(command: str, exported: Path) -> None:
    words = [word.replace("{}", str(exported)) for word in COMMANDS[command]]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [str(Path(sys.executable).with_name("raftlog")), *words],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=90,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == UNREAD
    assert "Traceback" not in done.stderr


SPARKS = ("summary", "state", "audit", "verify", "availability", "lao", "report", "sql")
"""Jobs of Spark, which need no more than an export."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "harm", ["no directory", "another manifest", "no Parquet file", "a bit in Parquet"]
)
def test_spark_jobs_use_the_same_exit_codes(
    harm: str, replay: Replay, exported: Path, tmp_path: Path
) -> None:
    harms, code, _ = HARMS[harm]
    directory = tmp_path / "exported"
    shutil.copytree(exported, directory)
    harms(directory)
    found = {}
    for job in SPARKS:
        options = {"query": "select 1"} if job == "sql" else {}
        try:
            result = replay(job, directory, output=str(tmp_path / "report.html"), **options)
            found[job] = NOTHING_WRONG if getattr(result, "passed", True) else FOUND
        except RaftlogError as error:
            found[job] = exit_code(error)
    assert found == dict.fromkeys(SPARKS, code)


def test_report_on_a_full_disk_is_a_disk_error(tmp_path: Path) -> None:
    from replay.report import page

    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    with files_of_at_most(100), pytest.raises(RaftlogError, match="File too large") as caught:
        page.write("x" * 1000, tmp_path / "report.html")
    assert exit_code(caught.value) == DISK
    assert list(tmp_path.iterdir()) == []
