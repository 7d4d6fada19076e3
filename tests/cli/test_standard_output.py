"""What a command prints goes out at once, and may find no reader or no space."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.streams import UNREAD

PATIENCE_S = 60
PROGRAM = """
import sys, time
from raftlog.cli.process import run_interruptible

def main():
    {running}

run_interruptible(lambda: main)
"""


def ended(running: str, output: int) -> tuple[int, str]:
    """The exit code and errors of a program that prints into ``output``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(running=running)],
        stdout=output, stderr=subprocess.PIPE, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_line_is_there_before_the_next_one() -> None:
    program = PROGRAM.format(running="print('first'); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        process.terminate()


LINE, NO_LINE = "print('a line')", "print('no line', end='')"
REPORTED = "from raftlog.cli.exits import reported\n    with reported(): {}\n    return {}"


@pytest.mark.parametrize(
    ("printing", "code", "ends", "said"),
    [(LINE, 0, 6, 1), (LINE, 3, 6, 1), (NO_LINE, 0, 6, 1), (NO_LINE, 3, 3, 0)],
)
def test_a_full_disk_is_said_once_and_by_no_code_of_the_interpreter(
    printing: str, code: int, ends: int, said: int
) -> None:
    with Path("/dev/full").open("w") as full:
        code, errors = ended(REPORTED.format(printing, code), full.fileno())
    assert code == ends
    assert errors.count("No space left on device") == said
    assert len(errors.splitlines()) == said


def test_a_command_ends_when_nobody_reads_it_any_more(unread: int) -> None:
    assert ended(f"while True: {LINE}", unread) == (UNREAD, "")


@pytest.mark.parametrize("program", ["raftlog --help", "raftlog topics --help", "raftlog local"])
def test_no_program_says_of_an_unread_help_that_it_was_refused(program: str, unread: int) -> None:
    words = [sys.executable, "-m", *program.split(), "--help"]
    done = subprocess.run(
        words, stdout=unread, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (UNREAD, b"")


def test_what_was_done_before_nobody_read_it_is_done(unread: int) -> None:
    assert ended(NO_LINE, unread) == (0, "")


FILLED = "sys.stderr.write('why\\n')"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_what_cannot_be_said_of_an_error_leaves_its_exit_code(code: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(running=f"{FILLED}; return {code}")],
            stdout=subprocess.PIPE, stderr=full, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, b"")


CLOSED = """
import os, sys
descriptor = os.open({path!r}, os.O_WRONLY | os.O_CREAT)
os.write(descriptor, b"data\\n")
print("printed")
os.write(1, b"printed by a library\\n")
os.write(2, b"said by a library\\n")
print("said", file=sys.stderr)
sys.stdout.isatty(), sys.stderr.isatty()
return 4
"""


def test_what_is_printed_into_closed_descriptors_goes_into_no_file(tmp_path: Path) -> None:
    """[Printing was an AttributeError and exit code 1, behind a change that was made.]"""
    path = tmp_path / "data"
    running = "\n    ".join(CLOSED.format(path=str(path)).split("\n"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(running=running))
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} {program} <&- >&- 2>&-"],
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 4
    assert path.read_bytes() == b"data\n"


@pytest.mark.parametrize(
    ("running", "code"), [(LINE, UNREAD), ("return 0", 0), (f"{LINE}; return 4", 4)]
)
def test_output_lost_to_a_closed_descriptor_is_not_success(
    tmp_path: Path, running: str, code: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(running=running))
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} {program} >&-"],
        check=False, timeout=PATIENCE_S, capture_output=True, text=True,
    )  # fmt: skip
    said = "raftlog: standard output is closed: what it was to show is lost\n"
    assert (done.returncode, done.stderr) == (code, said if code == UNREAD else "")


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none"])
def test_completion_that_cannot_be_installed_is_one_line(home: str) -> None:
    # The command looks for the shell among the processes above it: here it is one for sure.
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m raftlog --install-completion; exit $?"],
        check=False, timeout=PATIENCE_S, capture_output=True, text=True,
        env={**os.environ, "HOME": home},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("raftlog: --install-completion writes into the home directory: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_disk_error_behind_no_report_is_the_disks() -> None:
    """[`raftlog --version > /dev/full`: 120 and a traceback]"""
    with Path("/dev/full").open("w") as full:
        code, errors = ended(LINE, full.fileno())
    assert code == 6
    assert "can't use standard output: No space left on device" in errors
    assert len(errors.splitlines()) == 1


def test_full_disk_behind_a_table_is_that_of_standard_output() -> None:
    """[`raftlog topics list > /dev/full`: "can't use it"]"""
    table = "from raftlog.cli.output import print_table; print_table(('A', 'B'), [('1', '2')])\n"
    with Path("/dev/full").open("w") as full:
        code, errors = ended(table, full.fileno())
    assert code == 6
    assert "can't use standard output: No space left on device" in errors
    assert len(errors.splitlines()) == 1


def test_another_broken_pipe_is_not_the_readers() -> None:
    broken = "reading, writing = os.pipe(); os.close(reading); os.write(writing, b'x')"
    code, errors = ended(f"import os; {broken}", subprocess.DEVNULL)
    assert code == 1
    assert "BrokenPipeError" in errors
