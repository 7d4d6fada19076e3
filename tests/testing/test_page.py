"""Every block of docs/testing.md, and the example that it leads to."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
from inner_pytest import run_pytest

from raftlog.testing import SeedFailedError, sweep

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "testing"))

from test_account import two_tellers  # noqa: E402 - found there

PAGE = (ROOT / "docs" / "testing.md").read_text()
FINDS = (0, 1, 2)
"""Seeds with which the mistake of the example is found."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def pytest_of(directory: Path, *arguments: str) -> str:
    ended = run_pytest(directory, "-W", "error", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_programs_of_the_page_pass_with_a_few_seeds(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text("\n".join(blocks("python")))
    assert "7 passed" in pytest_of(tmp_path, "--raftlog-seeds", "3")


def test_other_blocks_of_the_page_are_true(tmp_path: Path) -> None:
    install, commands = blocks("console")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install == "$ pip install 'raftlog[testing]'\n"
    assert "testing" in project["optional-dependencies"]
    (tmp_path / "test_page.py").write_text("\n".join(blocks("python")))
    counts = []
    for line in commands.splitlines():
        _, program, *arguments = line.split()
        assert program == "pytest"
        said = pytest_of(tmp_path, *arguments, "--collect-only")
        counts.append(len(re.findall(r"test_two_programs_count\[(\d+)\]", said)))
    assert counts == [20, 40, 1]
    (story,) = blocks("text")
    for line in story.splitlines():
        assert re.fullmatch(r" {1,4} ?\d+\.\d{3} [\w]{2,11} +\S.*", line), line
    assert (
        sum(map(len, (blocks(kind) for kind in ("python", "console", "text"))))
        == PAGE.count("```") // 2
    )


def test_page_and_its_code_fit_into_80_columns() -> None:
    prose = [line for line in PAGE.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 80] == []


def test_example_fails_where_only_the_lock_is_trusted() -> None:
    with pytest.raises(SeedFailedError, match=r"\A3 of 3 seeds failed: 0, 1, 2\n") as failed:
        sweep(partial(two_tellers, guarded=False), FINDS)
    assert re.search(r"(ann|bob) +pause for \d+", failed.value.story)
    assert "kv.alter(" in failed.value.story


def test_corrected_example_passes_where_the_other_fails() -> None:
    assert len(sweep(partial(two_tellers, guarded=True), FINDS)) == len(FINDS)


@pytest.mark.nightly
def test_example_as_users_run_it(tmp_path: Path) -> None:
    directory = shutil.copytree(ROOT / "examples" / "testing", tmp_path / "example")
    assert "202 passed" in pytest_of(directory, "--raftlog-seeds", "200", ".")


@pytest.mark.nightly
def test_five_of_twenty_seeds_find_the_mistake() -> None:
    with pytest.raises(SeedFailedError) as failed:
        sweep(partial(two_tellers, guarded=False), range(20))
    found = re.match(r"(\d+) of 20 seeds failed", str(failed.value))
    assert found
    assert int(found[1]) >= 5
