"""ptrace(2) by ctypes: stops a child and its threads at each system call.

Linux on x86_64 and aarch64, without a compiler.
"""

import ctypes
import os
import platform
import signal
from typing import NamedTuple

_TRACEME, _CONT_SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TRACESYSGOOD, _TRACEFORK, _TRACEVFORK, _TRACECLONE, _TRACEEXEC, _EXITKILL = 1, 2, 4, 8, 16, 1 << 20
_OPTIONS = _TRACESYSGOOD | _TRACEFORK | _TRACEVFORK | _TRACECLONE | _TRACEEXEC | _EXITKILL
ALL_CHILDREN = 0x40000000
"""waitpid's __WALL: threads too."""
SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY, _EXIT = 1, 2

_NAMES = {
    "x86_64": {
        1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 328: "pwritev2", 2: "open", 85: "creat", 257: "openat",
        437: "openat2", 77: "ftruncate", 76: "truncate", 285: "fallocate", 82: "rename", 264: "renameat", 316: "renameat2",
        87: "unlink", 263: "unlinkat", 84: "rmdir", 83: "mkdir", 258: "mkdirat", 86: "link", 265: "linkat", 88: "symlink",
        266: "symlinkat", 74: "fsync", 75: "fdatasync", 162: "sync", 306: "syncfs", 9: "mmap", 40: "sendfile",
        326: "copy_file_range", 275: "splice", 425: "io_uring_setup", 209: "io_submit",
    },
    "aarch64": {
        64: "write", 68: "pwrite64", 66: "writev", 70: "pwritev", 287: "pwritev2", 56: "openat", 437: "openat2", 46: "ftruncate",
        45: "truncate", 47: "fallocate", 38: "renameat", 276: "renameat2", 35: "unlinkat", 34: "mkdirat", 37: "linkat",
        36: "symlinkat", 82: "fsync", 83: "fdatasync", 81: "sync", 267: "syncfs", 222: "mmap", 71: "sendfile",
        285: "copy_file_range", 76: "splice", 425: "io_uring_setup", 2: "io_submit",
    },
}  # fmt: skip


class TracingError(Exception):
    """This machine does not allow tracing: nothing was shown."""


class _SyscallInfo(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint8), ("padding", ctypes.c_uint8 * 3), ("arch", ctypes.c_uint32), ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64), ("first", ctypes.c_int64), ("args", ctypes.c_uint64 * 6), ("more", ctypes.c_uint64),
    )  # fmt: skip


class Call(NamedTuple):
    """A thread is about to make a system call. ``name`` is empty if it is irrelevant."""

    name: str
    args: tuple[int, ...]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def names_of_this_machine() -> dict[int, str]:
    """Return system calls by number. Raises TracingError."""
    machine = platform.machine()
    if machine not in _NAMES:
        raise TracingError(
            f"the numbers of system calls are known for {', '.join(_NAMES)}, this is {machine}"
        )
    return _NAMES[machine]


def let_trace_me() -> None:
    """In the child: stop until the parent begins."""
    _ptrace(_TRACEME, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def begin(pid: int) -> None:
    """In the parent: wait for the child's stop, and trace it and its children.

    Raises TracingError.
    """
    _, status = os.waitpid(pid, ALL_CHILDREN)
    if not os.WIFSTOPPED(status):
        raise TracingError(
            "ptrace is not permitted here, so nothing can be said of power loss: allow ptrace of"
            " own children"
        )
    _ptrace(_SETOPTIONS, pid, 0, _OPTIONS)


def resume(tid: int, sig: int = 0) -> None:
    """Let a stopped thread run to its next stop. A thread that was killed before then is not an
    error.
    """
    try:
        _ptrace(_CONT_SYSCALL, tid, 0, sig)
    except ProcessLookupError:
        return


def call_of(tid: int, names: dict[int, str]) -> Call | None:
    """Return the call that a thread is about to make; None if it has made it."""
    info = _info(tid)
    if info.op != _ENTRY:
        return None
    return Call(names.get(info.first, ""), tuple(info.args))


def result_of(tid: int) -> int:
    info = _info(tid)
    if info.op != _EXIT:
        raise TracingError(f"thread {tid} stopped for something else than the end of its call")
    return info.first


def is_stopped(tid: int) -> bool:
    """Return whether a thread that we stopped is still stopped; if not, it was killed."""
    try:
        _info(tid)
    except ProcessLookupError:
        return False
    return True


def _info(tid: int) -> _SyscallInfo:
    info = _SyscallInfo()
    _ptrace(_GET_SYSCALL_INFO, tid, ctypes.sizeof(info), ctypes.addressof(info))
    return info


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    ctypes.set_errno(0)
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        if number == 3:
            raise ProcessLookupError(number, os.strerror(number))
        raise TracingError(f"ptrace request {request:#x}: {os.strerror(number)}")
