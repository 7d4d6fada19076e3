"""Samples from ``perf``, if this machine has it: CPU by binary, without wrappers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

HERTZ = 997
KERNEL = "[kernel]"
KINDS = {
    "kernel": (KERNEL,),
    "gRPC": ("cygrpc",),
    "protobuf": ("google/_upb",),
    "RocksDB": ("rocksdict",),
    "uvloop": ("uvloop",),
    "Python": ("python",),
    "libc": ("libc.", "libc-", "libm", "ld-linux", "libstdc++", "[vdso]"),
}
"""Fragments of a path by kind; the first matching kind counts. ``python`` is in the path of every
package, so it comes after them.
"""
_LINE = re.compile(r"^\s*(\d+)\s+([0-9a-f]+)\s+\((.*)\)\s*$")


class Sampling:
    """A sampler of some processes from ``start`` to ``stop``."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "perf.data"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, pids: Iterable[int]) -> None:
        """Start sampling; does nothing without perf."""
        if shutil.which("perf") is None:
            return
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ)]
        self._process = subprocess.Popen(
            [*command, "-o", str(self._file), "-p", ",".join(map(str, pids))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> dict[int, Counter[str]]:
        """Return the samples by process and binary; empty if none could be taken."""
        if self._process is None:
            return {}
        self._process.terminate()
        self._process.wait()
        done = subprocess.run(
            ["perf", "script", "-i", str(self._file), "-F", "pid,ip,dso"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        return parse(done.stdout.splitlines())


def parse(lines: Iterable[str]) -> dict[int, Counter[str]]:
    """Parse lines of "pid address (binary)". An address in the upper half is the kernel's."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for line in lines:
        match = _LINE.match(line)
        if match is not None:
            pid, address, path = match.groups()
            found[int(pid)][KERNEL if int(address, 16) >> 63 else path] += 1
    return dict(found)
