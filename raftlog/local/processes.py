"""Processes that outlive the command that started them, identified by pid and start time, since a
pid alone may be reused.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import not_
from pathlib import Path

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

POLL_S = 0.02
_STARTED: list[subprocess.Popen[bytes]] = []
"""Running processes started here. They outlive the object that started them; Python warns if a
process's Popen object is deleted before the process exits.
"""


@atexit.register
def _leave_running() -> None:
    """Reap the processes that have exited, and suppress Python's warning at exit about the others,
    which are meant to outlive this one.
    """
    for child in _STARTED:
        if child.poll() is None:
            child.returncode = 0


def wait_until(condition: Callable[[], object], timeout_s: float, pause_s: float = POLL_S) -> bool:
    """Wait until a condition holds. Return False if the timeout passes first."""
    retrying = Retrying(
        retry=retry_if_result(not_),
        wait=wait_fixed(pause_s),
        stop=stop_after_delay(timeout_s),
        retry_error_callback=lambda _: False,
    )
    return bool(retrying(condition))


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A unique process: no other has the same pid and start time (clock ticks since boot)."""

    pid: int
    started: int


class Daemons:
    """Processes by name, with ``NAME.pid`` and ``NAME.log`` in one directory. Linux only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Children of this process must be reaped, or they stay as zombies.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._begins: dict[str, int] = {}
        """Name -> position in the log at which the output of the process started here begins."""

    def log_path(self, name: str) -> Path:
        """Return the path of a process's output."""
        return self._directory / f"{name}.log"

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start a process in its own session, which Ctrl-C here does not reach; return its pid."""
        with self.log_path(name).open("ab") as output:
            self._begins[name] = output.tell()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._children[name] = child
        _STARTED[:] = [one for one in _STARTED if one.poll() is None] + [child]
        identity = ProcessId(child.pid, _started(child.pid))
        self._pid_path(name).write_text(json.dumps(asdict(identity)) + "\n")
        return child.pid

    def pid(self, name: str) -> int | None:
        """Return the pid of a process, or None if it is not running."""
        identity = self._read(name)
        runs = identity is not None and _started(identity.pid) == identity.started
        # Last, because a child that ends in between must be reaped here, or it would stay as an
        # unknown zombie.
        child = self._children.get(name)
        if child is not None and child.poll() is not None:
            return None
        return identity.pid if identity is not None and runs else None

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a process; return whether it was running."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def is_stopped(self, name: str) -> bool:
        """Return whether SIGSTOP has stopped a process."""
        pid = self.pid(name)
        return pid is not None and _stat(pid)[:1] == ["T"]

    def wait_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until a process has exited; return whether it has."""
        if not wait_until(lambda: self.pid(name) is None, timeout_s):
            return False
        self._pid_path(name).unlink(missing_ok=True)
        self._children.pop(name, None)
        return True

    def stop(self, names: Sequence[str], timeout_s: float = 10.0) -> list[str]:
        """Stop processes with SIGTERM, then with SIGKILL any still running after ``timeout_s``.
        Return the names of those killed.
        """
        for name in names:
            self.signal(name, signal.SIGTERM)
            # A stopped process cannot follow a SIGTERM.
            self.signal(name, signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        killed = [
            name
            for name in names
            if not self.wait_gone(name, max(0.0, deadline - time.monotonic()))
        ]
        for name in killed:
            self.signal(name, signal.SIGKILL)
        for name in killed:
            self.wait_gone(name, timeout_s)
        return killed

    def tail(self, name: str, lines: int = 10) -> str:
        """Return the end of a process's log; for a process started by this object, only the output
        of that process, not of its predecessors.
        """
        try:
            said = self.log_path(name).read_bytes()[self._begins.get(name, 0) :]
        except FileNotFoundError:
            return ""
        return "\n".join(said.decode(errors="replace").splitlines()[-lines:])

    def _pid_path(self, name: str) -> Path:
        return self._directory / f"{name}.pid"

    def _read(self, name: str) -> ProcessId | None:
        try:
            return ProcessId(**json.loads(self._pid_path(name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def _started(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or -1 if there is no process or only
    a zombie.
    """
    fields = _stat(pid)
    return -1 if fields[:1] in ([], ["Z"]) else int(fields[19])


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state onwards; empty if there is no
    process.
    """
    try:
        # The command's name, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
