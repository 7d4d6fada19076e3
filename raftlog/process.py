"""The process of a node: its build, its memory, its parent and its signals."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

COMMIT_FILE = "COMMIT"
"""Name of the file beside this module that hatch_build.py writes into wheels."""
_PACKAGE = Path(__file__).resolve().parent


def version_text() -> str:
    """Return the version of the installed distribution: ``0.1.0``."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms, which others save.

    try:
        return version("raftlog")
    except PackageNotFoundError:
        return "unknown version"


def build_text() -> str:
    """Return ``0.1.0 (commit 58f7ecc1d2e3)``, or the version alone."""
    number = version_text()
    commit = commit_text()
    return f"{number} (commit {commit})" if commit else number


def commit_text() -> str:
    """Return the short hash of the commit, with "+" if files differ from it; empty if this was not
    built from a checkout.
    """
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return commit_of_checkout(_PACKAGE.parent)


def commit_of_checkout(root: Path) -> str:
    """Return the commit of the checkout at ``root``; empty if it is not a checkout itself, or git
    is missing.
    """
    if not (root / ".git").exists():
        return ""
    import subprocess

    # No lock is taken and no index refreshed: others may work in the checkout.
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
    """Make full garbage collections rare, freeze the objects of imported modules, and let the
    allocator keep freed memory.

    An image is millions of small objects without cycles: a full collection stops the node for
    tenths of a second and frees nothing, since reference counts free nearly all garbage.

    glibc maps blocks of the size of a log chunk by default: the kernel would map, zero and unmap
    them for each message.
    """
    gc.set_threshold(YOUNG_ALLOCATIONS, YOUNG_PER_MIDDLE, MIDDLE_PER_FULL)
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc alone has it.
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also by SIGKILL.

    Ends it at once if ``parent`` is no longer its parent. Does nothing outside of Linux.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """Handlers of SIGTERM, SIGINT and SIGHUP, which stop a node in order.

    Under nohup SIGHUP stays ignored. Made on the running event loop of the main thread.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._first: int | None = None
        self.call(stop)

    def call(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` at each signal from now on; at once if one was received before."""
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
        """Exit code of a node that has stopped in order: 0, or 130 after SIGINT, which ends a
        shell's loop too.
        """
        return 130 if self._first == signal.SIGINT else 0
