"""The examples, checked by type checkers against the installed client library."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_runs import run_text
from installed import INSTALL_S, ROOT, build_wheels, install, virtual_environment

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(INSTALL_S)]

WRONG = """
import raftlog
from raftlog.recipes import Lock

with raftlog.connect() as client, Lock(client, "job") as lock:
    client.topics.create(5)
    text: str = lock.token
    partitions: int = client.topics.describe("orders").partitions
"""
MISTAKES = 3


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with raftlog and both type checkers, beside the examples."""
    directory = tmp_path_factory.mktemp("typed")
    (wheel,) = build_wheels(directory).glob("raftlog-*.whl")
    python = virtual_environment(directory / "venv")
    install(python, wheel, "mypy", "pyright[nodejs]")
    examples = directory / "examples"
    shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("go", "node"))
    (examples / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    (directory / "wrong.py").write_text(WRONG)
    return directory


def judged(programs: Path, command: Sequence[str | Path]) -> tuple[int, str]:
    done = run_text(
        command,
        timeout=INSTALL_S,
        cwd=programs,
        env={
            "PATH": f"{programs / 'venv' / 'bin'}:/usr/bin:/bin",
            "HOME": str(programs),
            "PYRIGHT_PYTHON_CACHE_DIR": str(programs / "cache"),
        },
    )
    return done.returncode, done.stdout + done.stderr


def mypy(programs: Path, *paths: str) -> tuple[int, str]:
    return judged(programs, [programs / "venv" / "bin" / "mypy", "--strict", *paths])


def pyright(programs: Path, *paths: str) -> tuple[int, str]:
    return judged(programs, [programs / "venv" / "bin" / "pyright", *paths])


def test_examples_pass_mypy(programs: Path) -> None:
    code, said = mypy(programs, "examples")
    assert code == 0, said
    code, said = mypy(programs, "wrong.py")
    assert (code, said.count(": error: ")) == (1, MISTAKES), said


def test_examples_pass_pyright(programs: Path) -> None:
    code, said = pyright(programs, "--project", "examples/pyrightconfig.json")
    assert code == 0, said
    assert "0 errors" in said
    code, said = pyright(programs, "wrong.py")
    assert (code, said.count(" - error: ")) == (1, MISTAKES), said
