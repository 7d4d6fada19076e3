"""Wheels of this checkout, and virtual environments for them. Building and installing download
packages: not for the gate.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT, ROOT / "scripts" / "raftlog_server")
"""The directories of the two distributions."""
INSTALL_S = 900.0
"""Downloads and compilers."""


def virtual_environment(directory: Path) -> Path:
    """Return the interpreter of a new environment with pip, which environments made by uv lack."""
    venv.create(directory, with_pip=True)
    return directory / "bin" / "python"


def build_wheels(directory: Path, **variables: str) -> Path:
    """Return a directory with the two wheels of this checkout. ``variables``: of the environment."""
    python = virtual_environment(directory / "builder")
    wheels = directory / "wheels"
    run(
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, *SOURCES],
        variables=variables,
    )
    return wheels


def install(python: Path, *requirements: str | Path) -> None:
    """Install with pip; options count as requirements."""
    run([python, "-m", "pip", "install", "--quiet", *requirements])


def run(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run the program and return its output; it must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lowest_versions(*extras: str) -> str:
    """Constraints for pip: the lowest versions that pyproject.toml admits."""
    return run([sys.executable, ROOT / "scripts" / "lowest_versions.py", *extras])
