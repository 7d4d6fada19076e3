import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_runs import run_text

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "scripts" / "raftlog_server"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_security_linter_reports_no_finding_in_workflows() -> None:
    command = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    assert command is not None, "zizmor is not installed: scripts/setup brings it"
    done = run_text([command, "--offline", "--no-progress", ROOT / ".github"], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    for action, version in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), action


def test_jobs_have_only_the_permissions_that_they_need() -> None:
    granted = {
        (path.name, name): job.get("permissions", workflow(path)["permissions"])
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
    }
    assert granted.pop(("publish.yml", "publish")) == {"id-token": "write"}
    assert granted.pop(("publish.yml", "release")) == {"contents": "write"}
    assert len(granted) == 4
    assert all(permissions == {"contents": "read"} for permissions in granted.values())


def test_gate_runs_on_the_supported_python_versions() -> None:
    (job,) = workflow(ROOT / ".github" / "workflows" / "test.yml")["jobs"].values()
    pythons = job["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = re.findall(r"cp3(\d+)-", project["tool"]["cibuildwheel"]["build"])
    assert project["project"]["requires-python"] == f">={pythons[0]}"
    assert {one.removeprefix("3.") for one in pythons} <= {*built}
    classifiers = "\n".join(project["project"]["classifiers"])
    assert re.findall(r"Python :: 3\.(\d+)", classifiers) == built


def test_distributions_share_licence_and_build_settings() -> None:
    ours, server = (
        tomllib.loads((directory / "pyproject.toml").read_text()) for directory in (ROOT, SERVER)
    )
    assert (SERVER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for key in ("requires-python", "license", "license-files", "classifiers"):
        assert server["project"][key] == ours["project"][key]
    versions = [one["tool"]["hatch"]["version"]["raw-options"] for one in (ours, server)]
    assert versions[1].pop("root") == "../.."
    assert versions[0] == versions[1]
