"""Each sync that is left out, and each order of steps that is changed, is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from careless_edits import SHOWN_BY
from examination import Depth, Starter, examine
from power_kit import PROGRAMS
from recorder import record
from tiers import in_gate

GATE = (
    "log_not_synced", "partitions_not_synced", "small_files_not_synced", "snapshot_not_synced", "log_emptied_after_its_state",
    "acknowledged_before_the_sync", "recovery_votes_last", "backup_not_synced",
)  # fmt: skip
"""What a program of each kind forgets."""


@pytest.mark.parametrize("edit", in_gate(SHOWN_BY, GATE))
def test_careless_edit_is_noticed(edit: str, scratch: Path, starter: Starter) -> None:
    module, function, start = SHOWN_BY[edit]
    (program,) = (one for one in PROGRAMS if (one.module, one.function) == (module, function))
    root = scratch / edit
    root.mkdir()
    recording = record(root, scratch / "recording", "careless_edits", "careless", edit)
    examined = examine(function, recording, start, program.promises(), starter, Depth(broken_max=1))
    assert examined.broken
    print(examined.broken[0])
