"""A sample of the damage suite, and its judge."""

import os
from pathlib import Path
from typing import Any

import pytest
from damage.bases import Base
from damage.judge import problem
from damage.suite import run
from damage.wounds import Wound
from tiers import nightly

CASES = int(os.environ.get("RAFTLOG_DAMAGE_CASES", "300"))
SEED = int(os.environ.get("RAFTLOG_DAMAGE_SEED", "1"))


@pytest.mark.parametrize("cases", [60, nightly(CASES)])
def test_damage_is_answered_correctly_or_named(tmp_path: Path, cases: int) -> None:
    report = run(tmp_path, cases, SEED, readers_per_case=1)
    print(report.summary())
    assert report.problems == []
    # The suite itself is at work: every kind of directory is read as undamaged, and is found
    # damaged.
    for kind in ("controller", "broker", "export"):
        outcomes = " ".join(name for name in report.outcomes if name.startswith(kind))
        assert "as undamaged" in outcomes, report.summary()
        assert "exit 3" in outcomes, report.summary()


CLOSED = Base("closed", "controller", Path("/nowhere"), ())
SOUND = {"code": 0, "out": '{"offset": 1}\n{"offset": 2}\n', "err": "", "log": ""}
CUT = Wound("cut", "log/000041.sst", 7)


def said(
    code: int = 3, out: str = "", err: str = "raftlog: 000041.sst is corrupt\n", **more: Any
) -> dict[str, Any]:
    return {"code": code, "out": out, "err": err, "log": "", **more}


def test_judge_accepts_sound_outcomes() -> None:
    assert problem(CLOSED, CUT, "dump", SOUND, SOUND) == ""
    assert problem(CLOSED, CUT, "dump", SOUND, said()) == ""
    assert problem(CLOSED, CUT, "dump", SOUND, said(out='{"offset": 1}\n')) == ""
    assert problem(CLOSED, CUT, "dump", SOUND, said(err="raftlog: damaged at offset 5\n")) == ""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (said(code=0, out='{"offset": 1}\n'), "another answer"),
        (said(code=0, out='{"offset": 2}\n'), "another answer"),
        (said(out='{"offset": 2}\n'), "not the undamaged one"),
        (said(code=139), "exit code 139"),
        (said(err="Traceback (most recent call last):\n"), "no message"),
        (said(err=""), "no message"),
        (said(err="raftlog: 000041.sst\nis corrupt\n"), "more than one line"),
        (said(err="raftlog: it is corrupt\n"), "neither file nor offset"),
        (said(defect="KeyError: 1"), "not a typed error"),
    ],
)
def test_judge_names_the_problem_of_wrong_outcomes(found: dict[str, Any], why: str) -> None:
    assert why in problem(CLOSED, CUT, "dump", SOUND, found)
