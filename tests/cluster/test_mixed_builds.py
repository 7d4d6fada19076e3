"""A cluster is upgraded one node at a time, rolled back, upgraded again, and only then raised to
the new level, all under writes.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from mixed_builds import PINNED, live, runbook

ROOT = Path(__file__).parents[2]
BEFORE = "d724fb82464f5ab283ccfbd186e019191bff50ad"
"""The last commit whose latest metadata.version is 7."""


def build_before(directory: Path) -> str:
    """The command of that commit's build, or of the one that OTHER_BUILD names. [RAFTLOG_* are settings
    of the nodes that the test starts.]
    """
    if given := os.environ.get("OTHER_BUILD"):
        return given
    archive = subprocess.run(
        ["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    directory.mkdir()
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True, timeout=60)
    setup = [str(directory / "scripts" / "setup"), "--for", "server"]
    ran = subprocess.run(setup, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return str(directory / ".venv" / "bin" / "raftlog")


def can_build() -> bool:
    """Whether that commit is in this checkout: it is not in a shallow one."""
    if "OTHER_BUILD" in os.environ:
        return True
    if shutil.which("git") is None:
        return False
    asked = ["git", "cat-file", "-e", f"{BEFORE}^{{commit}}"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_runbook_of_upgrades_with_a_build_that_knows_one_level_less(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print, runbook)


@pytest.mark.nightly
def test_this_build_and_one_that_knows_only_the_level_before(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print)


@pytest.mark.nightly
@pytest.mark.skipif(not can_build(), reason="a checkout without the commit of the build before")
def test_this_build_and_the_one_before(tmp_path: Path) -> None:
    live(tmp_path / "cluster", [build_before(tmp_path / "before")], print)
