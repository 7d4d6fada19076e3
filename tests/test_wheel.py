"""What is in the wheel. Building one downloads a build environment, so this is not for the gate."""

from __future__ import annotations

import zipfile

import pytest
from installed import ROOT, build_wheels

from raftlog.build import COMMIT_FILE, commit_of_checkout

pytestmark = pytest.mark.nightly

PACKAGES = ("raftlog", "controller", "broker", "replay", "simulation", "pyspark_raftlog")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    (path,) = build_wheels(tmp_path_factory.mktemp("wheel")).glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_code_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources <= names
    assert "raftlog/wire/controller/v1/controller_pb2_grpc.py" in names
    assert "raftlog/wire/controller/v1/controller_pb2.pyi" in names
    assert "replay/report/templates/report.html.j2" in names
    assert "raftlog/deploy/raftlog-controller@.service" in names
    tops = {name.partition("/")[0] for name in names}
    beside = (".dist-info", ".data")
    assert {top for top in tops if not top.endswith(beside)} == set(PACKAGES)


def test_the_command_is_a_script_that_imports_nothing_before_ctrl_c_is_silent(
    wheel: zipfile.ZipFile,
) -> None:
    """[What pip makes of an entry point imports re first, and a traceback is what Ctrl-C gets.]"""
    (script,) = (one for one in wheel.infolist() if one.filename.endswith(".data/scripts/raftlog"))
    lines = wheel.read(script).decode().splitlines()
    assert lines[0] == "#!python", "an installer puts its interpreter there"
    code = [line for line in lines[1:] if line and not line.startswith('"""')]
    assert code == [
        "from raftlog.cli.entry import main",
        "# A process that multiprocessing spawns loads the script of its parent again: it runs no"
        " command.",
        'if __name__ == "__main__":',
        "    main()",
    ]
    assert script.external_attr >> 16 & 0o111 == 0o111, "pip keeps the mode that it has"


def test_the_wheel_has_the_contracts_and_the_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    contracts = {
        path.relative_to(ROOT / "proto").as_posix(): path
        for path in (ROOT / "proto").rglob("*.proto")
    }
    assert contracts
    for name, path in contracts.items():
        assert wheel.read(f"raftlog/proto/{name}") == path.read_bytes()
    (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_says_which_commit_it_was_built_from(wheel: zipfile.ZipFile) -> None:
    assert wheel.read(f"raftlog/{COMMIT_FILE}").decode().strip() == commit_of_checkout(ROOT)
