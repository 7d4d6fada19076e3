"""A process that opens damaged directories for a test: if RocksDB dies or spins over them, the test
can say over which.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

WITHIN_S = 60.0
"""Of what takes at most two probes of 10 s."""


class Prober:
    """The process that opens what is damaged."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def open(self, directory: Path, what: str) -> dict[str, Any]:
        """What it finds. Fails if it does not come back, or dies."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{directory}\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(WITHIN_S), f"{what}: opening it hangs"
        line = process.stdout.readline()
        assert line, f"{what}: the process that opened it has died, with {process.wait(10)}"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Over."""
        self._process.kill()
        self._process.communicate()
