"""Damaged directories, exports and configurations: every reader gives the right answer or says what
is wrong. A sample of the suite.

``python -m tests.hostile.damage --cases 5000`` does more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from damage.suite import run
from tiers import nightly

CASES = int(os.environ.get("RAFTLOG_DAMAGE_CASES", "300"))
SEED = int(os.environ.get("RAFTLOG_DAMAGE_SEED", "1"))


@pytest.mark.parametrize("cases", [40, nightly(CASES)])
def test_damage_is_answered_rightly_or_named(tmp_path: Path, cases: int) -> None:
    report = run(tmp_path, cases, SEED, readers_per_case=1)
    print(report.summary())
    assert report.problems == []
    # The suite itself is at work: every kind of directory is read as undamaged, and is found
    # damaged.
    for kind in ("controller", "broker", "export"):
        outcomes = " ".join(name for name in report.outcomes if name.startswith(kind))
        assert "as undamaged" in outcomes, report.summary()
        assert "exit 3" in outcomes, report.summary()
