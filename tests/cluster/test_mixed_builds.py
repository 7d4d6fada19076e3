from pathlib import Path

import pytest
from mixed_builds import PINNED, live, runbook


@pytest.mark.nightly
def test_upgrade_runbook_works_with_a_build_that_knows_one_level_less(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print, runbook)


@pytest.mark.nightly
def test_this_build_works_with_one_that_knows_only_the_previous_level(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print)
