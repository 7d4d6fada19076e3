"""A cluster is upgraded one node at a time, rolled back, upgraded again, and only then raised to
the new level, all under writes.
"""

from pathlib import Path

import pytest
from mixed_builds import PINNED, live, runbook


@pytest.mark.nightly
def test_runbook_of_upgrades_with_a_build_that_knows_one_level_less(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print, runbook)


@pytest.mark.nightly
def test_this_build_and_one_that_knows_only_the_level_before(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print)
