from pathlib import Path

import pytest
from mixed_builds import PINNED, live


@pytest.mark.nightly
def test_cluster_is_upgraded_rolled_back_and_upgraded_from_the_previous_level(
    tmp_path: Path,
) -> None:
    live(tmp_path / "cluster", PINNED, print)
