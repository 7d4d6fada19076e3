"""Runs of pytest without this repository's options and environment."""

import os
import subprocess
import sys
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
_CHANGES_OUTPUT = {"CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "FORCE_COLOR", "PY_COLORS", "COLUMNS"}
"""Variables that change pytest's output: with the first two it does not shorten its summary."""


def run_pytest(
    directory: Path, *arguments: str, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run pytest in ``directory`` and return its output."""
    return subprocess.run(
        [*PYTEST, *arguments],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name not in _CHANGES_OUTPUT},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
