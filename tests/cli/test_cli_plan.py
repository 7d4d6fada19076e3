"""``raftlog plan`` and ``apply``: what was reviewed is applied, or nothing."""

import shlex
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli.plan import _note_unvouched
from raftlog.identity import os_user
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of
from raftlog.segments.point import ExportedState


def planned(file: Path, at: Raftlog) -> str:
    ran = at.succeed("plan", file, "--json")
    return str(ran.json["plan"])


def test_applied_plan_leaves_nothing_to_do(raftlog: Raftlog, at: Raftlog, tmp_path: Path) -> None:
    file = tmp_path / "of once.yaml"
    file.write_text("topics:\n  applied-once: {partitions: 1, configs: {retention.ms: 5000}}\n")
    shown = at.succeed("plan", file)
    line = shlex.split(shown.out.splitlines()[-1])
    assert line == ["raftlog", "apply", str(file), "--plan", planned(file, at), *at]
    raftlog(*line[1:]).showed("2 changes applied in one batch of 3 records")
    at("plan", file).showed("nothing to change")
    at("history topic applied-once --json").showed(f'"principal":"{os_user()}"')


def test_plan_is_refused_after_a_change_of_state(at: Raftlog, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("keys: {plan/moved: {value: planned}}\n")
    reviewed = planned(file, at)
    at.succeed("kv put plan/moved other")
    at("apply", file, "--plan", reviewed).refused(1, "INVALID_UPDATE_VERSION")
    reviewed = planned(file, at)
    file.write_text("keys: {plan/moved: {absent: true}}\n")
    assert "INVALID_UPDATE_VERSION" in at("apply", file, "--plan", reviewed).err
    left = at("diff", at.address, at.address)
    assert "0 differences" in left.out
    assert at("apply", file).code == 2, "nobody can be asked"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("topics: {a: {replication_factor: 7}}", "replication factor 7 exceeds the number of"),
        ("topics: {a: {configs: {retention.mx: 1}}}", "there is no topic config"),
        ("keys: {'a b': {value: x}}", "a b: "),
        ("topics: {gone: {absent: true}}", "nothing to change"),
    ],
)
def test_plan_shows_what_the_controller_would_decide(
    at: Raftlog, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    ran = at("plan", file)
    assert why in ran.out + ran.err
    assert ran.code == (0 if why.startswith("nothing") else 1)


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_empty_file_is_refused(at: Raftlog, tmp_path: Path, text: str) -> None:
    """[the command that should have written it may have failed]"""
    file = tmp_path / "f.yaml"
    file.write_text(text)
    at("plan", file).refused(2, f"{file} is empty")
    file.write_text("{}")
    at("plan", file).showed("nothing to change")


def test_drain_of_an_unknown_broker_changes_nothing(at: Raftlog) -> None:
    """[a mistyped id, and then another broker is stopped]"""
    at("brokers drain 99").refused(1, "broker 99: not registered, and no replicas")


@pytest.mark.parametrize(
    ("vouched_by", "noted"), [("", True), ("node 1 at offset 7", False), (None, False)]
)
def test_export_state_that_no_controller_confirms_is_reported(
    vouched_by: str | None, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    header = header_of(Image(), cluster_id="c", generations=())
    _note_unvouched("exported", ExportedState(Image(), header, vouched_by, {}))
    assert ("no controller vouches for the state" in capsys.readouterr().err) == noted
