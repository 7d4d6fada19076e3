"""Power failures at each moment of the disk operations of nodes and brokers: the next start keeps
every promise, and each omitted sync is detected. Needs ptrace of own children, and fails where that
is forbidden. Its limits are in docs/correctness.md.
"""

from pathlib import Path

import pytest
from careless_edits import EDITS
from examination import Depth, Examined, Starter, examine
from power_kit import DEPTH, GOES_ON, NIGHTLY, PROGRAMS, Program
from recorder import record
from tiers import in_gate

AT_NIGHT = (
    "install",
    "install_over_start",
    "move_start",
    "restart",
    "restore_backup",
)
GATE = tuple(program for program in PROGRAMS if program.function not in AT_NIGHT)

# In depth a program has twenty thousand states to start from.
pytestmark = [pytest.mark.timeout(3_600)] if NIGHTLY else []


def require_kept(examined: Examined) -> None:
    print(examined)
    shown = "\n".join(examined.broken[:5])
    assert not examined.broken, (
        f"{len(examined.broken)} of {examined.states} states are not kept:\n{shown}"
    )


@pytest.mark.parametrize("program", in_gate(PROGRAMS, GATE), ids=lambda program: program.function)
def test_promises_hold_after_a_power_cut(program: Program, scratch: Path, starter: Starter) -> None:
    root = scratch / program.function
    root.mkdir()
    recording = record(root, scratch / "recording", program.module, program.function)
    examined = examine(
        program.function, recording, program.start, program.promises(), starter, DEPTH
    )
    require_kept(examined)
    assert examined.moments >= 7
    assert examined.starts >= 5
    if program.function not in GOES_ON:
        return
    assert len(examined.kept) == DEPTH.keep
    for index, (state, promises) in enumerate(examined.kept):
        again = scratch / f"{program.function}-{index}"
        state.put(again)
        recording = record(again, scratch / "recording", "node_programs", "start_again")
        depth = Depth(samples=DEPTH.samples // 8, each_event=NIGHTLY)
        name = f"{program.function}, a start on {state.name}"
        require_kept(examine(name, recording, program.start, promises, starter, depth))


# --- Each sync that is left out, and each order of steps that is changed, is noticed -------------


EDITS_IN_GATE = (
    "log_not_synced", "partitions_not_synced", "small_files_not_synced", "snapshot_not_synced", "log_emptied_after_its_state",
    "acknowledged_before_the_sync", "recovery_votes_last", "backup_not_synced",
)  # fmt: skip
"""Edits of the gate: one omission for a program of each kind."""


@pytest.mark.parametrize("edit", in_gate(EDITS, EDITS_IN_GATE))
def test_careless_edit_is_detected(edit: str, scratch: Path, starter: Starter) -> None:
    (program,) = (one for one in PROGRAMS if one.function == EDITS[edit].function)
    root = scratch / edit
    root.mkdir()
    recording = record(root, scratch / "recording", "careless_edits", "careless", edit)
    examined = examine(
        program.function,
        recording,
        program.start,
        program.promises(),
        starter,
        Depth(broken_max=1),
    )
    assert examined.broken
    print(examined.broken[0])
