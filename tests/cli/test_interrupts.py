"""Ctrl-C: a command cleans up and dies of SIGINT, so that a shell's loop around it ends."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.cli.exits import DESCRIPTORS_REMEDY, DISK_REMEDY, Exit, FailedError, exit_code
from raftlog.cli.main import main
from raftlog.cli.nodes import remedy
from raftlog.errors import ApiError, ConfigError, CorruptLogError, ErrorCode, StorageError
from raftlog.local.cluster import LocalCluster
from raftlog.segments.errors import CorruptExportError, ExportError

PATIENCE_S = 60
PROGRAM = """
import atexit, signal, sys, time
signal.signal(signal.SIGINT, {disposition})
from raftlog.cli.process import run_interruptible

def load():
    {importing}
    return main

def main():
    atexit.register(lambda: print("cleaned up", flush=True))
    {running}

run_interruptible(load)
"""
WAIT = "print('waits', flush=True); time.sleep(60)"


def test_command_is_installed_as_a_script_that_can_be_executed() -> None:
    """[pip keeps the mode of the file: a command with mode 0644 cannot be run]"""
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    scripts = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-scripts"]
    (source,) = (root / path for path, name in scripts.items() if name == "raftlog")
    assert source.read_text().startswith("#!python\n")
    assert os.access(source, os.X_OK)


def start(**parts: str) -> subprocess.Popen[str]:
    filled = {
        "disposition": "signal.default_int_handler",
        "importing": "pass",
        "running": "pass",
    } | parts
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(**filled)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(**parts: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a program that ends by itself."""
    process = start(**parts)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def test_command_is_killed_by_the_signal_after_its_exit_handlers() -> None:
    assert interrupt(start(running=WAIT)) == (-signal.SIGINT, "cleaned up\n", "")


def test_interrupt_swallowed_by_a_callback_still_stops_the_command() -> None:
    """[`log dump --follow`, interrupted while an import freed its lock, went on for ever]"""
    swallows = (
        "import weakref; cell = set();"
        f" seen = weakref.ref(cell, lambda _: ({WAIT.replace(';', ',')})); del cell;"
        " time.sleep(60)"
    )
    assert interrupt(start(running=swallows)) == (-signal.SIGINT, "cleaned up\n", "")


def test_other_exceptions_of_callbacks_are_reported() -> None:
    code, out, err = ended(
        running="import weakref; cell = set(); seen = weakref.ref(cell, lambda _: 1 / 0); del cell"
    )
    assert (code, out) == (0, "cleaned up\n")
    assert "ZeroDivisionError" in err


def test_interrupt_during_import_leaves_no_traceback() -> None:
    assert interrupt(start(importing=WAIT)) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("running", "code"),
    [
        ("pass", 0),
        ("return 0", 0),
        ("return 3", 3),
        ("sys.exit(4)", 4),
        ("sys.exit(130)", -signal.SIGINT),
    ],
)
def test_exit_codes_are_passed_on_and_130_counts_as_interrupted(running: str, code: int) -> None:
    assert ended(running=running) == (code, "cleaned up\n", "")


def test_exiting_process_waits_for_threads_and_flushes_streams() -> None:
    """The interpreter's own end is left out: it takes a quarter of a short command's CPU time."""
    buffered = "sys.stdout.reconfigure(line_buffering=False)"
    late = "threading.Thread(target=lambda: (time.sleep(0.3), print('done'))).start()"
    for running, out in (
        (f"import threading; {late}; {buffered}", "done\ncleaned up\n"),
        (f"{buffered}; print('buffered')", "buffered\ncleaned up\n"),
        (f"{buffered}; atexit.register(lambda: sys.stdout.write('late'))", "latecleaned up\n"),
    ):
        assert ended(running=running) == (0, out, "")


def test_ignored_sigint_stays_ignored() -> None:
    process = start(
        disposition="signal.SIG_IGN",
        running="print('waits', flush=True); time.sleep(0.5); print('done')",
    )
    assert interrupt(process) == (0, "done\ncleaned up\n", "")


WORK = """
    import asyncio
    from raftlog.cli.command import call
    async def work(client):
        try:
            {}
            await asyncio.sleep(60)
        finally:
            print("given back")
    call(work, {{"bootstrap_server": "127.0.0.1:1"}})
"""
PIPE_BYTES = 1 << 16
"""A pipe of Linux holds so much, unless somebody asks for more."""
WAITS = 'print("waits", flush=True)'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminating_signal_lets_the_process_release_its_resources(number: signal.Signals) -> None:
    process = start(running=WORK.format(WAITS))
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    for _ in range(2):  # As `timeout` does.
        process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (-number, "given back\ncleaned up\n", "")


def test_ignored_signal_stays_ignored() -> None:
    ignored = "import os; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    running = WORK.format(f"{ignored}; os.kill(os.getpid(), 1); return")
    assert ended(running=running) == (0, "given back\ncleaned up\n", "")


def test_command_with_a_hanging_reader_exits_too() -> None:
    """[The loop does not end while a write waits.]"""
    process = start(running=WORK.format("sys.stdout.write('x' * 10_000_000)"))
    assert process.stdout is not None
    waiting = bytearray(4)
    deadline = time.monotonic() + PATIENCE_S
    while int.from_bytes(waiting, sys.byteorder) < PIPE_BYTES:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    process.communicate()


def node_in_a_loop(cluster: LocalCluster, name: str) -> subprocess.Popen[str]:
    """A shell that restarts the node in a loop, as on a terminal."""
    node = cluster.node(name)
    command = f"{sys.executable} -m raftlog {node.role} run -c {cluster.config_path(name)}"
    return subprocess.Popen(
        ["bash", "-c", f'for i in 1 2; do {command}; echo "again after $?"; done'],
        env={**os.environ, "RAFTLOG_LOG_LEVEL": "info"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_node_stops_in_order_and_stops_its_event_loop(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    shell = node_in_a_loop(cluster, "controller-1")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not cluster.ready("controller-1")[0]:
            assert shell.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(shell.pid, signal.SIGINT)
        out, _ = shell.communicate(timeout=PATIENCE_S)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == -signal.SIGINT, out
    assert "controller stopped" in out
    assert "again" not in out
    assert "Traceback" not in out


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, "x"), Exit.REFUSED),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.NOT_CONTROLLER, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ApiError(ErrorCode.NETWORK_EXCEPTION, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ConfigError("x"), Exit.USAGE),
        (CorruptLogError("x", offset=3), Exit.FOUND),
        (CorruptExportError("x", file="f"), Exit.FOUND),
        (ExportError("x"), Exit.REFUSED),
        (StorageError("x"), Exit.DISK),
        (StorageError("IO error: LOCK: Too many open files"), Exit.REFUSED),
        (caused(ExportError("x"), OSError(errno.ENOSPC, "full")), Exit.DISK),
        (caused(ConfigError("x"), OSError(errno.ENOENT, "none")), Exit.USAGE),
        (TimeoutError(), Exit.UNREACHABLE),
        (FailedError("x", Exit.FOUND), Exit.FOUND),
    ],
    ids=lambda value: str(value) if isinstance(value, Exit) else type(value).__name__,
)
def test_exit_code_depends_on_the_error(error: Exception, code: Exit) -> None:
    assert exit_code(error) is code


@pytest.fixture
def failing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Exception], tuple[object, str]]:
    """Return the exit code and stderr of a program whose command raises the error."""

    def run(error: Exception) -> tuple[object, str]:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("raftlog.cli.main.build_for", lambda _: fail)
        with pytest.raises(SystemExit) as found:
            main([])
        return found.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_unwrapped_disk_error_is_one_line(failing: Any, number: int) -> None:
    why = os.strerror(number)
    assert failing(OSError(number, why, "/data/x")) == (
        Exit.DISK,
        f"raftlog: the disk failed: cannot use /data/x: {why}; {DISK_REMEDY}\n",
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/data/x"),
        StorageError(f"can't open /data/x: {os.strerror(errno.ENFILE)}"),
    ],
)
def test_lack_of_descriptors_is_reported_with_its_remedy(failing: Any, error: Exception) -> None:
    code, said = failing(error)
    assert code is Exit.REFUSED
    assert said.startswith("raftlog: can't open /data/x: Too many open files")
    assert said.endswith(f"; {DESCRIPTORS_REMEDY}\n")
    assert remedy(error, "broker") == {"remedy": DESCRIPTORS_REMEDY}


def test_other_system_errors_are_defects(failing: Any) -> None:
    with pytest.raises(OSError, match="x"):
        failing(OSError(errno.EPIPE + 1000, "x"))
