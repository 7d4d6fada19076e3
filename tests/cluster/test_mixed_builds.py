"""A cluster is upgraded one node at a time, rolled back, upgraded again, and only then raised to
the new level, all under writes.
"""

import os
from pathlib import Path

import pytest
from mixed_builds import PINNED, live


@pytest.mark.nightly
def test_this_build_and_one_that_knows_only_the_level_before(tmp_path: Path) -> None:
    live(tmp_path / "cluster", PINNED, print)


@pytest.mark.nightly
@pytest.mark.skipif(
    "RAFTLOG_OTHER_BUILD" not in os.environ,
    reason="RAFTLOG_OTHER_BUILD names no other raftlog command",
)
def test_this_build_and_another_one(tmp_path: Path) -> None:
    live(tmp_path / "cluster", [os.environ["RAFTLOG_OTHER_BUILD"]], print)
