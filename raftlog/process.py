"""The process of a node: its build, memory, parent and signals."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

COMMIT_FILE = "COMMIT"
"""Name of the file next to this module that hatch_build.py writes into wheels."""
_PACKAGE = Path(__file__).resolve().parent


def version_text() -> str:
    """Return the version of the installed distribution, such as ``0.1.0``."""
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )  # Imported here, since it takes 20 ms.

    try:
        return version("raftlog")
    except PackageNotFoundError:
        return "unknown version"


def build_text() -> str:
    """Return the version and commit, such as ``0.1.0 (commit 58f7ecc1d2e3)``, or only the
    version.
    """
    number = version_text()
    commit = commit_text()
    return f"{number} (commit {commit})" if commit else number


def commit_text() -> str:
    """Return the commit's short hash, with "+" if files differ from it, or "" if this build does
    not come from a checkout.
    """
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return commit_of_checkout(_PACKAGE.parent)


def commit_of_checkout(root: Path) -> str:
    """Return the commit of the checkout at ``root``, or "" if it is not a checkout itself or git is
    missing.
    """
    if not (root / ".git").exists():
        return ""
    import subprocess

    # Takes no lock and refreshes no index: the checkout may be in use.
    command = [
        "git",
        "--no-optional-locks",
        "describe",
        "--always",
        "--abbrev=12",
        "--exclude=*",
        "--dirty=+",
    ]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


YOUNG_ALLOCATIONS = 50_000
YOUNG_PER_MIDDLE = 2
MIDDLE_PER_FULL = 1_000_000

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
OWN_PAGES_FROM_BYTES = 32 << 20


def tune_memory() -> None:
    """Enable garbage collection, but make full collections rare, freeze the objects of imported
    modules, and let the allocator keep freed memory.

    An image is millions of small objects without cycles: a full collection stops the node for
    tenths of a second and frees nothing, since reference counting frees nearly all garbage. By
    default glibc uses mmap for blocks as large as a log chunk, so the kernel would map, zero and
    unmap one for each message.
    """
    gc.set_threshold(YOUNG_ALLOCATIONS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
    gc.collect()
    gc.freeze()
    gc.enable()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # Only glibc has it.
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even by SIGKILL.

    Exits at once if ``parent`` is no longer the parent. Does nothing outside Linux.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """Handlers of SIGTERM, SIGINT and SIGHUP that stop a node in an orderly way.

    Under nohup, SIGHUP stays ignored. Must be created on the running event loop of the main thread.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._first: int | None = None
        self.call(stop)

    def call(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` at each signal from now on, and at once if one has already been
        received.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._asked, number, stop)
        if self._first is not None:
            stop()

    def _asked(self, number: int, stop: Callable[[], None]) -> None:
        if self._first is None:
            self._first = number
        stop()

    @property
    def exit_code(self) -> int:
        """Exit code of a node after an orderly stop: 0, or 130 after SIGINT, which also ends a
        shell's loop.
        """
        return 130 if self._first == signal.SIGINT else 0
