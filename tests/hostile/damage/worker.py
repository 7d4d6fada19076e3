"""The process that reads damaged directories: the suite survives a reader that crashes, spins or
takes all memory.
"""

import json
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 60.0
"""Bound in seconds for at most a few probes of 10 s each."""


class Worker:
    """Restarted when it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, kind: str, directory: Path, readers: list[str]) -> dict[str, Any]:
        """Return the readers' results; ``{"crash": why}`` if the process did not return."""
        process = self._process or self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            json.dumps({"kind": kind, "directory": str(directory), "readers": readers}) + "\n"
        )
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(WITHIN_S):
                self.close()
                return {"crash": f"no answer in {WITHIN_S:g} s"}
        line = process.stdout.readline()
        if not line:
            self._process = None
            return {"crash": f"it died with {process.wait(10)}"}
        said: dict[str, Any] = json.loads(line)
        return said

    def _begun(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.damage.readers"], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self._process

    def close(self) -> None:
        """Over."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
