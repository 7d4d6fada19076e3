"""Runs a program, and writes down in order what it does to the files below a directory: see
``disk_events``.

All system calls that matter are made one at a time: while one runs, other threads stop before
theirs. What a model could not replay (a shared writable mapping, io_uring, copies inside the
kernel) is an error, not a gap.

``python recorder.py ROOT FILE MODULE FUNCTION [ARGUMENT...]`` calls the function with ROOT and the
arguments in a child, and pickles the recording into FILE; before, unrecorded, ``prepare_FUNCTION``
with the same if there is such. In a process of its own, because waiting for threads would take the
children of others.
"""

import asyncio
import importlib
import inspect
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import tracing
from disk_model import (
    ROOT,
    Created,
    Event,
    Linked,
    Marked,
    Recording,
    Renamed,
    Resized,
    Synced,
    Unlinked,
    Written,
)
from marks import MARK_FD, open_marks
from tracing import Call, TracingError

LIMIT_S = 120
"""Bound on the processor seconds of the program's process. The test's timeout ends one that waits
for ever: on a busy machine a program may pause for long without a fault.
"""
_CWD = 2**32 - 100
_SHARED, _WRITABLE, _APPEND, _KEEP_SIZE = 1, 2, 0o2000, 1
_IN_KERNEL = {"sendfile": 0, "copy_file_range": 2, "splice": 2}
_ANYTHING = {"io_uring_setup", "io_submit", "sync", "syncfs"}


class Recorder:
    """Traces one program."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._names = tracing.names_of_this_machine()
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = ROOT
        self.events: list[Event] = []
        self.files: dict[str, bytes] = {}
        self.directories: list[str] = []
        self.numbers: dict[str, int] = {}
        self._take_baseline()

    def _take_baseline(self) -> None:
        self._number(self._root)
        for path in sorted(self._root.rglob("*")):
            name = str(path.relative_to(self._root))
            self.numbers[name] = self._number(path)
            if path.is_dir():
                self.directories.append(name)
            else:
                self.files[name] = path.read_bytes()

    def _number(self, path: Path) -> int:
        found = path.stat(follow_symlinks=False)
        number = self._numbers[found.st_dev, found.st_ino] = self._next
        self._next += 1
        return number

    def run(self, program: Callable[[], None]) -> Recording:
        """Run ``program`` in a child to its end. Raises TracingError."""
        pid = os.fork()
        if not pid:
            _be_the_child(program)
        tracing.begin(pid)
        exit_code = self._follow(pid)
        return Recording(
            self.files, tuple(self.directories), self.numbers, tuple(self.events), exit_code
        )

    def _follow(self, main: int) -> int:
        tracing.resume(main)
        known, exit_code = {main}, -1
        while known:
            tid, status = os.waitpid(-1, tracing.ALL_CHILDREN)
            if os.WIFSTOPPED(status) and os.WSTOPSIG(status) == tracing.SYSCALL_STOP:
                status = self._at_call(tid, status)
            if not os.WIFSTOPPED(status):
                known.discard(tid)
                if tid == main:
                    exit_code = os.waitstatus_to_exitcode(status)
                continue
            sig = os.WSTOPSIG(status)
            if (
                sig == tracing.SYSCALL_STOP
                or status >> 16
                or (sig == signal.SIGSTOP and tid not in known)
            ):
                sig = 0
            known.add(tid)
            tracing.resume(tid, sig)
        return exit_code

    def _at_call(self, tid: int, status: int) -> int:
        """Let a relevant call happen alone, and record it. Return the thread's last status: it may
        have ended in the call.
        """
        try:
            call = tracing.call_of(tid, self._names)
            after = self._prepare(tid, call) if call is not None and call.name else None
            if after is None:
                return status
            while True:
                tracing.resume(tid)
                _, status = os.waitpid(tid, tracing.ALL_CHILDREN)
                if not os.WIFSTOPPED(status):
                    return status
                if os.WSTOPSIG(status) == tracing.SYSCALL_STOP:
                    break
            if (result := tracing.result_of(tid)) >= 0:
                after(result)
        except OSError:
            # Killed meanwhile, with its process: that it has ended is still to be reported.
            if tracing.is_stopped(tid):
                raise
        return status

    def _prepare(self, tid: int, call: Call) -> Callable[[int], None] | None:
        """Return the event to record if the call succeeds; None if it concerns no file of ours."""
        name, args = call
        if name in _ANYTHING:
            raise TracingError(f"{name} is not modelled")
        if name in {"write", "pwrite64"}:
            return self._write(tid, name, args)
        if name in {"writev", "pwritev", "pwritev2"}:
            self._refuse(tid, name, args[0])
        elif name in _IN_KERNEL:
            self._refuse(tid, name, args[_IN_KERNEL[name]])
        elif name == "mmap":
            if args[3] & _SHARED and args[2] & _WRITABLE and args[4] < 2**31:
                self._refuse(tid, "a shared writable mapping", args[4])
        elif name in {"fsync", "fdatasync"}:
            if (synced := self._open_file(tid, args[0])) is not None:
                return lambda _: self.events.append(Synced(synced))
        elif name == "ftruncate":
            if (file := self._open_file(tid, args[0])) is not None:
                return lambda _: self.events.append(Resized(file, args[1]))
        elif name == "fallocate":
            if not args[1] & _KEEP_SIZE or args[1] != _KEEP_SIZE:
                self._refuse(tid, name, args[0])
        else:
            return self._with_names(tid, name, args)
        return None

    def _write(self, tid: int, name: str, args: tuple[int, ...]) -> Callable[[int], None] | None:
        fd, address, length = args[:3]
        if fd == MARK_FD:
            text = _memory(tid, address, length).decode()
            return lambda _: self.events.append(Marked(text))
        file = self._open_file(tid, fd)
        if file is None:
            return None
        offset = args[3] if name == "pwrite64" else _position(tid, fd)
        return lambda written: self.events.append(
            Written(file, offset, _memory(tid, address, written))
        )

    def _with_names(
        self, tid: int, name: str, args: tuple[int, ...]
    ) -> Callable[[int], None] | None:
        at = name.endswith("at") or name in {"openat2", "renameat2"}
        first = self._path(tid, args[0], args[1]) if at else self._path(tid, _CWD, args[0])
        if name in {"rename", "renameat", "renameat2"}:
            second = self._path(tid, args[2], args[3]) if at else self._path(tid, _CWD, args[1])
            return self._rename(first, second)
        if name in {"link", "linkat"}:
            second = self._path(tid, args[2], args[3]) if at else self._path(tid, _CWD, args[1])
            place = self._place(second)
            file = self._existing(first)
            if place is None or file is None:
                return None
            linked = Linked(*place, file)
            return lambda _: self.events.append(linked)
        place = self._place(first)
        if place is None:
            return None
        if name in {"mkdir", "mkdirat"}:
            return lambda _: self._created(first, is_directory=True)
        if name in {"unlink", "unlinkat", "rmdir"}:
            return self._unlink(first, place)
        if name in {"open", "openat", "creat"}:
            flags = os.O_CREAT | os.O_TRUNC if name == "creat" else args[2 if at else 1]
            return self._open(first, flags)
        raise TracingError(f"{name} of {first} is not modelled")

    def _open(self, path: Path, flags: int) -> Callable[[int], None] | None:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise TracingError(f"O_TMPFILE in {path} is not modelled")
        if not path.exists():
            return (
                (lambda _: self._created(path, is_directory=False)) if flags & os.O_CREAT else None
            )
        file = self._existing(path)
        if file is None or not flags & os.O_TRUNC or not path.stat().st_size:
            return None
        return lambda _: self.events.append(Resized(file, 0))

    def _created(self, path: Path, *, is_directory: bool) -> None:
        place = self._place(path)
        assert place is not None
        self.events.append(Created(*place, self._number(path), is_directory))

    def _rename(self, first: Path, second: Path) -> Callable[[int], None] | None:
        before, after = self._place(first), self._place(second)
        if before is None and after is None:
            return None
        file = self._existing(first)
        if before is None or after is None or file is None:
            raise TracingError(
                f"a rename over the root's border, from {first} to {second}, is not modelled"
            )
        replaced = _identity(second) if second.exists() else None

        def renamed(_: int) -> None:
            self.events.append(Renamed(*before, *after, file))
            self._forget(replaced)

        return renamed

    def _unlink(self, path: Path, place: tuple[int, str]) -> Callable[[int], None] | None:
        gone = _identity(path) if path.exists() else None

        def unlinked(_: int) -> None:
            self.events.append(Unlinked(*place))
            self._forget(gone)

        return unlinked

    def _forget(self, identity: tuple[int, int, int] | None) -> None:
        """Forget a file without a name: the file system will reuse its number."""
        if identity is not None and identity[2] == 1:
            self._numbers.pop(identity[:2], None)

    def _place(self, path: Path) -> tuple[int, str] | None:
        """Return the directory and the name, if below the root."""
        directory = path.parent
        if self._root not in (directory, *directory.parents) or not directory.exists():
            return None
        number = self._existing(directory)
        return None if number is None else (number, path.name)

    def _existing(self, path: Path) -> int | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return self._numbers.get((found.st_dev, found.st_ino))

    def _open_file(self, tid: int, fd: int) -> int | None:
        return self._existing(Path(f"/proc/{tid}/fd/{fd}")) if fd < 2**31 else None

    def _refuse(self, tid: int, what: str, fd: int) -> None:
        if self._open_file(tid, fd) is not None:
            raise TracingError(f"{what} to a file below the root is not modelled")

    @staticmethod
    def _path(tid: int, directory: int, address: int) -> Path:
        text = os.fsdecode(_text(tid, address))
        base = (
            f"/proc/{tid}/cwd"
            if directory & 0xFFFFFFFF == _CWD
            else f"/proc/{tid}/fd/{directory & 0xFFFFFFFF}"
        )
        return Path(
            os.path.normpath(text if text.startswith("/") else f"{os.readlink(base)}/{text}")
        )


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, 1 if path.is_dir() else found.st_nlink


def _position(tid: int, fd: int) -> int:
    """Return the position of the next write."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{tid}/fdinfo/{fd}").read_text().splitlines()
        if ":" in line
    )
    if int(fields["flags"], 8) & _APPEND:
        return Path(f"/proc/{tid}/fd/{fd}").stat().st_size
    return int(fields["pos"])


def _memory(tid: int, address: int, length: int) -> bytes:
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), length, address)


def _text(tid: int, address: int) -> bytes:
    data = b""
    while b"\0" not in data:
        # Up to the end of a page: what lies after need not be mapped.
        at = address + len(data)
        data += _memory(tid, at, 4096 - at % 4096)
    return data[: data.index(b"\0")]


def _be_the_child(program: Callable[[], None]) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        open_marks()
        tracing.let_trace_me()
        program()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _run_apart(program: Callable[[], object]) -> None:
    """Run a function in a child process that leaves no threads and descriptors behind."""
    pid = os.fork()
    if not pid:
        try:
            open_marks()
            if inspect.iscoroutine(made := program()):
                asyncio.run(made)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the directory could not be prepared")


def record(root: Path, into: Path, module: str, function: str, *arguments: str) -> Recording:
    """Record ``module.function(root, *arguments)``, which must succeed, in its own processes."""
    command = [sys.executable, __file__, str(root), str(into), module, function, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TracingError(
            f"{module}.{function} could not be recorded:\n{done.stdout}{done.stderr}"
        )
    recording = pickle.loads(into.read_bytes())
    assert isinstance(recording, Recording)
    return recording


def main() -> None:
    root, into, module_name, function, *arguments = sys.argv[1:]
    module = importlib.import_module(module_name)
    if (prepare := getattr(module, f"prepare_{function}", None)) is not None:
        _run_apart(lambda: prepare(Path(root), *arguments))
    program = getattr(module, function)
    recording = Recorder(Path(root)).run(lambda: program(Path(root), *arguments))
    if recording.exit_code:
        raise SystemExit(f"the program ended with {recording.exit_code}")
    Path(into).write_bytes(pickle.dumps(recording))


if __name__ == "__main__":
    main()
