"""Each row of docs/proposals.md has an edit that makes it false, or says why nothing does, and
edits are noticed.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter

import pytest
from row_data import RowEdit
from row_runs import ROOT
from rows import ALL, EDITS, TABLE, named_rows

from simulation.mutants.edits import StaleMutantError, edited

SAMPLE = ("HB-20", "ID-4")
"""What the gate runs; scripts/rows runs all."""


def test_each_row_has_a_name_and_an_edit_or_a_reason() -> None:
    lines = [
        line
        for line in TABLE.read_text().splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    heads = sum(line.startswith("| # |") for line in lines)
    rows = named_rows()
    assert len(rows) == len(lines) - heads, "a row without a name"
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    assert {one.row for one in ALL} == set(rows)
    both = {one.row for one in EDITS} & {one.row for one in ALL if not isinstance(one, RowEdit)}
    assert both == set(), "a row has an edit, or a reason to have none"
    assert all(len(one.why) > 20 for one in ALL if not isinstance(one, RowEdit))


def test_each_edit_applies_and_its_tests_are_there() -> None:
    """One test: with one for each edit pytest would take longer than all of them."""
    wrong: list[str] = []
    for one in EDITS:
        try:
            with edited(one.edits):
                pass
        except StaleMutantError as error:
            wrong.append(f"{one.row}: {one.breaks}: {error}")
        wrong += [f"{one.row}: changes nothing" for edit in one.edits if edit.old == edit.new]
        wrong += [
            f"{one.row}: there is no test {test}" for test in one.tests if not _is_there(test)
        ]
    assert wrong == []


def _is_there(test: str) -> bool:
    name, _, function = test.partition("::")
    path = ROOT / "tests" / name
    return path.is_file() and (
        not function or re.search(rf"def {function}\(", path.read_text()) is not None
    )


def test_an_edit_that_does_not_apply_any_more_is_an_error() -> None:
    edit = EDITS[0].edits[0]
    for stale in (
        edit._replace(old=edit.old + " and more"),
        edit._replace(target=edit.target + "_gone"),
    ):
        with pytest.raises(StaleMutantError), edited([stale]):
            pass


def test_the_edits_of_a_sample_are_noticed() -> None:
    ran = subprocess.run(
        [ROOT / "scripts" / "rows", "--unchecked", *SAMPLE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outcomes = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert {one["row"] for one in outcomes} == set(SAMPLE)
    assert {one["verdict"] for one in outcomes} == {"killed"}, ran.stdout
    assert ran.returncode == 0


def test_what_proves_nothing_is_not_taken_for_a_kill() -> None:
    """One that is not noticed, one that does not apply, and one that is broken itself."""
    program = """
from dataclasses import replace
from row_data import breaks
from row_runs import prepare, run_edit
prepare()
target, test = "broker.registration.identity:known_id", "broker/test_broker_identity.py::test_configured_then_stored"
old = "return stored if configured == NO_NODE_ID else configured"
for new in ("return configured if stored == NO_NODE_ID else stored", "return stored.no_such_name"):
    print(run_edit(breaks("X-1", "", target, old, new, test)).verdict)
print(run_edit(breaks("X-1", "", target, old + "!", "", test)).verdict)
print(run_edit(breaks("X-1", "", target, old, "return stored", "broker/no_such_test.py")).verdict)
"""
    python = ROOT / ".venv" / "bin" / "python"
    ran = subprocess.run(
        [python, "-c", program], cwd=ROOT / "tests" / "rows", env={"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == ["survived", "broken", "stale", "broken"], ran.stderr
