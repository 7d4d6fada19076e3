"""A program that kills a test cluster, and removes its directory, when the tests' process exits.

Run as ``python reaper.py DIRECTORY``. Its stdin is a pipe from the tests' process, which the kernel
closes however that process exits: after the last test, by SIGKILL, or by a crash. It imports
nothing from raftlog, so that it starts at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_ROUNDS = 200
_PAUSE_S = 0.02


def pids_of(directory: str) -> list[int]:
    """Return the pids of the nodes whose configuration is in the directory. Ignores other processes
    that name the directory, such as one reading a node's log.
    """
    wanted, found = os.fsencode(directory) + b"/", []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue  # The process has ended.
        if arguments[-3:-2] == [b"-c"] and arguments[-2].startswith(wanted):
            found.append(int(entry))
    return found


def end_all(directory: str) -> None:
    """Kill the nodes, including any that start meanwhile, then remove the directory."""
    for _ in range(_ROUNDS):
        pids = pids_of(directory)
        if not pids:
            break
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE_S)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_all(sys.argv[1])
