"""Tables and lines that fit their terminal, and output without a reader or space."""

import errno
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_runs import run_text

from raftlog.cli import output
from raftlog.cli.exits import Exit, exit_code
from raftlog.cli.output import table_lines
from raftlog.cli.streams import UNREAD
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster
from raftlog.ops.bundle import write_bundle
from raftlog.text import columns_of

COLUMNS = ("NODE", "ENDPOINT", "LAG", "REASON")
ROWS = [
    ("1", "127.0.0.1:20001", "12", "it follows"),
    ("22", "127.0.0.1:20002", "3", "its session has ended, and nothing was heard of it since"),
]


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
    monkeypatch.setenv("NO_COLOR", "1")


def test_long_line_is_not_wrapped_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A line break inside an `export` line would break the command when it is copied."""
    narrow(monkeypatch, 40)
    line = "  export RAFTLOG_BOOTSTRAP_CONTROLLER=127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    output.print_line(line)
    assert capsys.readouterr().out == line + "\n"


def test_word_that_does_not_fit_moves_to_the_next_line() -> None:
    word = "5ba4ba36c486f0e7ea900c0b59bd52f7"
    rows = [("1", "127.0.0.1:20001", "12", f"created: id {word}"), ROWS[0]]
    lines, _ = table_lines(COLUMNS, rows, least=("LAG",), width=50)
    assert lines == [
        "NODE  ENDPOINT         REASON",
        "1     127.0.0.1:20001",
        f"    created: id {word}",
        "1     127.0.0.1:20001  it follows",
    ]


def test_note_is_wrapped_for_a_terminal_and_whole_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    note = "note: cleanup.policy is stored and shown, but this build does not act on it"
    output.print_note(note)
    assert capsys.readouterr().err == note + "\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    output.print_note(note)
    assert capsys.readouterr().err.splitlines() == [
        "note: cleanup.policy is stored and",
        "shown, but this build does not act on it",
    ]


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (None, "NODE  ENDPOINT         LAG  REASON"),
        ("0", "NODE  ENDPOINT         LAG  REASON"),
        ("eighty", "NODE  ENDPOINT         LAG  REASON"),
        ("200", "NODE  ENDPOINT         LAG  REASON"),
        ("70", "NODE  REASON"),
    ],
)
def test_pipe_gets_all_columns_unless_columns_is_exported(
    columns: str | None,
    headings: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    output.print_table(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    assert capsys.readouterr().out.splitlines()[0] == headings


def test_table_is_unlimited_without_a_terminal_width() -> None:
    lines, left_out = table_lines(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    assert left_out == []
    assert lines == [
        "NODE  ENDPOINT         LAG  REASON",
        "1     127.0.0.1:20001   12  it follows",
        "22    127.0.0.1:20002    3  its session has ended, and nothing was heard of it since",
    ]


def test_least_important_columns_are_omitted_until_the_rest_fits() -> None:
    lines, left_out = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=79)
    assert left_out == ["LAG"]
    assert max(map(len, lines)) <= 79
    lines, left_out = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=70)
    assert left_out == ["LAG", "ENDPOINT"]


def test_last_column_is_wrapped_when_it_does_not_fit() -> None:
    lines, _ = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=40)
    assert lines == [
        "NODE  REASON",
        "1     it follows",
        "22    its session has ended, and nothing",
        "      was heard of it since",
    ]


def test_table_rendering_is_linear_in_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Each row measured all others: the list of 10,000 topics took 48 s.]"""
    measured = 0

    def counting(text: str) -> int:
        nonlocal measured
        measured += 1
        return columns_of(text)

    monkeypatch.setattr("raftlog.cli.output.columns_of", counting)
    counts = []
    for rows in (50, 100):
        measured = 0
        table_lines(COLUMNS, ROWS * rows, least=("LAG",), width=70)
        counts.append(measured)
    assert counts[1] < 2.1 * counts[0]


def test_long_word_is_never_broken() -> None:
    lines, _ = table_lines(("A", "B"), [("x", "y" * 60 + " z")], width=20)
    assert lines[1] == "x  " + "y" * 60


def test_wide_characters_keep_columns_aligned() -> None:
    lines, _ = table_lines(("A", "B"), [("中文", "x"), ("e\u0301", "y")])
    assert [columns_of(line) for line in lines] == [7, 7, 7]


@pytest.mark.parametrize(
    ("columns", "ends"),
    [
        (60, ["(omitted columns: LAG, ENDPOINT; see --json)"]),
        (36, ["(omitted columns: LAG, ENDPOINT; see", "--json)"]),
    ],
)
def test_terminal_reports_omissions_within_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, columns: int, ends: list[str]
) -> None:
    narrow(monkeypatch, columns)
    output.print_table(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "NODE  REASON"
    assert out[-len(ends) :] == ends
    assert max(map(len, out)) <= columns


def test_table_without_headings_has_no_heading_line(capsys: Any) -> None:
    output.print_table(("", ""), [("cluster id", None)])
    assert capsys.readouterr().out == "cluster id  -\n"


def test_bundle_is_removed_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    path = tmp_path / "bundle.tar.gz"
    with pytest.raises(ConfigError, match="cannot write") as raised:
        write_bundle(path, {"doctor.json": b"{}"}, 0)
    assert exit_code(raised.value) is Exit.DISK
    assert not path.exists()


def test_existing_bundle_is_kept_when_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(b"of before")
    with pytest.raises(ConfigError, match="already exists"):
        write_bundle(path, {}, 0)
    assert path.read_bytes() == b"of before"


def test_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot create .*file/cluster: Not a directory"):
        LocalCluster(tmp_path / "file" / "cluster").generate()


PATIENCE_S = 60
PROGRAM = """
import sys, time
from raftlog.cli.process import run_interruptible

def main():
    {running}

run_interruptible(lambda: main)
"""


def ended(running: str, output: int) -> tuple[int, str]:
    """Return the exit code and errors of a program that prints into ``output``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(running=running)],
        stdout=output, stderr=subprocess.PIPE, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_line_is_flushed_before_the_next_line() -> None:
    program = PROGRAM.format(running="print('first'); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        process.terminate()


LINE, NO_LINE = "print('a line')", "print('no line', end='')"
REPORTED = "from raftlog.cli.exits import reported\n    with reported(): {}\n    return {}"
TABLE = "from raftlog.cli.output import print_table; print_table(('A', 'B'), [('1', '2')])\n"


@pytest.mark.parametrize(
    ("running", "code"),
    [
        (REPORTED.format(LINE, 0), 6),
        (REPORTED.format(LINE, 3), 6),
        (REPORTED.format(NO_LINE, 0), 6),
        (REPORTED.format(NO_LINE, 3), 3),
        # [`raftlog --version > /dev/full`: 120 and a traceback]
        (LINE, 6),
        # [`raftlog topics list > /dev/full`: "can't use it"]
        (TABLE, 6),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_reported_once_and_not_by_the_interpreters_exit_code(
    running: str, code: int, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        ran, errors = ended(running, full.fileno())
    assert (ran, len(errors.splitlines())) == (code, int(code == 6))
    assert ("cannot use standard output: No space left on device" in errors) == (code == 6)


def test_line_cut_by_a_file_size_limit_is_reported_when_python_is_unbuffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[`raftlog config keys --json > file` on a full disk, in the container image: half a document,
    exit code 0.]
    """
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    with (tmp_path / "file").open("w") as file:
        code, errors = ended(f"{limit}print('x' * 5000)", file.fileno())
    assert (code, "File too large" in errors) == (6, True)


@pytest.mark.parametrize(("running", "code"), [(f"while True: {LINE}", UNREAD), (NO_LINE, 0)])
def test_command_exits_when_its_reader_has_exited_and_is_not_undone(
    running: str, code: int, unread: int
) -> None:
    assert ended(running, unread) == (code, "")


@pytest.mark.parametrize("program", ["raftlog", "raftlog topics"])
def test_unread_help_is_not_reported_as_a_refusal(program: str, unread: int) -> None:
    words = [sys.executable, "-m", *program.split(), "--help"]
    done = subprocess.run(
        words, stdout=unread, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (UNREAD, b"")


@pytest.mark.parametrize("code", [0, 1, 3])
def test_unprintable_error_keeps_its_exit_code(code: int) -> None:
    running = f"sys.stderr.write('why\\n'); return {code}"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(running=running)],
            stdout=subprocess.PIPE, stderr=full, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, b"")


def with_closed(streams: str, directory: Path, running: str) -> subprocess.CompletedProcess[str]:
    """Run a program with some of its streams closed by the shell."""
    program = directory / "program.py"
    program.write_text(PROGRAM.format(running=running))
    return run_text(
        ["bash", "-c", f"exec {sys.executable} {program} {streams}"], timeout=PATIENCE_S
    )


CLOSED = """
descriptor = os.open({path!r}, os.O_WRONLY | os.O_CREAT)
os.write(descriptor, b"data\\n")
print("printed")
os.write(1, b"printed by a library\\n")
os.write(2, b"said by a library\\n")
print("said", file=sys.stderr)
sys.stdout.isatty(), sys.stderr.isatty()
return 4
"""


def test_output_to_a_closed_descriptor_reaches_no_file(tmp_path: Path) -> None:
    """[Printing was an AttributeError and exit code 1, after a change that was made.]"""
    path = tmp_path / "data"
    running = "import os" + "\n    ".join(CLOSED.format(path=str(path)).split("\n"))
    assert with_closed("<&- >&- 2>&-", tmp_path, running).returncode == 4
    assert path.read_bytes() == b"data\n"


@pytest.mark.parametrize(
    ("running", "code"), [(LINE, UNREAD), ("return 0", 0), (f"{LINE}; return 4", 4)]
)
def test_output_lost_to_a_closed_descriptor_fails(tmp_path: Path, running: str, code: int) -> None:
    done = with_closed(">&-", tmp_path, running)
    said = "raftlog: standard output is closed: its output is lost\n"
    assert (done.returncode, done.stderr) == (code, said if code == UNREAD else "")


def test_failed_completion_install_is_reported_in_one_line() -> None:
    # The command looks for the shell among the processes above it: here it is one for sure.
    done = run_text(
        ["bash", "-c", f"{sys.executable} -m raftlog --install-completion; exit $?"],
        timeout=PATIENCE_S,
        env={**os.environ, "HOME": "/dev/null"},
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(
        "raftlog: --install-completion cannot write to the home directory: "
    )


def test_broken_pipe_of_another_stream_is_not_taken_for_the_readers() -> None:
    broken = "reading, writing = os.pipe(); os.close(reading); os.write(writing, b'x')"
    code, errors = ended(f"import os; {broken}", subprocess.DEVNULL)
    assert code == 1
    assert "BrokenPipeError" in errors
